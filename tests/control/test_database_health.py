"""Database health check during a loss and after recovery."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from pyservice.control import database_health
from pyservice.control.database_health import DatabaseHealthCheck
from pyservice.errors import ServiceError
from pyservice.storage import service_state
from pyservice.storage.database import Database, open_database
from pyservice.storage.migrations import migrate
from pyservice.storage.ownership import Instance, claim
from tests.support.databases import KINDS, Databases, Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.fault_shim import compiled_library
from tests.support.full_service import FullService, eventually
from tests.support.killed_service import KilledService
from tests.support.waiting import PATIENCE_S, POLL_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

LOG = "control/records.db-wal"


async def check(watch: DatabaseHealthCheck) -> str:
    await watch.check()
    return watch.problem


async def is_well(watch: DatabaseHealthCheck) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_health, "_TURN_TIMEOUT_S", PATIENCE_S)
        return await check(watch) == ""


def lose() -> NoReturn:
    raise AssertionError("no other service owns the database")


async def health_check(database: Database, folder: Path, **options: float) -> DatabaseHealthCheck:
    owned = await claim(database, Instance("one", "host", "/data", folder / "one.json"), lose)
    return DatabaseHealthCheck(database, owned.renew, **options)


@contextlib.contextmanager
def hung(server: Server) -> Iterator[None]:
    query = "\\t on\nSELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pyservice%';"
    serving = [int(word) for word in server.psql(query).split() if word.isdigit()]
    stalled = [server.pid, *serving]
    for pid in stalled:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stalled:
            os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def migrated(url: str | None, folder: Path) -> AsyncIterator[Database]:
    database = open_database(url, folder)
    try:
        await migrate(database, is_allowed=True)
        yield database
    finally:
        await database.close()


async def wait_until_healthy(watch: DatabaseHealthCheck) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await check(watch):
            await asyncio.sleep(POLL_S)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Database]:
    async with migrated(None, tmp_path) as database:
        yield database


@pytest.fixture
async def on_server(server: Server, tmp_path: Path) -> AsyncIterator[Database]:
    async with migrated(server.url(), tmp_path) as database:
        yield database


async def test_healthy_database_is_written_periodically(local: Database, tmp_path: Path) -> None:
    watch = await health_check(local, tmp_path, write_s=3_600)
    written = []
    with contextlib.closing(sqlite3.connect(tmp_path / "records.db")) as other:
        for _ in range(2):
            assert await is_well(watch)
            query = "SELECT position FROM service_owner"
            written += other.execute(query).fetchall()
    assert len(written) == 2
    assert written[0] == written[1]


@pytest.mark.full
async def test_stopped_server_is_reported_until_it_is_back(
    server: Server, on_server: Database, tmp_path: Path
) -> None:
    watch = await health_check(on_server, tmp_path)
    assert await is_well(watch)
    await asyncio.to_thread(server.stop)
    problem = f"{on_server.location} does not answer: see the log"
    assert await check(watch) == problem
    await asyncio.to_thread(server.start)
    await wait_until_healthy(watch)
    assert watch.job.unexpected_errors == 0


async def test_locked_database_takes_no_changes(local: Database, tmp_path: Path) -> None:
    watch = await health_check(local, tmp_path)
    path = tmp_path / "records.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await check(watch) == "records.db accepts reads but no changes: see the log"
        other.rollback()
    assert await is_well(watch)


# Busy database ------------------------------------------------------------------------------------

HELD_S = 0.25
QUEUES = {"sqlite": 12, "postgresql": 16 * 12}
"""With this number of waiting database users, the last user waits longer than the health check's timeout."""


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
async def test_busy_database_is_healthy(kind: str, databases: Databases, tmp_path: Path) -> None:
    async with migrated(databases.url(kind), tmp_path) as database:
        watch = await health_check(database, tmp_path)

        async def use() -> None:
            # Some users find the queue of the database full.
            with contextlib.suppress(ServiceError):
                async with database.write() as tx:
                    await service_state.get_int(tx, service_state.SOURCE_EPOCH)
                    await asyncio.sleep(HELD_S)

        users = [asyncio.create_task(use()) for _ in range(QUEUES[kind])]
        await asyncio.sleep(0)
        assert await check(watch) == ""
        assert all(user.done() for user in users[: QUEUES[kind] * 3 // 4])
        await asyncio.gather(*users)


@pytest.mark.full
async def test_hung_database_is_reported_with_all_connections_in_use(
    server: Server, on_server: Database, tmp_path: Path
) -> None:
    watch, is_over = await health_check(on_server, tmp_path), asyncio.Event()

    async def use() -> None:
        while not is_over.is_set():
            with contextlib.suppress(ServiceError):
                async with on_server.read() as tx:
                    await service_state.get_int(tx, service_state.SOURCE_EPOCH)

    users = [asyncio.create_task(use()) for _ in range(40)]
    try:
        assert await is_well(watch)
        with hung(server):
            problem = f"{on_server.location} does not answer: see the log"
            assert await check(watch) == problem
        await wait_until_healthy(watch)
    finally:
        is_over.set()
        await asyncio.gather(*users)


@pytest.mark.full
async def test_loss_and_recovery_are_logged_once(
    server: Server,
    on_server: Database,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = await health_check(on_server, tmp_path)

    def logged() -> list[str]:
        captured = capsys.readouterr()
        return [
            f"{level}: {what}"
            for line in (captured.out + captured.err).splitlines()
            for level in ("debug", "info", "warning", "error")
            for what in ("database unhealthy", "database healthy again")
            if level in line and what in line
        ]

    assert await is_well(watch)
    assert logged() == []
    await asyncio.to_thread(server.stop)
    for _ in range(3):
        await watch.check()
    assert logged() == ["warning: database unhealthy"]
    await asyncio.to_thread(server.start)
    await wait_until_healthy(watch)
    await watch.check()
    assert logged() == ["info: database healthy again"]


async def page_has(full_service: FullService, line: str, within_s: float = 30.0) -> None:
    """Waits for a line of the verbose health page. The service stays ready, because players need no database."""
    async with httpx.AsyncClient(
        base_url=f"http://{full_service.ready['metrics']}", timeout=PATIENCE_S
    ) as client:

        async def is_there() -> bool:
            answer = await client.get("/readyz?verbose")
            is_ready = answer.status_code == 200 and "\ncontrol: ok\n" in answer.text
            return is_ready and f"\ndatabase: {line}\n" in answer.text

        await eventually(is_there, within_s)
        is_up = f"\nhosting_control_database_up {int(line == 'ok')}\n"

        async def is_measured() -> bool:
            return is_up in (await client.get("/metrics")).text

        await eventually(is_measured)


@pytest.fixture
def faulty_service(tmp_path: Path) -> Iterator[KilledService]:
    faulty_service = KilledService(tmp_path / "s", compiled_library(), None)
    try:
        yield faulty_service
    finally:
        faulty_service.close()


@pytest.mark.full
async def test_removed_file_is_reported_until_it_is_back(faulty_service: KilledService) -> None:
    await asyncio.to_thread(faulty_service.start)
    await page_has(faulty_service, "ok")
    folder = faulty_service.data_dir / "control"
    names = [name for name in os.listdir(folder) if name.startswith("records.db")]
    aside = faulty_service.folder / "aside"
    aside.mkdir()
    for name in names:
        (folder / name).rename(aside / name)
    await page_has(faulty_service, "records.db does not answer: see the log; players are served")
    for name in names:
        (aside / name).rename(folder / name)
    await page_has(faulty_service, "ok")


@pytest.mark.full
async def test_failing_disk_is_reported_until_it_works(faulty_service: KilledService) -> None:
    await asyncio.to_thread(faulty_service.start)
    await page_has(faulty_service, "ok")
    for error, problem in (
        (errno.EIO, "records.db accepts reads but no changes: see the log"),
        (errno.EROFS, "records.db accepts reads but no changes: see the log"),
        (errno.ENOSPC, "records.db has a full disk: it accepts reads but no changes"),
    ):
        rule = faulty_service.shim.fail("pwrite", LOG, error=error)
        await page_has(faulty_service, f"{problem}; players are served")
        rule.release()
        await page_has(faulty_service, "ok")


@pytest.mark.full
async def test_dead_database_and_dead_control_plane_look_different(
    server: Server, tmp_path: Path
) -> None:
    full_service = FullService(tmp_path / "s", server.url())

    async def shows(*lines: str, without: str = "no such line") -> None:
        async def is_shown() -> bool:
            readiness = await client.get("/readyz?verbose")
            text = readiness.text + (await client.get("/metrics")).text
            is_ready = readiness.is_success and without not in text
            return is_ready and all(f"\n{line}\n" in text for line in lines)

        await eventually(is_shown)

    try:
        await asyncio.to_thread(full_service.start)
        address = f"http://{full_service.ready['metrics']}"
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as client:
            await shows("hosting_control_plane_up 1", "hosting_control_database_up 1")
            await asyncio.to_thread(server.stop)
            await shows("control: ok", "hosting_control_plane_up 1")
            await shows("hosting_control_database_up 0", without="\ndatabase: ok\n")
            await asyncio.to_thread(server.start)
            await shows("database: ok", "hosting_control_database_up 1")
            os.kill(full_service.control_pid(), signal.SIGSTOP)
            try:
                down = "control: down: its operations are refused, players are served"
                await shows(
                    down, "hosting_control_plane_up 0", without="hosting_control_database_up"
                )
            finally:
                os.kill(full_service.control_pid(), signal.SIGCONT)
            await shows("control: ok", "hosting_control_database_up 1")
    finally:
        full_service.close()
