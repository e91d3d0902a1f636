"""Pages of lists, while other rows are added and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from sqlalchemy import Table, delete, insert

from pyservice.ids import RecordIds
from pyservice.storage import games, groups, lobbies, tables
from pyservice.storage.database import Database, Transaction
from pyservice.storage.list_pages import Page, PageBounds
from tests.support.databases import KINDS, Databases

pytestmark = pytest.mark.anyio

IDS: Final = RecordIds()
RUNS: Final = 10
ROWS: Final = 30
GROUPS: Final = sorted(IDS.new() for _ in range(3))
NAMESPACE: Final = IDS.new()


class Listed(NamedTuple):
    """List of a table. `id_column` identifies a row, `new_row` makes one with this ID."""

    table: Table
    id_column: str
    new_row: Callable[[Random, str], dict[str, Any]]
    read: Callable[[Transaction, PageBounds], Awaitable[Page]]


def new_game(random: Random, game_id: str) -> dict[str, Any]:
    return {
        "game_id": game_id,
        "name_id": game_id,
        "display_name": "Game",
        "group_id": random.choice(GROUPS),
        "create_ms": 1,
    }


def new_version(_: Random, version_id: str) -> dict[str, Any]:
    return {
        "version_id": version_id,
        "game_id": NAMESPACE,
        "display_name": "1.0.0",
        "create_ms": 1,
        "config": b"",
        "config_json": b"{}",
    }


def new_lobby(random: Random, lobby_id: str) -> dict[str, Any]:
    return {
        "lobby_id": lobby_id,
        "namespace_id": NAMESPACE,
        "game_mode": "arena",
        "region_id": "local",
        "version_id": NAMESPACE,
        "publicity": "public",
        "is_closed": False,
        "is_stopping": False,
        # Many lobbies share a time.
        "create_ms": random.randrange(5),
    }


LISTS: Final = {
    "ascending with two columns": Listed(
        tables.games,
        "game_id",
        new_game,
        lambda tx, bounds: games.of_groups(tx, GROUPS, None, bounds),
    ),
    "descending with one column": Listed(
        tables.versions,
        "version_id",
        new_version,
        lambda tx, bounds: games.page_of_versions(tx, NAMESPACE, bounds),
    ),
    "descending with a time": Listed(
        tables.lobbies,
        "lobby_id",
        new_lobby,
        lambda tx, bounds: lobbies.page(tx, NAMESPACE, None, 0, bounds, is_whole_ms=False),
    ),
}


@pytest.fixture(params=KINDS)
async def database(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> AsyncIterator[Database]:
    database = await databases.migrated(request.param, tmp_path)
    async with database.write() as tx:
        await groups.add_identity(tx, NAMESPACE, "Somebody", 1)
        for group_id in GROUPS:
            await groups.add(tx, group_id, "Group", NAMESPACE, 1)
        await games.add(tx, NAMESPACE, "parent", "Parent", GROUPS[0], 1)
    yield database
    await database.close()


class StoredRows:
    def __init__(self, database: Database, listed: Listed, random: Random) -> None:
        self.database = database
        self.listed = listed
        self.random = random
        self.ids: set[str] = set()

    async def add(self, count: int) -> None:
        # The IDs are not ordered by time, so that new rows are on earlier and on later pages.
        ids = [f"{self.random.getrandbits(128):036x}" for _ in range(count)]
        rows = [self.listed.new_row(self.random, one) for one in ids]
        async with self.database.write() as tx:
            await tx.run(insert(self.listed.table), rows)
        self.ids.update(ids)

    async def remove(self, count: int) -> None:
        ids = self.random.sample(sorted(self.ids), count)
        column = self.listed.table.c[self.listed.id_column]
        async with self.database.write() as tx:
            await tx.run(delete(self.listed.table).where(column.in_(ids)))
        self.ids.difference_update(ids)

    async def page(self, bounds: PageBounds) -> tuple[list[str], str | None]:
        async with self.database.read() as tx:
            page = await self.listed.read(tx, bounds)
        return [getattr(row, self.listed.id_column) for row in page.rows], page.cursor


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
async def test_rows_that_stay_are_on_exactly_one_page(database: Database, listed: Listed) -> None:
    for seed in range(RUNS):
        random = Random(seed)
        rows = StoredRows(database, listed, random)
        await rows.add(ROWS)
        permanent = set(rows.ids)
        limit = random.randrange(2, 12)
        seen, cursor = await rows.page(PageBounds(limit))
        while cursor is not None:
            await rows.add(random.randrange(1, 4))
            # The row of the cursor may also go.
            await rows.remove(random.randrange(3))
            permanent &= rows.ids
            page, cursor = await rows.page(PageBounds(limit, cursor))
            assert len(page) == limit or cursor is None
            seen += page
        assert len(seen) == len(set(seen)), seed
        assert permanent <= set(seen), seed
        await rows.remove(len(rows.ids))


async def test_full_last_page_has_no_cursor(database: Database) -> None:
    random = Random(0)
    async with database.write() as tx:
        await tx.run(insert(tables.versions), [new_version(random, IDS.new()) for _ in range(6)])
    async with database.read() as tx:
        first = await games.page_of_versions(tx, NAMESPACE, PageBounds(3))
        second = await games.page_of_versions(tx, NAMESPACE, PageBounds(3, first.cursor))
        whole = await games.page_of_versions(tx, NAMESPACE, PageBounds())
    assert first.cursor == first.rows[-1].version_id
    assert second.cursor is whole.cursor is None
    listed = [row.version_id for row in (*first.rows, *second.rows)]
    assert listed == [row.version_id for row in whole.rows]


async def test_lobbies_of_one_millisecond_stay_together_only_on_pages_by_time(
    database: Database,
) -> None:
    random = Random(0)
    rows = [{**new_lobby(random, IDS.new()), "create_ms": number // 3} for number in range(6)]
    async with database.write() as tx:
        await lobbies.add_many(tx, rows)

    async def page(bounds: PageBounds, *, is_whole_ms: bool) -> Page:
        async with database.read() as tx:
            return await lobbies.page(tx, NAMESPACE, None, 0, bounds, is_whole_ms=is_whole_ms)

    exact = await page(PageBounds(2), is_whole_ms=False)
    assert [row.create_ms for row in exact.rows] == [1, 1]
    whole = await page(PageBounds(2), is_whole_ms=True)
    assert [row.create_ms for row in whole.rows] == [1, 1, 1]
    rest = await page(PageBounds(2, whole.cursor), is_whole_ms=True)
    assert [row.create_ms for row in rest.rows] == [0, 0, 0]
    assert rest.cursor is None
