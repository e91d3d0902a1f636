"""Deletion in batches that an index finds, independent of the number of remaining rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from pyservice.control import lobby_records
from pyservice.control.rays import RAY_RETENTION_MS, RayStore
from pyservice.storage import lobbies, rays, stored_responses, tables, tokens
from pyservice.storage.database import DELETION_BATCH_ROWS, Database, open_database
from pyservice.storage.migrations import migrate
from pyservice.storage.sqlite import SqliteDatabase
from pyservice.storage.tables import device_links, idempotent_answers
from tests.support.databases import KINDS, Databases
from tests.support.noted_writes import noted_writes
from tests.support.unused_data_plane import UnusedDataPlane

pytestmark = pytest.mark.anyio

NOW_MS = 1_000_000
MANY = 2 * DELETION_BATCH_ROWS + 5
AFTER_MS = NOW_MS + MANY + lobby_records.LOBBY_RETENTION_MS
"""Time at which the retention of lobbies that ended before `NOW_MS + MANY` is over."""


@pytest.fixture(params=KINDS)
async def database(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> AsyncIterator[Database]:
    database = open_database(databases.url(request.param), tmp_path)
    await migrate(database, is_allowed=True)
    yield database
    await database.close()


async def make_links(database: Database, count: int) -> list[str]:
    ids = [f"{number:036}" for number in range(count)]
    async with database.write() as tx:
        for one in ids:
            await tokens.add_device_link(tx, one, NOW_MS, NOW_MS + 10, 1)
    return ids


async def names_of(database: Database, column: Any) -> list[Any]:
    async with database.read() as tx:
        return [row[0] for row in await tx.all(select(column).order_by(column))]


async def test_newest_uncompleted_links_are_kept(database: Database) -> None:
    assert await tokens.trim_uncompleted_device_links(database, 10) == 0
    ids = await make_links(database, MANY)
    async with database.write() as tx:
        assert await tokens.complete_device_link(tx, ids[1], "game", "token", b"secret", NOW_MS)
    # Deletes at most this number of batches at one time.
    assert await tokens.trim_uncompleted_device_links(database, 10, most=1) == DELETION_BATCH_ROWS
    assert (
        await tokens.trim_uncompleted_device_links(database, 10)
        == MANY - DELETION_BATCH_ROWS - 10 - 1
    )
    assert await names_of(database, device_links.c.device_link_id) == [ids[1], *ids[-10:]]
    assert await tokens.trim_uncompleted_device_links(database, 10) == 0


async def test_expired_links_are_deleted_and_others_kept(database: Database) -> None:
    ids = await make_links(database, MANY)
    async with database.write() as tx:
        await tokens.add_device_link(tx, "later", NOW_MS, NOW_MS + 11, 1)
    assert await tokens.remove_device_links_before(database, NOW_MS + 10) == 0
    assert await tokens.remove_device_links_before(database, NOW_MS + 11) == len(ids)
    assert await names_of(database, device_links.c.device_link_id) == ["later"]


async def test_stored_responses_are_limited_and_expire(database: Database) -> None:
    async with database.write() as tx:
        for number in range(MANY):
            for key in (stored_responses.ANONYMOUS_PREFIX, b"somebody/"):
                await stored_responses.add(tx, key + b"%06d" % number, b"h", b"a", NOW_MS)
    assert await stored_responses.trim_anonymous(database, 3) == MANY - 3
    keys = await names_of(database, idempotent_answers.c.caller_key)
    assert keys[:4] == [
        *(stored_responses.ANONYMOUS_PREFIX + b"%06d" % n for n in range(MANY - 3, MANY)),
        keys[3],
    ]
    assert len(keys) == MANY + 3
    assert await stored_responses.remove_before(database, NOW_MS) == 0
    assert await stored_responses.remove_before(database, NOW_MS + 1) == MANY + 3


async def test_batch_is_one_transaction_and_lets_others_write(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_links(database, MANY)
    writes = noted_writes(database, monkeypatch)
    assert await tokens.remove_device_links_before(database, NOW_MS + 11) == MANY
    assert len(writes) == 3


async def add_lobbies(database: Database, count: int) -> None:
    columns = {
        "namespace_id": "n",
        "game_mode": "arena",
        "region_id": "local",
        "version_id": "v",
        "publicity": "public",
        "is_closed": False,
        "is_stopping": False,
        "create_ms": 1,
    }
    rows = [
        {**columns, "lobby_id": f"{number:036}", "stop_ms": NOW_MS + number}
        for number in range(count)
    ]
    async with database.write() as tx:
        await lobbies.add_many(tx, [*rows, {**columns, "lobby_id": "alive", "stop_ms": None}])


async def test_ended_lobbies_are_deleted_in_batches(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_lobbies(database, MANY + 1)
    writes = noted_writes(database, monkeypatch)
    await lobby_records.LobbyFactReader(
        database, UnusedDataPlane(), lambda: None, lambda: AFTER_MS
    )._prune()
    assert len(writes) == 4, "three for the rows, one for the ends of their processes"
    # The last lobby ended in the first retained millisecond.
    ids_left = await names_of(database, tables.lobbies.c.lobby_id)
    assert sorted(ids_left) == sorted([f"{MANY:036}", "alive"])


async def add_rays(database: Database, count: int) -> None:
    columns = {"parent_span_id": "", "span_set": b"", "identity_id": None, "group_id": None}
    rows = [
        {**columns, "ray_id": "r", "span_id": f"{number:016}", "game_id": None, "create_ms": ms}
        for number, ms in ((number, NOW_MS + number // 2) for number in range(count))
    ]
    async with database.write() as tx:
        await rays.add(tx, rows)


async def test_old_or_surplus_rays_are_deleted_in_batches(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * MANY
    await add_rays(database, count)
    writes = noted_writes(database, monkeypatch)
    clock = [NOW_MS + MANY + RAY_RETENTION_MS]
    store = RayStore(database, count, lambda: clock[0])
    await store.prune()
    assert len(writes) == count // DELETION_BATCH_ROWS + 1
    assert await names_of(database, tables.rays.c.span_id) == []

    await add_rays(database, count)
    clock[0] = NOW_MS
    writes.clear()
    await RayStore(database, 11, lambda: clock[0]).prune()
    assert len(writes) > count // DELETION_BATCH_ROWS
    # The limit is eleven rows, and rows of the same millisecond are deleted together.
    ids_left = await names_of(database, tables.rays.c.span_id)
    assert ids_left == [f"{number:016}" for number in range(count - 10, count)]


async def test_no_batch_scans_a_table(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "records.db")
    await migrate(database, is_allowed=True)
    plans = {}

    def explain(connection: Connection) -> None:
        for statement in (
            tokens._REMOVE_UNCOMPLETED_LINKS,
            tokens._REMOVE_EXPIRED_LINKS,
            tokens._ERASE_LINK_SECRETS,
            stored_responses._REMOVE_ANONYMOUS,
            stored_responses._REMOVE_OLD,
            lobbies._REMOVE_STOPPED,
            rays._REMOVE,
            tokens._GREATEST_LINK_NUMBER,
            stored_responses._GREATEST_NUMBER,
        ):
            text = str(statement.compile(connection, compile_kwargs={"literal_binds": False}))
            rows = connection.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {text}", (1,) * text.count("?")
            ).all()
            plans[text] = [row[-1] for row in rows]

    await database.run_sync(explain)
    await database.close()
    for text, steps in plans.items():
        assert all("SEARCH" in step or "LIST" in step for step in steps), (text, steps)
