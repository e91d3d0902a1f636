from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from pyservice.errors import ServiceError
from pyservice.storage import sqlite
from pyservice.storage.database import Transaction
from pyservice.storage.sqlite import SqliteConnections, SqliteDatabase
from tests.support.notes_table import both, count_up, number, prepare
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
def writer_connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    connections: list[sqlite3.Connection] = []
    acquire = SqliteConnections.acquire

    def begin(self: SqliteConnections, how: str) -> sqlite3.Connection:
        connections.append(acquire(self, how))
        return connections[-1]

    monkeypatch.setattr(SqliteConnections, "acquire", begin)
    return connections


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(tmp_path / "records.db")
    await prepare(database)
    yield database
    await database.close()


async def test_concurrent_transactions_share_one_sync(
    database: SqliteDatabase, writer_connections: list[sqlite3.Connection]
) -> None:
    statements: list[str] = []

    async def write() -> None:
        async with database.write() as tx:
            writer_connections[-1].set_trace_callback(statements.append)
            await count_up(tx, "a")

    await asyncio.gather(*(write() for _ in range(50)))
    async with database.read() as tx:
        assert await both(tx) == (50, 0)
    assert 1 <= statements.count("COMMIT") <= 3


async def test_failed_transaction_does_not_affect_its_group(
    database: SqliteDatabase,
) -> None:
    async def write(is_good: bool) -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            if not is_good:
                raise LookupError
            await count_up(tx, "b")

    results = await asyncio.gather(
        *(write(number % 2 == 0) for number in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, LookupError) for result in results) == 10
    async with database.read() as tx:
        assert await both(tx) == (10, 10)


async def test_commit_callback_runs_once_after_cancellation(
    database: SqliteDatabase,
) -> None:
    called = []
    write_ended = asyncio.Event()

    async def write() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            tx.after_commit(lambda: called.append("committed"))
        write_ended.set()

    task = asyncio.create_task(write())
    while not called:
        await asyncio.sleep(0)
        task.cancel()
        if task.done():
            break
    await asyncio.gather(task, return_exceptions=True)
    async with database.write() as tx:
        committed, _ = await both(tx)
    assert called == ["committed"] * committed


async def test_commit_error_reaches_the_whole_group(
    database: SqliteDatabase, writer_connections: list[sqlite3.Connection]
) -> None:
    def refuse_commits(action: int, name: str | None, *_: object) -> int:
        is_commit = action == sqlite3.SQLITE_TRANSACTION and name == "COMMIT"
        return sqlite3.SQLITE_DENY if is_commit else sqlite3.SQLITE_OK

    called = []

    async def write() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            writer_connections[-1].set_authorizer(refuse_commits)
            tx.after_commit(lambda: called.append("attempted"))

    results = await asyncio.gather(*(write() for _ in range(3)), return_exceptions=True)
    codes = [result.code for result in results if isinstance(result, ServiceError)]
    assert codes == ["CONTROL_PLANE_UNAVAILABLE"] * 3
    assert called == ["attempted"] * 3
    async with database.read() as tx:
        assert await both(tx) == (0, 0)


async def test_continued_transaction_after_a_full_disk_writes_nothing(
    database: SqliteDatabase, writer_connections: list[sqlite3.Connection]
) -> None:
    """SQLite rolls back a transaction on a full disk. Later statements would commit on their own."""
    codes = []

    async def go_on() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            connection = writer_connections[-1]
            [(pages,)] = connection.execute("PRAGMA page_count")
            connection.execute(f"PRAGMA max_page_count = {pages + 1}")
            for work in (grow(tx), count_up(tx, "b"), number(tx, "b")):
                try:
                    await work
                except ServiceError as error:
                    codes.append(error.code)

    with pytest.raises(ServiceError, match="CONTROL_PLANE_UNAVAILABLE"):
        await go_on()
    assert codes == ["STORAGE_FULL", "CONTROL_PLANE_UNAVAILABLE", "CONTROL_PLANE_UNAVAILABLE"]
    async with database.write() as tx:
        assert await both(tx) == (0, 0)
        await count_up(tx, "a")
    assert writer_connections[-1] is not writer_connections[0]


async def grow(tx: Transaction) -> None:
    name = "x" * 100_000
    await tx.run(text(f"INSERT INTO notes VALUES ('{name}', 1)"))


async def test_reader_without_its_transaction_reads_no_other_state(
    database: SqliteDatabase, writer_connections: list[sqlite3.Connection]
) -> None:
    async with database.read() as tx:
        await number(tx)
        # SQLite also rolls back after an I/O error.
        writer_connections[-1].execute("ROLLBACK")
        with pytest.raises(ServiceError, match="CONTROL_PLANE_UNAVAILABLE"):
            await number(tx)
    async with database.query() as tx:
        assert await both(tx) == (0, 0)


async def test_writer_that_waits_for_another_process_blocks_no_reader(
    database: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOCKED_TIMEOUT_S", 2 * PATIENCE_S)
    other = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def write() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")

    writing = [asyncio.create_task(write()) for _ in range(3)]
    reads = 0
    async with asyncio.timeout(PATIENCE_S):
        while reads < 100:
            async with database.read() as tx:
                assert await both(tx) == (0, 0)
            reads += 1
            await asyncio.sleep(0.001)
    assert not any(one.done() for one in writing)
    other.rollback()
    other.close()
    await asyncio.gather(*writing)
    async with database.read() as tx:
        assert await both(tx) == (3, 0)
