"""Sites from the database: the age of their files, and the memory of the cache."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.cdn.site_records import SiteRecords
from pyservice.cdn.site_routes import Route, SiteRoutes
from pyservice.storage import games, groups, namespaces, uploads
from pyservice.storage.database import Database, Transaction, open_database
from pyservice.storage.migrations import migrate
from tests.support.databases import KINDS, Databases

pytestmark = pytest.mark.anyio

BEGIN_MS = 1_700_000_000_000
NAMESPACES = ("prod", "staging")


class DeployedSite:
    def __init__(self, database: Database) -> None:
        self.database = database
        self._now_s = 0.0
        self._records = SiteRecords(database, lambda: self._now_s)
        self._entries = 0

    async def deploy(self, version: str, now_ms: int) -> str:
        self._entries += 1
        entry = f"entry-{self._entries}"
        async with self.database.write() as tx:
            await namespaces.change(tx, "prod", {"version_id": version})
            await namespaces.add_history(tx, entry, "prod", version, now_ms)
        self._now_s += 1.0
        return entry

    async def take_back(self, refused: str, version: str, entry: str) -> None:
        async with self.database.write() as tx:
            assert await namespaces.restore_version(tx, "prod", refused, version, entry)
        self._now_s += 1.0

    async def age(self, namespace: str = "prod") -> tuple[str, int]:
        """Returns which version is shown, and the file time in milliseconds."""
        site = await self._records.find("arena", namespace)
        assert site is not None
        file = site.files["app.js"]
        return file.content_type or "", round(file.modified_s * 1000)


async def _fill(tx: Transaction) -> None:
    await groups.add_identity(tx, "ann", "Ann", 0)
    await groups.add(tx, "group", "Group", "ann", 0)
    await games.add(tx, "game", "arena", "Arena", "group", 0)
    for name, complete_ms in (("old", BEGIN_MS), ("new", BEGIN_MS + 5_000)):
        files = [uploads.NewFile("app.js", 4, content_type=name)]
        await uploads.add(tx, uploads.NewUpload(f"upload-{name}", "game", "site", name, 0, files))
        await uploads.complete(tx, f"upload-{name}", "site", complete_ms)
        await uploads.add_site(tx, f"site-{name}", "game", f"upload-{name}", name, 0)
        new = games.NewVersion(name, "game", name, 0, site_id=f"site-{name}")
        await games.add_version(tx, new)
    added = [namespaces.NewNamespace(name, name, name, f"first-{name}") for name in NAMESPACES]
    await namespaces.add(tx, "game", "old", added, (1, 1), BEGIN_MS - 1_000)


@pytest.fixture(params=KINDS)
async def deployed_site(
    request: pytest.FixtureRequest, tmp_path: Path, databases: Databases
) -> AsyncIterator[DeployedSite]:
    database = open_database(databases.url(request.param), tmp_path)
    await migrate(database, is_allowed=True)
    async with database.write() as tx:
        await _fill(tx)
    yield DeployedSite(database)
    await database.close()


async def test_file_date_is_the_upload_if_that_is_latest(deployed_site: DeployedSite) -> None:
    assert await deployed_site.age() == ("old", BEGIN_MS)


async def test_rollback_makes_the_old_file_newer(deployed_site: DeployedSite) -> None:
    await deployed_site.deploy("new", BEGIN_MS + 10_000)
    assert await deployed_site.age() == ("new", BEGIN_MS + 10_000)
    await deployed_site.deploy("old", BEGIN_MS + 20_000)
    assert await deployed_site.age() == ("old", BEGIN_MS + 20_000)
    assert await deployed_site.age("staging") == ("old", BEGIN_MS)


async def test_withdrawn_version_keeps_the_age_of_the_current_one(
    deployed_site: DeployedSite,
) -> None:
    before = await deployed_site.age()
    entry = await deployed_site.deploy("new", BEGIN_MS + 10_000)
    assert await deployed_site.age() == ("new", BEGIN_MS + 10_000)
    await deployed_site.take_back("new", "old", entry)
    assert await deployed_site.age() == before


CACHE_BYTES = 1 << 20
FILES = 500
SITES = 30


async def _add_large_site(tx: Transaction, name: str, files: int) -> None:
    new_files = [uploads.NewFile(f"{number}/{'x' * 400}.js", 4) for number in range(files)]
    await uploads.add(tx, uploads.NewUpload(f"upload-{name}", "game", "site", name, 0, new_files))
    await uploads.complete(tx, f"upload-{name}", "site", BEGIN_MS)
    await uploads.add_site(tx, f"site-{name}", "game", f"upload-{name}", name, 0)
    version = games.NewVersion(name, "game", name, 0, site_id=f"site-{name}")
    await games.add_version(tx, version)
    added = [namespaces.NewNamespace(name, name, name, f"first-{name}")]
    await namespaces.add(tx, "game", name, added, (1, 1), BEGIN_MS)


async def test_cache_of_many_large_sites_is_limited_in_bytes(deployed_site: DeployedSite) -> None:
    names = [f"large-{number}" for number in range(SITES)]
    async with deployed_site.database.write() as tx:
        for name in names:
            await _add_large_site(tx, name, FILES)
    records = SiteRecords(deployed_site.database, cache_max_bytes=CACHE_BYTES)
    tracemalloc.start()
    try:
        for name in names:
            site = await records.find("arena", name)
            assert site is not None
            assert len(site.files) == FILES
        del site
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert CACHE_BYTES / 2 < records.cache_bytes <= CACHE_BYTES
    assert held_bytes < 2 * CACHE_BYTES


async def test_evicted_files_are_read_again(deployed_site: DeployedSite) -> None:
    names = ["large-0", "large-1"]
    async with deployed_site.database.write() as tx:
        for name in names:
            await _add_large_site(tx, name, FILES)
    records = SiteRecords(deployed_site.database, cache_max_bytes=CACHE_BYTES // 2)
    for name in names * 3:
        site = await records.find("arena", name)
        assert site is not None
        assert len(site.files) == FILES


async def test_memorized_routes_are_limited_in_bytes() -> None:
    routes = SiteRoutes([Route(f"{number}/**/*{{a,b}}*.js", number, []) for number in range(50)])
    least_bytes = routes.size_bytes
    for number in range(20_000):
        routes.headers(f"{number % 50}/{number}/{chr(200 + number % 600) * 20}.js")
        assert routes.size_bytes - least_bytes <= 1 << 20
