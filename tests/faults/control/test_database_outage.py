"""A database that is full, stopped, killed, stalled, removed or replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import asyncpg  # type: ignore[import-untyped]
import pytest
from sqlalchemy import text

from pyservice.errors import ServiceError
from pyservice.storage.database import Database, DatabaseUnusable, open_database
from pyservice.storage.migrations import migrate
from pyservice.storage.ownership import EarlierState, Instance, claim
from pyservice.storage.postgres import _PostgresTransaction
from tests.support.databases import Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.notes_table import (
    at_once,
    code_of,
    codes,
    count_up,
    in_use,
    look_once,
    number,
    prepare,
    write_once,
)
from tests.support.postgres_proxy import open_postgres_proxy
from tests.support.small_disk import small_disk
from tests.support.waiting import PATIENCE_S, eventually, within

pytestmark = [pytest.mark.anyio, pytest.mark.full]

REPORTED_S = 25.0
"""A query times out after ten seconds, and the service retries a query once."""


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    on_sqlite = open_database(None, tmp_path)
    await prepare(on_sqlite)
    yield on_sqlite
    await on_sqlite.close()


@pytest.fixture
async def on_server(server: Server, tmp_path: Path) -> AsyncIterator[Database]:
    on_server = open_database(server.url(), tmp_path)
    await prepare(on_server)
    yield on_server
    await on_server.close()


async def heals(database: Database, timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while (found_codes := await codes(database)) != {"OK"}:
            assert found_codes <= {"OK", "CONTROL_PLANE_UNAVAILABLE"}, found_codes
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_stopped_postgres_is_reported_and_used_after_restart(
    on_server: Database, server: Server, mode: str
) -> None:
    await at_once(on_server, "read", 10, number)

    async def interrupted() -> None:
        async with on_server.write() as tx:
            await count_up(tx)
            await asyncio.to_thread(server.stop, mode)
            await count_up(tx)

    assert await code_of(interrupted) == "CONTROL_PLANE_UNAVAILABLE"
    for _ in range(3):
        assert await codes(on_server) == {"CONTROL_PLANE_UNAVAILABLE"}
    assert ServiceError("CONTROL_PLANE_UNAVAILABLE").retry_after_s
    await asyncio.to_thread(server.start)
    await heals(on_server)
    async with on_server.read() as tx:
        assert await number(tx) >= 1
    assert in_use(on_server) == 0


async def test_postgres_is_used_after_its_sessions_are_killed(
    on_server: Database, server: Server
) -> None:
    for _ in range(3):
        await at_once(on_server, "read", 8, number)
        server.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'pyservice%'"
        )
        await heals(on_server)
    assert in_use(on_server) == 0


async def test_replaced_connections_close_without_an_error(
    on_server: Database, server: Server
) -> None:
    """The pool closes them in tasks of its own. An error there would fail this test."""
    for _ in range(3):
        await at_once(on_server, "read", 8, number)
        break_connections(server)
        await heals(on_server)
    assert in_use(on_server) == 0


def break_connections(server: Server) -> None:
    """Makes each send on a connection to `server` fail."""
    broken = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            if str(connection.getpeername()).startswith(f"{server.folder}"):
                connection.shutdown(socket.SHUT_WR)
                broken += 1
    assert broken


@pytest.mark.timing
async def test_hanging_postgres_is_reported_and_used_when_it_resumes(
    on_server: Database, server: Server
) -> None:
    await write_once(on_server)
    backends = server.psql(
        "\\t on\nSELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pyservice%';"
    )
    stalled = [server.pid, *(int(word) for word in backends.split() if word.isdigit())]
    for pid in stalled:
        os.kill(pid, signal.SIGSTOP)
    try:
        with within(REPORTED_S):
            code = await code_of(lambda: write_once(on_server))
        assert code == "CONTROL_PLANE_UNAVAILABLE"
    finally:
        for pid in stalled:
            os.kill(pid, signal.SIGCONT)
    await heals(on_server)
    assert in_use(on_server) == 0


async def test_server_gives_up_a_change_that_waits_for_a_lock(
    server: Server, tmp_path: Path
) -> None:
    """Its locks would make each repetition wait, too, and each would keep a connection of the server."""
    url = server.url()
    on_server, foreign = (open_database(url, tmp_path) for _ in range(2))
    await prepare(on_server)
    of_service = "FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with foreign.write() as tx:
        await tx.run(text("LOCK TABLE notes IN SHARE ROW EXCLUSIVE MODE"))
        assert await code_of(lambda: write_once(on_server)) == "CONTROL_PLANE_UNAVAILABLE"

        async def is_given_up() -> bool:
            return not await tx.all(text(f"SELECT 1 {of_service}"))

        await eventually(is_given_up)
    await write_once(on_server)
    assert await look_once(on_server) == 1
    await on_server.close()
    await foreign.close()


async def test_callers_wait_for_a_free_connection(on_server: Database) -> None:
    await asyncio.gather(*(write_once(on_server) for _ in range(200)))
    async with on_server.read() as tx:
        assert await number(tx) == 200
    assert in_use(on_server) == 0


async def test_removed_database_file_takes_no_changes_until_restored(
    on_sqlite: Database, tmp_path: Path
) -> None:
    await write_once(on_sqlite)
    names = [name for name in os.listdir(tmp_path) if name.startswith("records.db")]
    away = tmp_path / "away"
    away.mkdir()
    for name in names:
        (tmp_path / name).rename(away / name)
    for _ in range(2):
        assert await codes(on_sqlite) == {"CONTROL_PLANE_UNAVAILABLE"}
    # A new empty file would look like a first start.
    assert not (tmp_path / "records.db").exists()
    for name in names:
        (away / name).rename(tmp_path / name)
    assert await codes(on_sqlite) == {"OK"}


async def test_replaced_database_file_is_not_written(on_sqlite: Database, tmp_path: Path) -> None:
    await write_once(on_sqlite)
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "records.db").read_bytes())
    copy.rename(tmp_path / "records.db")
    assert await codes(on_sqlite) == {"CONTROL_PLANE_UNAVAILABLE"}


@pytest.mark.fast
async def test_file_that_is_no_database_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "records.db").write_bytes(b"no database at all, " * 1000)
    database = open_database(None, tmp_path)
    with pytest.raises(DatabaseUnusable, match=r"records\.db.*backup"):
        await migrate(database, is_allowed=True)
    await database.close()


DISK_MIB = 24

USER = """
import asyncio, sys
from pathlib import Path
from sqlalchemy import insert, text
from pyservice.storage.database import open_database
from tests.support import notes_table

