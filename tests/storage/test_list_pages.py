"""Pages of lists, while other rows are added and removed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from sqlalchemy import Executable, Table, delete, insert

from pyservice.ids import RecordIds
from pyservice.storage import games, groups, lobbies, tables, token_listing, tokens
from pyservice.storage.database import Database, Record, Transaction, Values
from pyservice.storage.list_pages import Page, PageBounds
from pyservice.storage.sqlite import SqliteDatabase
from tests.support.databases import KINDS, Databases

pytestmark = pytest.mark.anyio

IDS: Final = RecordIds()
RUNS: Final = 10
ROWS: Final = 30
GROUPS: Final = sorted(IDS.new() for _ in range(3))
NAMESPACE: Final = IDS.new()
MEMBER: Final = IDS.new()
"""Identity that belongs to the first group only."""


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


def new_token(random: Random, token_id: str) -> dict[str, Any]:
    """Returns a token that can act on the first group: of the group, or of a member for all groups."""
    return {
        "token_id": token_id,
        "sha256": token_id.encode(),
        "identity_id": random.choice((NAMESPACE, MEMBER)),
        "group_id": random.choice((GROUPS[0], None)),
        "create_ms": 1,
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
    "merged from two lists": Listed(
        tables.cloud_tokens,
        "token_id",
        new_token,
        lambda tx, bounds: tokens.of_group(tx, GROUPS[0], bounds),
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
        await groups.add_identity(tx, MEMBER, "Somebody else", 1)
        await groups.add_member(tx, GROUPS[0], MEMBER, 1)
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


STRANGER: Final = IDS.new()


async def add_tokens(database: Database, rows: Sequence[Mapping[str, Any]]) -> None:
    async with database.write() as tx:
        await tx.run(insert(tables.cloud_tokens), [dict(row) for row in rows])


async def test_tokens_of_a_group_are_its_own_and_those_of_members_for_all_groups(
    database: Database,
) -> None:
    random = Random(0)
    async with database.write() as tx:
        await groups.add_identity(tx, STRANGER, "Stranger", 1)
    rows = [
        {
            **new_token(random, IDS.new()),
            "identity_id": random.choice((NAMESPACE, MEMBER, STRANGER)),
            "group_id": random.choice((*GROUPS, None)),
            "revoke_ms": random.choice((None, 1)),
        }
        for _ in range(200)
    ]
    await add_tokens(database, rows)
    acting = [
        row
        for row in sorted(rows, key=lambda row: str(row["token_id"]), reverse=True)
        if row["group_id"] == GROUPS[0]
        or (row["group_id"] is None and row["identity_id"] != STRANGER)
    ]
    cursor: str | None = None
    listed: list[str] = []
    async with database.read() as tx:
        while not listed or cursor is not None:
            page = await tokens.of_group(tx, GROUPS[0], PageBounds(7, cursor))
            listed += [row.token_id for row in page.rows]
            cursor = page.cursor
        wanted = token_listing.TokenFilter(
            identity_id=NAMESPACE, group_id=GROUPS[0], valid_at_ms=2, before_token_id=listed[3]
        )
        valid = await token_listing.cloud_page(tx, wanted)
    assert listed == [row["token_id"] for row in acting]
    assert [row.token_id for row in valid] == [
        row["token_id"]
        for row in acting[4:]
        if row["identity_id"] == NAMESPACE and row["revoke_ms"] is None
    ]


class CountedReads:
    """Transaction that counts the work of the database for its statements.

    Counts the instructions of SQLite, or the rows that the nodes of PostgreSQL's plan read.
    """

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self.steps = 0

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        if hasattr(self._tx, "fetch_all"):
            self._tx._connection.set_progress_handler(self._count, 1)
        else:
            compiled = self._tx._statements.compile(statement, values)
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {compiled.text}"
            [[plan]] = await self._tx.connection.fetch(explain, *compiled.argument_values(values))
            self.steps += sum(rows_of(json.loads(plan)[0]["Plan"]))
        rows: Sequence[Record] = await self._tx.all(statement, values)
        if hasattr(self._tx, "fetch_all"):
            self._tx._connection.set_progress_handler(None, 0)
        return rows

    def _count(self) -> int:
        self.steps += 1
        return 0


def rows_of(plan: Mapping[str, Any]) -> Iterator[int]:
    removed = plan.get("Rows Removed by Filter", 0)
    yield (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    for inner in plan.get("Plans", ()):
        yield from rows_of(inner)


def cloud_token(identity_id: str, group_id: str | None) -> dict[str, Any]:
    token_id = IDS.new()
    columns = {"sha256": token_id.encode(), "identity_id": identity_id, "create_ms": 1}
    return {"token_id": token_id, "group_id": group_id, **columns}


async def _token_page(tx: Any, limit: int, cursor: str | None) -> None:
    page = await tokens.of_group(tx, GROUPS[0], PageBounds(limit, cursor))
    assert len(page.rows) == limit


async def _operator_page(tx: Any, _: int, cursor: str | None) -> None:
    wanted = token_listing.TokenFilter(group_id=GROUPS[0], before_token_id=cursor)
    assert len(await token_listing.cloud_page(tx, wanted)) == token_listing.PAGE


@pytest.mark.parametrize("read", [_token_page, _operator_page])
async def test_page_of_tokens_costs_no_more_with_more_tokens(
    database: Database,
    read: Callable[[Any, int, str | None], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 20
    monkeypatch.setattr(token_listing, "PAGE", limit)
    async with database.write() as tx:
        await groups.add_identity(tx, STRANGER, "Stranger", 1)
    steps: list[dict[str, int]] = []
    for count in (200, 4_000):
        acting = [
            cloud_token(identity_id, group_id)
            for _ in range(count)
            for identity_id in (NAMESPACE, MEMBER)
            for group_id in (None, GROUPS[0])
        ]
        # Newer tokens that no page has.
        others = [
            cloud_token(identity_id, group_id)
            for identity_id, group_id in ((MEMBER, GROUPS[1]), (STRANGER, None))
            for _ in range(count)
        ]
        await add_tokens(database, [*acting, *others])
        if not isinstance(database, SqliteDatabase):
            await database.run_sync(lambda connection: connection.exec_driver_sql("ANALYZE"))
        cursors = {"first": None, "middle": str(acting[len(acting) // 2]["token_id"])}
        taken: dict[str, int] = {}
        async with database.read() as tx:
            for name, cursor in cursors.items():
                counted = CountedReads(tx)
                await read(counted, limit, cursor)
                taken[name] = counted.steps
        steps.append(taken)
    few, many = steps
    assert all(many[name] < 1.2 * few[name] for name in few), steps
