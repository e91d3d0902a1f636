"""Reader of the SQLite records: it changes nothing, and it does not block the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.cdn.site_records import SiteRecords
from pyservice.errors import ServiceError
from pyservice.storage import games, groups, namespaces, uploads
from pyservice.storage.database import Database, RecordReader, open_database, open_reader
from pyservice.storage.migrations import migrate

pytestmark = pytest.mark.anyio

FILES = 10_000


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(None, tmp_path)
    await migrate(database, is_allowed=True)
    async with database.write() as tx:
        await groups.add_identity(tx, "ann", "Ann", 0)
        await groups.add(tx, "group", "Group", "ann", 0)
    yield database
    await database.close()


@pytest.fixture
async def reader(database: Database, tmp_path: Path) -> AsyncIterator[RecordReader]:
    reader = open_reader(None, tmp_path)
    yield reader
    await reader.close()


async def test_reader_sees_changes_and_makes_none(database: Database, reader: RecordReader) -> None:
    async with reader.read() as tx:
        assert await uploads.namespace_site(tx, "arena", "prod") is None
    async with database.write() as tx:
        await games.add(tx, "game", "arena", "Arena", "group", 0)
    async with reader.read() as tx:
        with pytest.raises(ServiceError) as failure:
            await games.add(tx, "other", "other", "Other", "group", 0)
    assert isinstance(failure.value.__cause__, sqlite3.OperationalError)
    assert "readonly" in str(failure.value.__cause__)


async def test_missing_database_is_an_unavailable_one(tmp_path: Path) -> None:
    reader = open_reader(None, tmp_path)
    with pytest.raises(ServiceError) as failure:
        async with reader.read():
            pass
    assert failure.value.code == "CONTROL_PLANE_UNAVAILABLE"
    assert not list(tmp_path.iterdir())
    await reader.close()


@pytest.mark.full
async def test_large_site_leaves_the_event_loop_to_others(
    database: Database, reader: RecordReader
) -> None:
    async with database.write() as tx:
        await games.add(tx, "game", "arena", "Arena", "group", 0)
        files = [uploads.NewFile(f"{number}.js", 4) for number in range(FILES)]
        await uploads.add(tx, uploads.NewUpload("upload", "game", "site", "x", 0, files))
        await uploads.complete(tx, "upload", "site", 1)
        await uploads.add_site(tx, "site", "game", "upload", "x", 0)
        await games.add_version(tx, games.NewVersion("one", "game", "1", 0, site_id="site"))
        added = [namespaces.NewNamespace("prod", "prod", "prod", "first")]
        await namespaces.add(tx, "game", "one", added, (1, 1), 1)
    finding = asyncio.create_task(SiteRecords(reader).find("arena", "prod"))
    turns = 0
    while not finding.done():
        await asyncio.sleep(0)
        turns += 1
    site = finding.result()
    assert site is not None
    assert len(site.files) == FILES
    # On the event loop, the lookup would take less than ten turns.
    assert turns > 100
