"""Database health check during a loss and after recovery."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pyservice.control import database_health
from pyservice.control.database_health import DatabaseHealthCheck
from pyservice.errors import ServiceError
from pyservice.storage import service_state
from pyservice.storage.database import Database, open_database
from pyservice.storage.migrations import migrate
from tests.faults.control.killed_service import KilledService
from tests.faults.shim import compile_library
from tests.support.databases import KINDS, Databases, Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.full_service import FullService, eventually
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


@contextlib.contextmanager
def hung(server: Server) -> Iterator[None]:
    query = "\\t on\nSELECT pid FROM pg_stat_activity WHERE application_name = 'pyservice';"
    serving = [int(word) for word in server.psql(query).split() if word.isdigit()]
    stalled = [server.pid, *serving]
    for pid in stalled:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stalled:
            os.kill(pid, signal.SIGCONT)


async def migrated(url: str | None, folder: Path) -> Database:
    database = open_database(url, folder)
    await migrate(database, is_allowed=True)
    return database


async def test_healthy_database_is_written_periodically(tmp_path: Path) -> None:
    database = await migrated(None, tmp_path)
    watch = DatabaseHealthCheck(database, write_s=3_600)
    assert await is_well(watch)
    with sqlite3.connect(tmp_path / "records.db") as other:
        [(first,)] = other.execute("SELECT value FROM service_state WHERE name = 'written_ms'")
        assert await is_well(watch)
        [(second,)] = other.execute("SELECT value FROM service_state WHERE name = 'written_ms'")
    other.close()
    assert first == second
    await database.close()


async def test_stopped_server_is_reported_until_it_is_back(server: Server, tmp_path: Path) -> None:
    database = await migrated(server.url(), tmp_path)
    watch = DatabaseHealthCheck(database)
    assert await is_well(watch)
    await asyncio.to_thread(server.stop)
    assert await check(watch) == "does not answer: see the log"
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(30):
        while await check(watch):
            await asyncio.sleep(0.01)
    assert watch.job.unexpected_errors == 0
    await database.close()


async def test_locked_database_takes_no_changes(
    tmp_path: Path,
) -> None:
    database = await migrated(None, tmp_path)
    watch = DatabaseHealthCheck(database)
    other = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert await check(watch) == "is read and takes no changes: see the log"
    other.rollback()
    other.close()
    assert await is_well(watch)
    await database.close()


# Busy database ------------------------------------------------------------------------------------

HELD_S = 0.25
QUEUES = {"sqlite": 12, "postgresql": 16 * 12}
"""With this number of waiting database users, the last user waits longer than the health check's timeout."""


@pytest.mark.parametrize("kind", KINDS)
async def test_busy_database_is_healthy(kind: str, databases: Databases, tmp_path: Path) -> None:
    database = await migrated(databases.url(kind), tmp_path)
    watch = DatabaseHealthCheck(database)

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
    await database.close()


async def test_hung_database_is_reported_with_all_connections_in_use(
    server: Server, tmp_path: Path
) -> None:
    database = await migrated(server.url(), tmp_path)
    watch = DatabaseHealthCheck(database)
    is_over = asyncio.Event()

    async def use() -> None:
        while not is_over.is_set():
            with contextlib.suppress(ServiceError):
                async with database.read() as tx:
                    await service_state.get_int(tx, service_state.SOURCE_EPOCH)

    users = [asyncio.create_task(use()) for _ in range(40)]
    try:
        assert await is_well(watch)
        with hung(server):
            assert await check(watch) == "does not answer: see the log"
        async with asyncio.timeout(PATIENCE_S):
            while await check(watch):
                await asyncio.sleep(POLL_S)
    finally:
        is_over.set()
        await asyncio.gather(*users)
    await database.close()


async def test_loss_and_recovery_are_logged_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = await migrated(server.url(), tmp_path)
    watch = DatabaseHealthCheck(database)

    def logged() -> list[str]:
        captured = capsys.readouterr()
        lines = (captured.out + captured.err).splitlines()
        return [
            f"{level}: {what}"
            for line in lines
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
    async with asyncio.timeout(PATIENCE_S):
        while await check(watch):
            await asyncio.sleep(POLL_S)
    await watch.check()
    assert logged() == ["info: database healthy again"]
    await database.close()


# The whole service --------------------------------------------------------------------------------


async def page_has(full_service: FullService, line: str, within_s: float = 30.0) -> None:
    """Waits for a line of the verbose health page. The service stays ready, because players need no database."""
    async with httpx.AsyncClient(
        base_url=f"http://{full_service.said['metrics']}", timeout=PATIENCE_S
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
    created = KilledService(tmp_path / "s", compile_library(tmp_path), None)
    try:
        yield created
    finally:
        created.close()


async def test_removed_file_is_reported_until_it_is_back(faulty_service: KilledService) -> None:
    await asyncio.to_thread(faulty_service.start)
    await page_has(faulty_service, "ok")
    folder = faulty_service.data_dir / "control"
    names = [name for name in os.listdir(folder) if name.startswith("records.db")]
    away = faulty_service.folder / "away"
    away.mkdir()
    for name in names:
        (folder / name).rename(away / name)
    await page_has(faulty_service, "does not answer: see the log; players are served")
    for name in names:
        (away / name).rename(folder / name)
    await page_has(faulty_service, "ok")


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENOSPC])
async def test_full_disk_is_reported_until_it_has_space(
    faulty_service: KilledService, error: int
) -> None:
    await asyncio.to_thread(faulty_service.start)
    await page_has(faulty_service, "ok")
    rule = faulty_service.shim.fail("pwrite", LOG, error=error)
    if error == errno.ENOSPC:
        await page_has(
            faulty_service, "its disk is full: it is read and takes no changes; players are served"
        )
    else:
        await page_has(
            faulty_service, "is read and takes no changes: see the log; players are served"
        )
    rule.release()
    await page_has(faulty_service, "ok")


async def test_service_reports_a_stopped_database_server(
    databases: Databases, tmp_path: Path
) -> None:
    full_service = FullService(tmp_path / "s", databases.url("postgresql"))
    try:
        await asyncio.to_thread(full_service.start)
        await page_has(full_service, "ok")
    finally:
        full_service.close()
