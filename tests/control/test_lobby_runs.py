"""Runs of lobbies with a real data plane and real keepers (docs/game-servers.md)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from pyservice.control.lobby_runs import LobbyRuns, TierSize
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.ids import format_uuid
from pyservice.pb.hosting.internal.v1 import runtime_pb2 as pb
from pyservice.runtime.run_requests import Resources, RunEnd
from pyservice.storage import lobbies
from pyservice.storage.database import Database, Record, open_database
from pyservice.storage.migrations import migrate
from tests.dataplane.runtime_scene import BUILD_ID
from tests.dataplane.runtime_scene import RuntimeScene as DataPlane
from tests.runtime.node import RuntimeHost as Node
from tests.runtime.node import build_of, open_host, until
from tests.support.databases import KINDS, Databases
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

TIER: Final = "basic-1d1"
ADDRESSES: Final = ("127.0.0.1:1", "127.0.0.1:2")
SIZES: Final = {TIER: TierSize(Resources(10, 64), 375)}


class DirectConnection:
    """Protocol between both planes without a socket."""

    def __init__(self, data: DataPlane) -> None:
        self._runners = data.runtime

    async def wanted(self, request: pb.WantedRequest) -> pb.WantedResponse:
        answer = await self._runners.wanted(request)
        # A call over a socket would yield to the event loop here.
        await asyncio.sleep(0)
        return answer

    async def report(self, report: pb.LobbyReport) -> None:
        await self._runners.report(pb.ReportRequest(reports=[report]))


class IdleDataPlane:
    async def wanted(self, request: pb.WantedRequest) -> pb.WantedResponse:
        raise AssertionError(request)

    async def report(self, report: pb.LobbyReport) -> None:
        return


class LobbyRunScenario:
    def __init__(self, data: DataPlane, node: Node, database: Database) -> None:
        self.data = data
        self.node = node
        self.database = database
        self.sizes = dict(SIZES)
        node.store.archives[BUILD_ID] = build_of("sh", "-c", "exec sleep 3600")

    async def lobby(self) -> str:
        namespace = self.data.namespaces.resolved(self.data.client().namespace_id)
        template = self.data.lobby_templates.for_idle(
            namespace, namespace.modes["private"], "north"
        )
        assert template is not None
        servers = self.data.engine.processes
        created = await servers.start_idle(namespace.namespace_id, namespace.version_id, template)
        return format_uuid(created)

    def is_live(self, lobby_id: str) -> bool:
        return self.data.engine.lobby(raw_id(lobby_id)) is not None

    def block_run_folder(self, lobby_id: str) -> Path:
        """Creates folders at the paths of the run's files, so that the run cannot be stored."""
        path = self.node.folder / "servers" / lobby_id
        for name in ("spec", "state"):
            (path / name).mkdir(parents=True)
        return path

    async def run(self, lobby_id: str) -> Record | None:
        async with self.database.read() as tx:
            return (await lobbies.find_ended_runs(tx, [lobby_id])).get(lobby_id)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[LobbyRuns]:
        runs = LobbyRuns(
            self.database,
            DirectConnection(self.data),
            self.sizes.get,
            lambda http: f"http://{http}",
            lambda: pb.Capacity(kinds=["archive"], free_cpu_millicores=4_000, free_memory_mb=4_000),
        )
        task = asyncio.create_task(runs.run(self.node.supervisor))
        try:
            yield runs
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def run_scenario(engine: Engine, tmp_path: Path) -> AsyncIterator[LobbyRunScenario]:
    database = open_database(None, tmp_path)
    await migrate(database, is_allowed=True)
    data = DataPlane(engine)
    data.runtime.http_address, data.runtime.grpc_address = ADDRESSES
    await data.wanted()
    (tmp_path / "node").mkdir()
    async with open_host(tmp_path / "node", tmp_path / "builds") as node:
        yield LobbyRunScenario(data, node, database)
    await database.close()


async def test_untakable_lobby_is_retried_and_blocks_no_other(
    run_scenario: LobbyRunScenario,
) -> None:
    bad = await run_scenario.lobby()
    in_the_way = run_scenario.block_run_folder(bad)
    good = await run_scenario.lobby()
    async with run_scenario.following() as runs:
        await run_scenario.node.reports.wait_for(good, "running")
        later = await run_scenario.lobby()
        await run_scenario.node.reports.wait_for(later, "running")
        assert runs.job.unexpected_errors > 0
        assert not run_scenario.node.supervisor.is_known(bad)
        shutil.rmtree(in_the_way)
        await run_scenario.node.reports.wait_for(bad, "running")


async def test_ended_untakable_lobby_is_not_retried(run_scenario: LobbyRunScenario) -> None:
    bad = await run_scenario.lobby()
    in_the_way = run_scenario.block_run_folder(bad)
    async with run_scenario.following() as runs:
        await until(lambda: runs.job.unexpected_errors > 0)
        await run_scenario.data.engine.processes.exited(raw_id(bad), None)
        good = await run_scenario.lobby()
        await run_scenario.node.reports.wait_for(good, "running")
        shutil.rmtree(in_the_way)
        last = await run_scenario.lobby()
        await run_scenario.node.reports.wait_for(last, "running")
        assert not run_scenario.node.supervisor.is_known(bad)


async def test_unknown_tier_ends_its_lobby_only(run_scenario: LobbyRunScenario) -> None:
    started = await run_scenario.lobby()
    async with run_scenario.following() as runs:
        await run_scenario.node.reports.wait_for(started, "running")
        run_scenario.sizes.clear()
        affected = await run_scenario.lobby()
        run = await eventually(lambda: run_scenario.run(affected))
        assert (run.tier, run.reason, run.start_ms) == (TIER, "tier_unknown", None)
        assert run.message == f"tier {TIER} was removed: set another tier for the game mode"
        assert not run_scenario.is_live(affected)
        assert runs.job.unexpected_errors == 0
    async with run_scenario.following():
        late = await run_scenario.lobby()
        await until(lambda: not run_scenario.is_live(late))
    assert run_scenario.is_live(started), "it has begun with a size"
    assert run_scenario.node.supervisor.is_known(started)


async def test_start_waits_for_the_data_plane_addresses(
    run_scenario: LobbyRunScenario,
) -> None:
    runtime = run_scenario.data.runtime
    runtime.http_address = ""
    early = await run_scenario.lobby()
    async with run_scenario.following() as runs:
        await until(lambda: early in runs._left)
        assert not run_scenario.node.supervisor.is_known(early)
        runtime.http_address = ADDRESSES[0]
        await run_scenario.node.reports.wait_for(early, "running")
        # After a restart, the first commands arrive before the data plane reports its address.
        runtime.http_address = runtime.grpc_address = ""
        later = await run_scenario.lobby()
        await run_scenario.node.reports.wait_for(later, "running")
        assert runs.addresses == ADDRESSES


@pytest.mark.parametrize("kind", KINDS)
async def test_end_is_recorded_with_any_message(
    kind: str, databases: Databases, tmp_path: Path
) -> None:
    database = open_database(databases.url(kind), tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        await migrate(database, is_allowed=True)
        runs = LobbyRuns(database, IdleDataPlane(), SIZES.get, str, pb.Capacity)
        lobby_id = format_uuid(bytes(16))
        await runs.over(lobby_id, RunEnd("exec_failed", message="No program a\0b."), TIER)
        async with database.read() as tx:
            run = (await lobbies.find_ended_runs(tx, [lobby_id]))[lobby_id]
        assert (run.reason, run.message) == ("exec_failed", "No program a\ufffdb.")
