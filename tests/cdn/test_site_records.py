"""Age of a site's files: counted from the time when the site shows them, not only from the upload."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.cdn.site_records import SiteRecords
from pyservice.control.games import site_topic
from pyservice.storage import games, groups, namespaces, uploads
from pyservice.storage.database import Database, Transaction, open_database
from pyservice.storage.migrations import migrate
from pyservice.watch import Topics
from tests.support.databases import KINDS, Databases

pytestmark = pytest.mark.anyio

BEGIN_MS = 1_700_000_000_000
NAMESPACES = ("prod", "staging")


class DeployedSite:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._topics = Topics()
        self._records = SiteRecords(database, self._topics)
        self._entries = 0

    async def deploy(self, version: str, now_ms: int) -> str:
        self._entries += 1
        entry = f"entry-{self._entries}"
        async with self._database.write() as tx:
            await namespaces.change(tx, "prod", {"version_id": version})
            await namespaces.add_history(tx, entry, "prod", version, now_ms)
        self._topics.bump(site_topic("prod"))
        return entry

    async def take_back(self, refused: str, version: str, entry: str) -> None:
        async with self._database.write() as tx:
            assert await namespaces.restore_version(tx, "prod", refused, version, entry)
        self._topics.bump(site_topic("prod"))

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
