from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from pyservice.control.server_runs import ServerRuns
from pyservice.control.servers import server_message
from pyservice.control.timestamps import now_ms
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.pb.hosting.v1 import servers_pb2 as pb
from pyservice.runtime.run_requests import RunEnd
from pyservice.storage import servers
from pyservice.storage.database import Database, open_database
from tests.control.feeder_setup import IDS, Source
from tests.support.databases import KINDS, Databases

pytestmark = pytest.mark.anyio

STARTED_MS: Final = 1_700_000_000_123


class DataPlane:
    def __init__(self) -> None:
        self.ended: list[str] = []

    async def place_server(self, request: runtime_pb2.PlaceServerRequest) -> None:
        raise AssertionError(request)

    async def leased_servers(self) -> Sequence[str]:
        return []

    async def end_lease(self, server_id: str) -> None:
        self.ended.append(server_id)


class ServerRecords:
    def __init__(self, database: Database, namespace_id: str) -> None:
        self.data = DataPlane()
        self.runs = ServerRuns(database, self.data, lambda: None)
        self._database = database
        self._namespace_id = namespace_id

    async def server(self) -> str:
        server_id = IDS.new()
        row = {
            "server_id": server_id,
            "namespace_id": self._namespace_id,
            "build_id": IDS.new(),
            "record": pb.Server(id=server_id).SerializeToString(),
            "create_ms": now_ms(),
            "is_placed": True,
        }
        async with self._database.write() as tx:
            await servers.add(tx, row, {}, ())
        return server_id

    async def record(self, server_id: str) -> pb.Server:
        async with self._database.read() as tx:
            row = await servers.find(tx, self._namespace_id, server_id)
        assert row is not None
        return server_message(row)


@pytest.fixture(params=KINDS)
async def server_records(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> AsyncIterator[ServerRecords]:
    async with contextlib.AsyncExitStack() as stack:
        database = open_database(databases.url(request.param), tmp_path)
        stack.push_async_callback(database.close)
        source = Source(database)
        await source.prepare()
        namespace_id = await source.namespace()
        yield ServerRecords(database, namespace_id)


async def test_start_is_recorded_after_an_early_end(server_records: ServerRecords) -> None:
    server_id = await server_records.server()
    await server_records.runs.over(server_id, RunEnd("exited", 7, started_ms=STARTED_MS))
    record = await server_records.record(server_id)
    assert (record.status, record.exit_code, record.started_at) == ("destroyed", 7, STARTED_MS)
    assert record.destroyed_at > STARTED_MS
    await server_records.runs.over(server_id, RunEnd("lost"))
    assert await server_records.record(server_id) == record, "the first reported end counts"


async def test_first_reported_start_is_kept(server_records: ServerRecords) -> None:
    server_id = await server_records.server()
    await server_records.runs.running(server_id)
    started_at = (await server_records.record(server_id)).started_at
    await server_records.runs.over(server_id, RunEnd("exited", 0, started_ms=STARTED_MS))
    assert (await server_records.record(server_id)).started_at == started_at > STARTED_MS


async def test_server_that_never_ran_has_no_start(server_records: ServerRecords) -> None:
    server_id = await server_records.server()
    await server_records.runs.over(
        server_id, RunEnd("exec_failed", message="There is no such program.")
    )
    record = await server_records.record(server_id)
    assert record.status == "failed"
    assert not record.HasField("started_at")


async def test_end_is_recorded_with_any_message_and_ends_the_lease(
    server_records: ServerRecords,
) -> None:
    server_id = await server_records.server()
    await server_records.runs.over(
        server_id, RunEnd("exec_failed", message="No program a\0b in \udcff.")
    )
    record = await server_records.record(server_id)
    assert record.status == "failed"
    assert record.failure.message == "No program a\ufffdb in \ufffd."
    assert server_records.data.ended == [server_id]
