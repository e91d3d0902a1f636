"""Runs of lobbies with a real data plane and real keepers (docs/game-servers.md)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.control import lobby_runs
from pyservice.control.lobby_runs import LobbyRuns, TierSize
from pyservice.dataplane import runtime_connection
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.resolved_namespace import TIER, raw_id
from pyservice.ids import format_uuid
from pyservice.pb.hosting.internal.v1 import runtime_pb2 as pb
from pyservice.runtime.run_requests import Resources, RunEnd
from pyservice.storage import lobbies
from pyservice.storage.database import Database, Record
from tests.control.service_fixtures import each_database
from tests.support.runtime_host import RuntimeHost as Node
from tests.support.runtime_host import build_of, open_host, until
from tests.support.runtime_scene import BUILD_ID
from tests.support.runtime_scene import RuntimeScene as DataPlane
from tests.support.waiting import PATIENCE_S, eventually, is_blocked

pytestmark = pytest.mark.anyio

ADDRESSES: Final = ("127.0.0.1:1", "127.0.0.1:2")
READY: Final = format_uuid(bytes(16))
SIZES: Final = {TIER: TierSize(Resources(10, 64), 375)}


class DirectConnection:
    """Protocol between both planes without a socket."""

    def __init__(self, data: DataPlane) -> None:
        self._runners = data.runtime

    async def desired_lobbies(self, request: pb.WantedRequest) -> pb.WantedResponse:
        answer = await self._runners.desired_lobbies(request)
        # A call over a socket would yield to the event loop here.
        await asyncio.sleep(0)
        return answer

    async def report(self, report: pb.LobbyReport) -> None:
        await self._runners.report(pb.ReportRequest(reports=[report]))

    report_alone = report


class IdleDataPlane:
    async def desired_lobbies(self, request: pb.WantedRequest) -> pb.WantedResponse:
        raise AssertionError(request)

    async def report(self, report: pb.LobbyReport) -> None:
        return

    report_alone = report


class ChangingDataPlane(IdleDataPlane):
    """Always has a change."""

    def __init__(self) -> None:
        self.answers = 0

    async def desired_lobbies(self, request: pb.WantedRequest) -> pb.WantedResponse:
        self.answers += 1
        await asyncio.sleep(0.01)
        return pb.WantedResponse(run="run", sequence=self.answers)


class ReadyLobbyDataPlane(IdleDataPlane):
    """Wants one lobby, which is ready."""

    def __init__(self) -> None:
        self.has_answered = False

    async def desired_lobbies(self, request: pb.WantedRequest) -> pb.WantedResponse:
        if self.has_answered:
            await asyncio.Event().wait()
        self.has_answered = True
        lobby = pb.WantedLobby(lobby_id=READY, is_ready=True)
        return pb.WantedResponse(run="run", is_complete=True, lobbies=[lobby])


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

    async def wait_until_running(self, lobby_id: str) -> None:
        await self.node.reports.wait_for(lobby_id, "running")

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
            await cancel_and_wait(task)


@pytest.fixture
async def scenario(
    engine: Engine, database: Database, tmp_path: Path
) -> AsyncIterator[LobbyRunScenario]:
    data = DataPlane(engine)
    data.runtime.http_address, data.runtime.grpc_address = ADDRESSES
    await data.desired_lobbies()
    (tmp_path / "node").mkdir()
    async with open_host(tmp_path / "node", tmp_path / "builds") as node:
        yield LobbyRunScenario(data, node, database)


@pytest.mark.parametrize("is_ended", [False, True])
async def test_unstorable_lobby_blocks_no_other_and_is_retried_while_it_lives(
    scenario: LobbyRunScenario, is_ended: bool
) -> None:
    bad = await scenario.lobby()
    in_the_way = scenario.block_run_folder(bad)
    async with scenario.following() as runs:
        await until(lambda: runs.job.unexpected_errors > 0)
        if is_ended:
            await scenario.data.engine.processes.record_exit(raw_id(bad), None)
        await scenario.wait_until_running(await scenario.lobby())
        assert not scenario.node.supervisor.is_known(bad)
        shutil.rmtree(in_the_way)
        if not is_ended:
            await scenario.wait_until_running(bad)
        await scenario.wait_until_running(await scenario.lobby())
        assert scenario.node.supervisor.is_known(bad) != is_ended


@pytest.mark.parametrize("is_elastic", [False, True])
async def test_one_answer_has_the_changes_of_a_pause_on_a_cluster(
    scenario: LobbyRunScenario, monkeypatch: pytest.MonkeyPatch, is_elastic: bool
) -> None:
    """Each start and end would have an answer of its own."""
    monkeypatch.setattr(lobby_runs, "_PAUSE_S", 0.5)
    plane = ChangingDataPlane()
    capacity = pb.Capacity(kinds=["archive"], is_elastic=is_elastic)
    runs = LobbyRuns(scenario.database, plane, SIZES.get, str, lambda: capacity)
    running = asyncio.create_task(runs.run(scenario.node.supervisor))
    await until(lambda: plane.answers == 1)
    next_answer = asyncio.create_task(until(lambda: plane.answers > 1))
    assert await is_blocked(next_answer) == is_elastic
    await next_answer
    await cancel_and_wait(running)


async def test_unknown_tier_ends_its_lobby_only(scenario: LobbyRunScenario) -> None:
    lobby = await scenario.lobby()
    async with scenario.following() as runs:
        await scenario.wait_until_running(lobby)
        scenario.sizes.clear()
        affected = await scenario.lobby()
        run = await eventually(lambda: scenario.run(affected))
        assert (run.tier, run.reason, run.start_ms) == (TIER, "tier_unknown", None)
        assert run.message == f"tier {TIER} was removed: set another tier for the game mode"
        assert not scenario.is_live(affected)
        assert runs.job.unexpected_errors == 0
    async with scenario.following():
        late = await scenario.lobby()
        await until(lambda: not scenario.is_live(late))
    assert scenario.is_live(lobby), "a started lobby keeps its size"
    assert scenario.node.supervisor.is_known(lobby)


async def test_stopping_lobby_without_a_process_ends_as_stopped(scenario: LobbyRunScenario) -> None:
    """A control plane can be killed between the end of a process and its report."""
    lobby = await scenario.lobby()
    assert await scenario.data.engine.processes.stop(raw_id(lobby), only_if_idle=False)
    async with scenario.following():
        run = await eventually(lambda: scenario.run(lobby))
        assert (run.reason, run.message) == ("stopped", "")
        assert not scenario.is_live(lobby)


async def test_ready_lobby_is_kept(
    scenario: LobbyRunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may not have reported the start of its Pod yet, so abandoning it would end it."""
    supervisor, kept = scenario.node.supervisor, list[str]()

    def keep(run_id: str) -> bool:
        kept.append(run_id)
        return True

    monkeypatch.setattr(supervisor, "keep", keep)
    plane = ReadyLobbyDataPlane()
    runs = LobbyRuns(scenario.database, plane, SIZES.get, str, pb.Capacity)
    running = asyncio.create_task(runs.run(supervisor))
    await asyncio.wait_for(runs.has_synced.wait(), PATIENCE_S)
    await cancel_and_wait(running)
    assert kept == [READY]
    assert await scenario.run(READY) is None


