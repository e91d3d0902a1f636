"""Comparison of server records with running processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.control.server_runs import ServerRuns
from pyservice.control.timestamps import now_ms
from pyservice.storage import servers
from pyservice.storage.database import open_database
from tests.control.feeder_setup import Source
from tests.control.test_server_runs import DataPlane, ServerRecords
from tests.runtime.node import RuntimeHost, open_host
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def opened_node(tmp_path: Path) -> AsyncIterator[RuntimeHost]:
    node = tmp_path / "node"
    node.mkdir()
    async with open_host(node, tmp_path / "builds") as created:
        yield created


@pytest.fixture
async def server_records(tmp_path: Path) -> AsyncIterator[ServerRecords]:
    database = open_database(None, tmp_path)
    try:
        source = Source(database)
        await source.prepare()
        created = ServerRecords(database, await source.namespace())
        created.runs = ServerRuns(database, DataPlane(), lambda: ("http://127.0.0.1", "127.0.0.1"))
        yield created
    finally:
        await database.close()


def unreadable(servers_folder: Path, server_id: str) -> Path:
    """Links the run specification to /proc/self/mem, so that reading it fails with an I/O error."""
    folder = servers_folder / server_id
    folder.mkdir()
    (folder / "state").write_text("status=starting\n\n")
    (folder / "spec").symlink_to("/proc/self/mem")
    return folder / "spec"


async def ended(server_records: ServerRecords, server_id: str) -> str:
    async def status() -> str | None:
        record = await server_records.record(server_id)
        return record.status if record.HasField("destroyed_at") else None

    return str(await eventually(status))


async def test_unreadable_run_folder_does_not_block_other_servers(
    server_records: ServerRecords, opened_node: RuntimeHost
) -> None:
    broken, stopped, lost = [await server_records.server() for _ in range(3)]
    spec = unreadable(opened_node.folder / "servers", broken)
    await server_records.runs.running(lost)
    async with server_records._database.write() as tx:
        await servers.request_stop(tx, stopped, now_ms(), 0)
    work = asyncio.create_task(server_records.runs.run(opened_node.supervisor))
    try:
        assert await ended(server_records, stopped) == "destroyed"
        assert await ended(server_records, lost) == "failed"
        assert not (await server_records.record(broken)).HasField("destroyed_at")
        assert server_records.runs.job.unexpected_errors > 0
        spec.unlink()
        assert (await opened_node.reports.end(broken)).reason == "lost"
    finally:
        await cancel_and_wait(work)
