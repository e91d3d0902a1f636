"""Records of server runs, and their comparison with leases and running processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.control.server_runs import ServerRuns, set_public_address
from pyservice.control.servers import server_message
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.pb.hosting.v1 import servers_pb2 as pb
from pyservice.runtime.run_requests import RunEnd
from pyservice.storage import servers
from pyservice.storage.database import Database, Record
from pyservice.timestamps import now_ms
from tests.control.feeder_setup import IDS, Source, wait_for
from tests.control.feeder_setup import source as source
from tests.control.service_fixtures import each_database
from tests.support.runtime_host import RuntimeHost, open_host
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

STARTED_MS: Final = 1_700_000_000_123
ADDRESSES: Final = ("http://127.0.0.1", "127.0.0.1")


class DataPlane:
    def __init__(self, *leased: str) -> None:
        self.leased = leased
        self.ended: list[str] = []

    async def place_server(self, request: runtime_pb2.PlaceServerRequest) -> None:
        raise AssertionError(request)

    async def leased_servers(self) -> Sequence[str]:
        return self.leased

    async def end_lease(self, server_id: str) -> None:
        self.ended.append(server_id)


class ServerRecords:
    def __init__(self, database: Database, namespace_id: str) -> None:
        self.data = DataPlane()
        self.runs = ServerRuns(database, self.data, lambda: ADDRESSES)
        self.database = database
        self._namespace_id = namespace_id

    async def server(self, network: pb.ServerNetwork | None = None) -> str:
        server_id = IDS.new()
        row = {
            "server_id": server_id,
            "namespace_id": self._namespace_id,
            "build_id": IDS.new(),
            "record": pb.Server(id=server_id, network=network).SerializeToString(),
            "create_ms": now_ms(),
            "is_placed": True,
        }
        async with self.database.write() as tx:
            await servers.add(tx, row, {}, ())
        return server_id

    async def record(self, server_id: str) -> pb.Server:
        return server_message(await self._row(server_id))

    async def node(self, server_id: str) -> str | None:
        node: str | None = (await self._row(server_id)).node
        return node

    async def _row(self, server_id: str) -> Record:
        async with self.database.read() as tx:
            row = await servers.find(tx, self._namespace_id, server_id)
        assert row is not None
        return row

    async def end_status(self, server_id: str) -> str:
        async def status() -> str | None:
            record = await self.record(server_id)
            return record.status if record.HasField("destroyed_at") else None

        return str(await eventually(status))


@pytest.fixture
async def server_records(database: Database, source: Source) -> ServerRecords:
    return ServerRecords(database, await source.namespace())


@each_database
async def test_start_is_recorded_after_an_early_end(server_records: ServerRecords) -> None:
    server_id = await server_records.server()
    await server_records.runs.report_end(server_id, RunEnd("exited", 7, started_ms=STARTED_MS))
    record = await server_records.record(server_id)
    assert (record.status, record.exit_code, record.started_at) == ("destroyed", 7, STARTED_MS)
    assert record.destroyed_at > STARTED_MS
    await server_records.runs.report_end(server_id, RunEnd("lost"))
    assert await server_records.record(server_id) == record, "the first reported end counts"


@each_database
async def test_end_is_recorded_with_its_node(server_records: ServerRecords) -> None:
    on_node, local = await server_records.server(), await server_records.server()
    await server_records.runs.report_end(on_node, RunEnd("lost", node="worker-1"))
    await server_records.runs.report_end(local, RunEnd("lost"))
    assert await server_records.node(on_node) == "worker-1"
    assert await server_records.node(local) is None


@each_database
async def test_ports_that_are_bound_later_get_their_address(server_records: ServerRecords) -> None:
    address = runtime_pb2.PublicPort(hostname="203.0.113.7", port=26_001)
    unbound = pb.ServerPort(protocol="udp")
    set_public_address(unbound, runtime_pb2.PublicPort())
    assert unbound == pb.ServerPort(protocol="udp")
    server_id = await server_records.server(pb.ServerNetwork(ports={"game": unbound}))
    await server_records.runs.record_ports(server_id, {"game": address, "unknown": address})
    [(name, port)] = (await server_records.record(server_id)).network.ports.items()
    assert (name, port.public_hostname, port.public_port) == ("game", "203.0.113.7", 26_001)
    moved = runtime_pb2.PublicPort(hostname="203.0.113.8", port=26_002)
    await server_records.runs.record_ports(server_id, {"game": moved})
    port = (await server_records.record(server_id)).network.ports["game"]
    assert (port.public_hostname, port.public_port) == ("203.0.113.8", 26_002)
    await server_records.runs.record_ports(IDS.new(), {"game": address})


@each_database
async def test_first_reported_start_is_kept(server_records: ServerRecords) -> None:
    server_id = await server_records.server()
    await server_records.runs.report_running(server_id)
    started_at = (await server_records.record(server_id)).started_at
    await server_records.runs.report_end(server_id, RunEnd("exited", 0, started_ms=STARTED_MS))
    assert (await server_records.record(server_id)).started_at == started_at > STARTED_MS


@each_database
async def test_server_that_never_ran_has_a_message_and_no_start(
    server_records: ServerRecords,
) -> None:
    server_id = await server_records.server()
    message = "No program a\0b in \udcff."
    await server_records.runs.report_end(server_id, RunEnd("exec_failed", message=message))
    record = await server_records.record(server_id)
    assert (record.status, record.HasField("started_at")) == ("failed", False)
    assert record.failure.message == "No program a\ufffdb in \ufffd."
    assert server_records.data.ended == [server_id], "the end of the server ends its lease"


class NoRuns:
    """Stands for the supervisor. Ends the creation of a server during the comparison."""

    def __init__(self, creating: contextlib.ExitStack) -> None:
        self._creating = creating

    def run_ids(self, owner: object) -> list[str]:
        self._creating.close()
        return []

    def is_known(self, run_id: str) -> bool:
        return False

    def stop_others(self, owner: object, ids: object) -> None:
        raise AssertionError(ids)


async def test_lease_of_a_server_in_creation_is_kept(database: Database) -> None:
    new, stray = IDS.new(), IDS.new()
    data_plane = DataPlane(new, stray)
    runs, creating = ServerRuns(database, data_plane, lambda: None), contextlib.ExitStack()
    creating.enter_context(runs.creating(new))
    supervisor: Any = NoRuns(creating)
    work = asyncio.create_task(runs.run(supervisor))
    try:
        await wait_for(lambda: stray in data_plane.ended)
    finally:
        await cancel_and_wait(work)
    assert data_plane.ended == [stray]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RuntimeHost]:
    (tmp_path / "node").mkdir()
    async with open_host(tmp_path / "node", tmp_path / "builds") as node:
        yield node


def unreadable(servers_folder: Path, server_id: str) -> Path:
    """Links the run specification to /proc/self/mem, so that reading it fails with an I/O error."""
    folder = servers_folder / server_id
    folder.mkdir()
    (folder / "state").write_text("status=starting\n\n")
    (folder / "spec").symlink_to("/proc/self/mem")
    return folder / "spec"


async def test_unreadable_run_folder_does_not_block_other_servers(
    server_records: ServerRecords, node: RuntimeHost
) -> None:
    broken, stopped, unknown = [await server_records.server() for _ in range(3)]
    spec = unreadable(node.folder / "servers", broken)
    await server_records.runs.report_running(unknown)
    async with server_records.database.write() as tx:
        await servers.request_stop(tx, stopped, now_ms(), 0)
    work = asyncio.create_task(server_records.runs.run(node.supervisor))
    try:
        assert await server_records.end_status(stopped) == "destroyed"
        assert await server_records.end_status(unknown) == "failed"
        assert not (await server_records.record(broken)).HasField("destroyed_at")
        assert server_records.runs.job.unexpected_errors > 0
        spec.unlink()
        assert (await node.reports.end(broken)).reason == "lost"
    finally:
        await cancel_and_wait(work)
