from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.idempotent_changes import IdempotentChanges
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.settings.database_url import database_location
from pyservice.storage.database import (
    Conflict,
    Database,
    DatabaseUnusable,
    Transaction,
    open_database,
)
from pyservice.storage.database_errors import DatabaseErrorTranslation
from pyservice.storage.migrations import migrate
from pyservice.storage.postgres import PostgresDatabase, is_closed
from pyservice.storage.tables import metadata
from tests.support.captured_logs import logged
from tests.support.databases import KINDS, Databases, Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.notes_table import NOTES, at_once, both, count_up, in_use, number, prepare
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


async def _at_rest(database: Database) -> None:
    """Waits until the transactions of cancelled callers have ended and no connection is in use."""
    async with asyncio.timeout(PATIENCE_S):
        while in_use(database):
            await asyncio.sleep(0)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, databases: Databases) -> str | None:
    return databases.url(request.param)


@pytest.fixture
async def database(url: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(url, tmp_path)
    await prepare(database)
    yield database
    await _at_rest(database)
    await database.close()


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(None, tmp_path)
    await prepare(database)
    yield database
    await database.close()


@pytest.fixture
async def on_server(server: Server, tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(server.url(), tmp_path)
    await prepare(database)
    yield database
    await database.close()


async def test_sqlite_connections_sync_commits_and_overwrite_deleted_data(
    on_sqlite: Database,
) -> None:
    async def ask(tx: Transaction) -> tuple[Any, ...]:
        names = ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
        rows = [await tx.first(text(f"PRAGMA {name}")) for name in names]
        return tuple(row[0] for row in rows if row is not None)

    answers = await at_once(on_sqlite, "read", 40, ask)
    answers += await at_once(on_sqlite, "write", 1, ask)
    assert set(answers) == {("wal", 2, 1, 1)}


@pytest.mark.parametrize(
    ("of_server", "of_service"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")],
)
async def test_postgresql_syncs_each_commit(
    on_server: Database, server: Server, of_server: str, of_service: str
) -> None:
    server.configure("synchronous_commit", of_server)

    async def ask(tx: Transaction) -> tuple[Any, ...]:
        rows = [await tx.first(text(f"SHOW {name}")) for name in ("fsync", "synchronous_commit")]
        return tuple(row[0] for row in rows if row is not None)

    assert set(await at_once(on_server, "write", 16, ask)) == {("on", of_service)}
    show = "SHOW synchronous_commit"
    of_migrations = await on_server.run_sync(lambda one: one.exec_driver_sql(show).scalar())
    assert of_migrations == of_service


async def test_connection_that_is_lost_while_it_is_given_back_is_no_error(
    on_server: PostgresDatabase,
) -> None:
    connections = on_server._connections
    for steps in range(6):
        connection = await connections.acquire(None)
        giving_back = asyncio.create_task(connections.give_back(connection))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not is_closed(connection):
            connection.terminate()
        await giving_back
    async with on_server.read() as tx:
        assert await tx.first(text("SELECT 1")) is not None


async def test_server_without_sync_is_rejected_with_a_remedy(
    server: Server, tmp_path: Path
) -> None:
    database = open_database(server.url(), tmp_path)
    server.configure("fsync", "off")
    with pytest.raises(DatabaseUnusable, match=r"fsync off.*set fsync = on"):
        await migrate(database, is_allowed=True)
    server.configure("fsync", "on")
    assert await migrate(database, is_allowed=True)
    await database.close()


@pytest.mark.parametrize("mode", ["disable", "prefer"])
async def test_url_may_have_an_sslmode(databases: Databases, tmp_path: Path, mode: str) -> None:
    database = open_database(f"{databases.url('postgresql')}&sslmode={mode}", tmp_path)
    await prepare(database)
    async with database.write() as tx:
        await count_up(tx)
    async with database.read() as tx:
        assert await both(tx) == (1, 0)
    await database.close()


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("postgresql://me:secret@db.example:5433/games", "db.example:5433/games"),
        ("postgresql://me:secr%40et@db.example/games?sslmode=require", "db.example:5432/games"),
        ("postgresql://[::1]:5433/games", "[::1]:5433/games"),
        ("postgresql://me:secret@/games?host=/run/postgresql", "/run/postgresql:5432/games"),
        ("postgresql:///games", "localhost:5432/games"),
        ("postgresql+asyncpg://me:secret@db.example:5433/games", "db.example:5433/games"),
        ("postgresql://me:secret@/?host=one,two&dbname=games", "one,two:5432/games"),
        ("postgresql://me:secret@one:1,two:2/games", "one:1,two:2/games"),
        ("postgresql://me:sec[ret@db.example/games", "db.example:5432/games"),
        ("postgresql://me:secret@[::1]/games", "[::1]:5432/games"),
        ("postgresql://me:secret@db.example:99999/games", "db.example:99999/games"),
    ],
)
def test_location_has_no_secrets(url: str, location: str) -> None:
    assert database_location(url) == location


async def test_away_server_is_named_in_the_log(tmp_path: Path) -> None:
    database = open_database("postgresql://me:secret@127.0.0.1:1/games", tmp_path)
    with logged() as log, pytest.raises(ServiceError, match="CONTROL_PLANE_UNAVAILABLE"):
        async with database.read():
            pass
    [event] = map(json.loads, log.getvalue().splitlines())
    assert (event["event"], event["database"]) == ("database unavailable", "127.0.0.1:1/games")
    assert "secret" not in log.getvalue()
    await database.close()


async def test_repeated_error_of_an_away_server_is_logged_with_growing_intervals(
    tmp_path: Path,
) -> None:
    database = open_database("postgresql://me:secret@127.0.0.1:1/games", tmp_path)

    async def read() -> None:
        async with database.read():
            pass

    with logged() as log:
        for _ in range(5):
            for attempt in (read, functools.partial(migrate, database, is_allowed=True)):
                with pytest.raises(ServiceError, match="CONTROL_PLANE_UNAVAILABLE"):
                    await attempt()
    await database.close()
    events = list(map(json.loads, log.getvalue().splitlines()))
    assert [event.get("repeats") for event in events] == [None, 2, 4, 8]


def test_error_after_a_success_or_a_different_one_is_logged() -> None:
    translation = DatabaseErrorTranslation("db.example:5432/games")
    attempts = ["away", "away", "away", None, "away", "slow", "away"]
    with logged() as log:
        for error in attempts:
            with contextlib.suppress(ServiceError), translation:
                if error is not None:
                    raise OSError(error)
    events = list(map(json.loads, log.getvalue().splitlines()))
    assert [(event["error"], event.get("repeats")) for event in events] == [
        ("OSError: away", None),
        ("OSError: away", 2),
        ("OSError: away", None),
        ("OSError: slow", None),
        ("OSError: away", None),
    ]


def test_sqlite_start_does_not_load_the_postgresql_driver(
    tmp_path: Path,
) -> None:
    look = (
        "import sys; from pathlib import Path; import pyservice.app.control_plane; "
        "from pyservice.storage.database import open_database; "
        f"open_database(None, Path({str(tmp_path)!r})); "
        "print(*(name for name in ('asyncpg', 'sqlalchemy.ext.asyncio') if name in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


WRITER = """
import asyncio, sys
from pathlib import Path
from pyservice.storage.database import open_database
from tests.support.notes_table import count_up

async def live(url, folder):
    database = open_database(url or None, Path(folder))
    number = 0
    while True:
        async with database.write() as tx:
            await count_up(tx, "a")
            await count_up(tx, "b")
        number += 1
        print(number, flush=True)

asyncio.run(live(*sys.argv[1:]))
"""


async def test_committed_transactions_survive_kill_9_whole(
    database: Database, url: str | None, tmp_path: Path
) -> None:
    confirmed = 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, url or "", str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        count = 0
        while count < 20:
            count = int(await asyncio.to_thread(writer.stdout.readline))
        writer.kill()
        rest = await asyncio.to_thread(writer.communicate)
        confirmed += max([count, *map(int, rest[0].split())])
        async with database.write() as tx:
            a, b = await both(tx)
        assert a == b
        # The last transaction may be committed without an acknowledgement.
        assert confirmed <= a <= confirmed + 1
        confirmed = a


async def test_reader_sees_one_state_during_writes(database: Database) -> None:
    async with database.read() as tx:
        before = await number(tx, "a")
        async with database.write() as writing:
            await count_up(writing, "a")
            await count_up(writing, "b")
        assert await both(tx) == (before, before)
    async with database.read() as tx:
        assert await both(tx) == (before + 1, before + 1)


async def test_uncommitted_data_is_invisible(database: Database) -> None:
    async def give_up() -> None:
        async with database.write() as writing:
            await count_up(writing)
            async with database.read() as tx:
                assert await number(tx) == 0
            raise LookupError

    with pytest.raises(LookupError):
        await give_up()
    async with database.read() as tx:
        assert await number(tx) == 0


async def test_writers_of_one_row_are_serialized(database: Database) -> None:
    async def write() -> None:
        for _ in range(10):
            async with database.write() as tx:
                await count_up(tx)
                before = await number(tx)
                await asyncio.sleep(0)
                assert await number(tx) == before

    await asyncio.gather(*(write() for _ in range(8)))
    async with database.read() as tx:
        assert await number(tx) == 80


async def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    async with database.write() as writing:
        await count_up(writing)
        async with asyncio.timeout(PATIENCE_S), database.read() as tx:
            assert await number(tx) == 0


def call_without_key() -> Caller:
    return Caller(TokenKind.TOKENLESS, b"", b"", b"", Call("0" * 32, b""))


async def changed(database: Database, change: Callable[[Transaction], Awaitable[Any]]) -> Any:
    changes = IdempotentChanges(database)
    return await changes.apply(
        call_without_key(), feed_pb2.HeldRequest(), feed_pb2.HeldResponse, change
    )


async def test_existing_name_is_a_conflict_and_changes_nothing(database: Database) -> None:
    async def add_again() -> None:
        async with database.write() as tx:
            await count_up(tx)
            await tx.run(insert(NOTES), {"name": "a", "number": 7})

    with pytest.raises(Conflict):
        await add_again()
    async with database.read() as tx:
        assert await number(tx) == 0


async def test_transaction_that_continues_after_an_error_is_not_committed(
    on_server: Database,
) -> None:
    async def go_on() -> None:
        async with on_server.write() as tx:
            await count_up(tx)
            with pytest.raises(Conflict):
                await tx.run(insert(NOTES), {"name": "a", "number": 7})

    with pytest.raises(RuntimeError, match="nothing was committed"):
        await go_on()
    async with on_server.read() as tx:
        assert await number(tx) == 0


async def test_one_of_concurrent_creations_of_a_name_wins(
    database: Database,
) -> None:
    created, refused = [], []

    async def create(tx: Transaction) -> feed_pb2.HeldResponse:
        if await tx.first(select(NOTES).where(NOTES.c.name == "new")) is not None:
            refused.append(1)
            raise ServiceError("VALIDATION_FAILED")
        await asyncio.sleep(0.05)
        await tx.run(insert(NOTES), {"name": "new", "number": 0})
        created.append(1)
        return feed_pb2.HeldResponse()

    answers = await asyncio.gather(
        *(changed(database, create) for _ in range(6)), return_exceptions=True
    )
    assert len(created) == 1
    assert len(refused) == 5
    assert sum(isinstance(answer, ServiceError) for answer in answers) == 5


async def test_deadlocked_transactions_are_both_applied(database: Database) -> None:
    both_hold_one = asyncio.Event()
    holding: list[str] = []

    def crosswise(first: str, second: str) -> Callable[[Transaction], Awaitable[Any]]:
        async def change(tx: Transaction) -> feed_pb2.HeldResponse:
            await count_up(tx, first)
            holding.append(first)
            if len(holding) == 2:
                both_hold_one.set()
            if database.name == "postgresql":
                await both_hold_one.wait()
            await count_up(tx, second)
            return feed_pb2.HeldResponse()

        return change

    await asyncio.gather(
        changed(database, crosswise("a", "b")), changed(database, crosswise("b", "a"))
    )
    async with database.read() as tx:
        assert await both(tx) == (2, 2)


async def test_cancelled_write_is_atomic_and_releases_its_connection(
    database: Database,
) -> None:
    committed = 0

    async def write() -> None:
        nonlocal committed
        async with database.write() as tx:
            await count_up(tx, "a")
            await asyncio.sleep(0)
            await count_up(tx, "b")
        committed += 1

    for number_ in range(60):
        task = asyncio.create_task(write())
        # Cancels at different moments: before the lock, between the statements, in the commit.
        for _ in range(number_ % 12):
            await asyncio.sleep(0)
        if number_ % 3 == 0:
            await asyncio.sleep(number_ / 20_000)
        task.cancel()
        await asyncio.sleep(0)
        # A second cancellation must not interrupt the commit either.
        task.cancel()
        await asyncio.wait({task})
        await _at_rest(database)
    async with asyncio.timeout(PATIENCE_S), database.write() as tx:
        a, b = await both(tx)
        await count_up(tx, "a")
    assert a == b
    # A cancelled commit may have succeeded.
    assert committed <= a <= 60
    if database.name == "postgresql":
        async with database.write() as tx:
            idle = await tx.first(
                text("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")
            )
        assert idle is not None
        assert idle[0] == 0


async def test_failed_commit_callback_does_not_block_others(
    database: Database,
) -> None:
    called = []

    def fail() -> None:
        raise RuntimeError("broken")

    async with database.write() as tx:
        await count_up(tx, "a")
        for call in (lambda: called.append("before"), fail, lambda: called.append("after")):
            tx.after_commit(call)
    assert called == ["before", "after"]


async def test_database_file_is_private_in_any_folder(tmp_path: Path) -> None:
    """An earlier service may have created the file with open permissions before it was killed."""
    files = [tmp_path / f"records.db{suffix}" for suffix in ("", "-wal", "-shm")]
    database = open_database(None, tmp_path)
    await migrate(database, is_allowed=True)
    async with database.read() as tx:
        await tx.all(select(metadata.tables["groups"]))
        assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o600"] * 3
        contents = {path: path.read_bytes() for path in files}
    await database.close()
    for path, content in contents.items():
        path.write_bytes(content)
        path.chmod(0o644)
    database = open_database(None, tmp_path)
    async with database.read() as tx:
        await tx.all(select(metadata.tables["groups"]))
        assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o600"] * 3
    await database.close()