async def test_start_waits_for_the_data_plane_addresses(scenario: LobbyRunScenario) -> None:
    runtime = scenario.data.runtime
    runtime.http_address = ""
    early = await scenario.lobby()
    async with scenario.following() as runs:
        await until(lambda: early in runs._postponed)
        assert not scenario.node.supervisor.is_known(early)
        runtime.http_address = ADDRESSES[0]
        await scenario.wait_until_running(early)
        # After a restart, the first commands arrive before the data plane reports its address.
        runtime.http_address = runtime.grpc_address = ""
        await scenario.wait_until_running(await scenario.lobby())
        assert runs.addresses == ADDRESSES


async def test_too_large_command_is_requested_separately(
    scenario: LobbyRunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_connection, "SPECS_BYTES_MAX", 1)
    lobbies = [await scenario.lobby() for _ in range(4)]
    ended = await scenario.lobby()
    scenario.data.run = ""
    complete = await scenario.data.desired_lobbies()
    assert complete.is_complete
    assert [one.is_later for one in complete.lobbies] == [False, True, True, True, True]
    assert [one.HasField("spec") for one in complete.lobbies] == [True, *[False] * 4]
    await scenario.data.engine.processes.record_exit(raw_id(ended), None)
    async with scenario.following() as runs:
        for lobby in [*lobbies, later := await scenario.lobby()]:
            await scenario.wait_until_running(lobby)
        assert runs.job.unexpected_errors == 0
        assert not runs._postponed
    assert all(scenario.is_live(lobby) for lobby in [*lobbies, later])
    assert not scenario.node.supervisor.is_known(ended), "an ended lobby is not requested again"


@each_database
async def test_end_is_recorded_with_any_message(database: Database) -> None:
    runs = LobbyRuns(database, IdleDataPlane(), SIZES.get, str, pb.Capacity)
    lobby_id = format_uuid(bytes(16))
    await runs.report_end(lobby_id, RunEnd("exec_failed", message="No program a\0b."), TIER)
    async with database.read() as tx:
        run = (await lobbies.find_ended_runs(tx, [lobby_id]))[lobby_id]
    assert (run.reason, run.message) == ("exec_failed", "No program a\ufffdb.")
    assert run.node is None


@each_database
async def test_end_is_recorded_with_its_node(database: Database) -> None:
    runs = LobbyRuns(database, IdleDataPlane(), SIZES.get, str, pb.Capacity)
    lobby_id = format_uuid(bytes(16))
    await runs.report_end(lobby_id, RunEnd("lost", node="worker-1"), TIER)
    async with database.read() as tx:
        assert (await lobbies.find_ended_runs(tx, [lobby_id]))[lobby_id].node == "worker-1"