async def add(database):
    async with database.write() as tx:
        await notes_table.count_up(tx)
        await tx.run(text("INSERT INTO weights VALUES (randomblob(60000))"))

async def live(folder):
    Path(folder).mkdir(exist_ok=True)
    database = open_database(None, Path(folder))
    await notes_table.prepare(database)
    async with database.write() as tx:
        await tx.run(text("CREATE TABLE weights (weight BLOB)"))
    while True:
        word = sys.stdin.readline().strip()
        if word == "add":
            print("=", await notes_table.code_of(lambda: add(database)), flush=True)
        elif word == "read":
            async with database.read() as tx:
                print("=", await notes_table.number(tx), flush=True)
        else:
            return

asyncio.run(live(sys.argv[1]))
"""


async def test_full_database_disk_is_reported_and_reads_continue(tmp_path: Path) -> None:
    disk = small_disk(tmp_path, DISK_MIB)
    folder = str(disk.mount_point / "control")
    user = subprocess.Popen(
        [*disk.command_prefix, sys.executable, "-c", USER, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(word: str) -> str:
        assert user.stdin is not None
        assert user.stdout is not None
        user.stdin.write(f"{word}\n")
        user.stdin.flush()
        while not (line := user.stdout.readline()).startswith("= "):
            assert line, "the database client process ended"
        return line[2:].strip()

    try:
        assert ask("add") == "OK"
        filler = disk.fill(user.pid)
        created = 1
        while (code := ask("add")) == "OK":
            created += 1
        for _ in range(5):
            assert code == "STORAGE_FULL"
            assert ask("read") == str(created)
            code = ask("add")
        filler.unlink()
        assert ask("add") == "OK"
        assert ask("read") == str(created + 1)
    finally:
        user.kill()
        user.communicate()


class OwnerLost(Exception):
    pass


def lose() -> NoReturn:
    raise OwnerLost


async def test_database_that_crashed_has_lost_nothing(
    server: Server, on_server: Database, tmp_path: Path
) -> None:
    """A commit without a change is answered before it is on disk. Then a crash assigns its id again."""
    server.configure("wal_writer_delay", "10s")
    (tmp_path / "control").mkdir()
    await claim(on_server, Instance.of_folder(tmp_path), lose)
    await write_once(on_server)
    for _ in range(10):
        async with on_server.write() as tx:
            await number(tx)
    server.stop("immediate")
    server.start()
    await heals(on_server)
    assert await look_once(on_server) == 2
    await claim(on_server, Instance.of_folder(tmp_path), lose)


async def use_id_again(url: str, transaction_id: str) -> None:
    """Commits changes of another program until one has had the id and another has a higher one."""
    connection = await asyncpg.connect(f"postgresql://{url.partition('://')[2]}")
    used: set[int] = set()
    while max(used, default=0) <= int(transaction_id):
        query = "UPDATE notes SET number = 0 WHERE name = 'b' RETURNING pg_current_xact_id()::text"
        used.add(int(await connection.fetchval(query)))
    await connection.close()
    assert int(transaction_id) in used


async def test_change_that_a_crash_lost_is_refused_after_its_id_is_used_again(
    server: Server, tmp_path: Path
) -> None:
    server.configure("wal_writer_delay", "10s")
    url = server.url()
    async with open_postgres_proxy(url) as proxy:
        database = open_database(proxy.url, tmp_path)
        await prepare(database)
        (tmp_path / "control").mkdir()
        await claim(database, Instance.of_folder(tmp_path), lose)

        async def lose_change() -> None:
            async with database.write() as tx:
                assert isinstance(tx, _PostgresTransaction)
                await count_up(tx)
                server.stop("immediate")
                server.start()
                await use_id_again(url, tx.transaction_id)

        assert await code_of(lose_change) == "CONTROL_PLANE_UNAVAILABLE"
        assert await look_once(database) == 0
        # The next commit without an answer is known again.
        proxy.cut_at, proxy.cuts_max = b"COMMIT\0", 1
        await write_once(database)
        assert (proxy.cuts, await look_once(database)) == (1, 1)
        await database.close()


async def test_database_that_lost_the_last_change_is_not_changed(
    server: Server, on_server: Database, tmp_path: Path
) -> None:
    """An asynchronous standby can lose changes that are newer than the last position."""
    (tmp_path / "control").mkdir()
    await claim(on_server, Instance.of_folder(tmp_path), lose)
    await write_once(on_server)
    server.stop("fast")
    server.copy()
    server.start()
    await heals(on_server)
    server.stop("fast")
    server.restore()
    server.start()
    with pytest.raises(OwnerLost):
        await write_once(on_server)
    assert await look_once(on_server) == 1
    with pytest.raises(EarlierState):
        await claim(on_server, Instance.of_folder(tmp_path), lose)
