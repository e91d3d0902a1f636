"""Desired lobbies, process reports and capacity with a simulated runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from pyservice.app.lobby_processes import LobbyProcesses
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_resources import Resources
from pyservice.dataplane.native import Lobby
from pyservice.dataplane.player_sessions import PlayerSessions
from pyservice.dataplane.resolved_namespace import TIER, raw_id
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid, parse_uuid
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.settings import load
from tests.support.data_plane_service import running_engine
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import GAME_ID, NAMESPACE_ID, version
from tests.support.runtime_scene import (
    BUILD_ID,
    MODES,
    RuntimeScene,
    asking,
    connected_scene,
    outcome,
)
from tests.support.waiting import PATIENCE_S, eventually, until_met

pytestmark = pytest.mark.anyio

NO_LOBBY = "MATCHMAKER_NO_AVAILABLE_LOBBIES"
OTHER_VERSION_ID = "0192f000-0000-7000-8000-0000000000e9"
THIRD_VERSION_ID = "0192f000-0000-7000-8000-0000000000ea"
ONE_IDLE: dict[str, Any] = {"idle_lobbies": {"min": 1, "max": 1}, "regions": {"north": {}}}
NAMES = {"region_display_name": "North", "provider_display_name": "Self-hosted"}
NORTH: dict[str, Any] = {"regions": [{"name_id": "north", **NAMES, "latitude": 60, "longitude": 0}]}


def switch_version(scene: RuntimeScene) -> None:
    versions = [version(version_id=OTHER_VERSION_ID, **MODES)]
    scene.feed(versions=versions, current_version_id=OTHER_VERSION_ID)


async def test_find_starts_a_lobby_and_returns_after_ready(connected: RuntimeScene) -> None:
    scene = connected
    async with scene.starting(scene.find(tags={"map": "sea"})) as (lobby, finding):
        spec = lobby.spec
        assert (spec.build_id, spec.game_mode, spec.region) == (BUILD_ID, "duel", "north")
        assert (list(spec.args), dict(spec.env)) == (["--map", "$(MAP)"], {"MAP": "sea"})
        assert dict(spec.tags) == {"map": "sea"}
        assert (spec.game_id, spec.tier, spec.network_mode) == (GAME_ID, TIER, "bridge")
        protocols = {name: port.protocol for name, port in spec.ports.items()}
        assert protocols == {"game": "udp", "web": "https"}
        assert scene.server_with(spec.lobby_token).lobby_id == parse_uuid(lobby.lobby_id)

        await scene.place_process(lobby.lobby_id)
        routes = {route.port_name: route for route in (await scene.follow()).routes}
        backend = (routes["game"].backend_address, routes["game"].backend_port)
        assert backend == ("127.0.0.1", 12_000)
        async with asking(scene.ready(lobby.lobby_id)) as getting_ready:
            await scene.follow(outcome(routes["game"], "LISTENING"))
            assert not getting_ready.done()
            await scene.follow(outcome(routes["web"], "LISTENING"))
            await asyncio.wait_for(getting_ready, PATIENCE_S)
        placement = await asyncio.wait_for(finding, PATIENCE_S)
    port = placement.ports["game"]
    assert (port.hostname, port.port) == ("192.0.2.7", routes["game"].port)
    assert port.host == f"192.0.2.7:{port.port}"
    assert not placement.ports["web"].is_tls, "no certificate is configured"
    assert 26_000 <= placement.ports["web"].port <= 31_999
    await scene.connected(placement.lobby.lobby_id, placement.player.token)


async def test_no_lobby_without_a_runtime(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    error = await expect_error(scene.find())
    assert (error.code, error.metadata) == (NO_LOBBY, {"reason": "no_runtime"})
    error = await expect_error(scene.create())
    assert (error.code, error.metadata) == ("CAPACITY_EXHAUSTED", {"reason": "no_runtime"})
    await scene.desired_lobbies(kinds=())
    assert (await expect_error(scene.create())).code == "CAPACITY_EXHAUSTED", (
        "a runtime without kinds does not count"
    )
    await scene.desired_lobbies()
    error = await expect_error(scene.find("attached"))
    assert (error.code, error.metadata) == (NO_LOBBY, {"reason": "no_build"})
    error = await expect_error(scene.find(prevent_auto_create_lobby=True))
    assert (error.code, error.metadata) == (NO_LOBBY, {})
    assert (await scene.desired_lobbies()).lobbies == []


async def test_create_applies_overrides(connected: RuntimeScene) -> None:
    scene = connected
    request = scene.create(
        max_players=1, tags={"a": "b"}, lobby_config=b'{"seed": 18446744073709551615}'
    )
    async with asking(request) as creating:
        [started_lobby] = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
        spec = started_lobby.spec
        assert spec.lobby_config == b'{"seed": 18446744073709551615}'
        limits = (spec.max_players, spec.max_players_direct, spec.max_players_party)
        assert limits == (1, 1, 1)
        await scene.serve()
        response = await scene.placed(started_lobby.lobby_id, creating)
    assert response.lobby.lobby_id == started_lobby.lobby_id
    page = await scene.matchmaker.reply("list", pb.ListLobbiesRequest(), scene.client())
    listed = pb.ListLobbiesResponse.FromString(page.proto())
    assert [lobby.lobby_id for lobby in listed.lobbies] == [started_lobby.lobby_id]
    async with scene.starting(scene.create()) as (other, _):
        assert other.lobby_id != started_lobby.lobby_id, "an existing lobby is never used"


async def test_start_failure_reaches_all_waiting_finds(connected: RuntimeScene) -> None:
    scene = connected
    by_back_end = scene.find(caller=scene.back_end())
    async with asking(scene.find()) as first, asking(by_back_end) as second:
        [lobby] = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
        sentence = "The module 10.0.0.1 is missing"
        report = runtime_pb2.Over(
            exit_code=3, reason="exited", kind="missing-module", message=sentence
        )
        await scene.report(lobby.lobby_id, over=report)
        for waiting, added in ((first, {}), (second, {"problem": sentence})):
            error = await expect_error(waiting)
            assert error.code == "MATCHMAKER_LOBBY_START_FAILED"
            assert error.metadata == {
                "lobby_id": lobby.lobby_id,
                "reason": "exited",
                "exit_code": "3",
                "kind": "missing-module",
                **added,
            }
            assert sentence not in error.detail
    await scene.report(lobby.lobby_id, over=report)
    assert list((await scene.desired_lobbies()).gone) == [lobby.lobby_id]


async def test_idle_lobbies_stay_within_their_bounds(engine: Engine) -> None:
    mode = {**MODES["duel"], "idle_lobbies": {"min": 2, "max": 3}, "regions": {"north": {}}}
    scene = RuntimeScene(engine, duel=mode)
    namespace = scene.client().namespace_id
    scene.lobby_scaler.namespace_changed(namespace)
    assert await scene.scale() == []
    scene.lobby_scaler.namespace_changed(namespace)
    await scene.lobby_scaler.step()
    first = [lobby.lobby_id for lobby in (await scene.desired_lobbies()).lobbies]
    assert len(first) == 2
    assert await scene.scale() == [], "two start already"
    await scene.serve()
    for lobby_id in first:
        await scene.ready(lobby_id)
    placement = await scene.find()
    [third] = await scene.scale()
    assert placement.lobby.lobby_id in first
    await scene.serve()
    await scene.ready(third.lobby_id)
    await scene.disconnected(placement.lobby.lobby_id, placement.player.token)
    assert await scene.scale() == [], "three are not too many"


@pytest.mark.parametrize(
    ("is_ready", "was_used", "code", "is_paused"),
    [
        (False, False, 0, True),
        (True, False, 0, True),
        (True, False, 3, True),
        (True, True, 3, True),
        (True, True, 0, False),
    ],
)
async def test_regular_exits_are_replaced_at_once(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    is_ready: bool,
    was_used: bool,
    code: int,
    is_paused: bool,
) -> None:
    scene = RuntimeScene(engine, duel={**MODES["duel"], **ONE_IDLE})
    parts = LobbyProcesses(load(NORTH, environ={}), engine, scene.namespaces)
    scene.runtime, scene.lobby_scaler = parts.runtime, parts.lobby_scaler
    await scene.desired_lobbies()
    scene.lobby_scaler.namespace_changed(scene.client().namespace_id)
    [first] = await scene.scale()
    if is_ready:
        await scene.ready_at_once(first.lobby_id)
        await scene.lobby_scaler.step()
    if was_used:
        placement = await scene.find()
        await scene.disconnected(first.lobby_id, placement.player.token)
    exited = engine.processes.record_exit

    async def exited_and_looked(lobby: bytes, exit_code: int | None) -> bool:
        has_ended = await exited(lobby, exit_code)
        await scene.lobby_scaler.step()
        return has_ended

    monkeypatch.setattr(engine.processes, "record_exit", exited_and_looked)
    await scene.report(first.lobby_id, over=runtime_pb2.Over(exit_code=code, reason="exited"))
    answer = await scene.desired_lobbies()
    assert list(answer.gone) == [first.lobby_id]
    assert len(answer.lobbies) == (0 if is_paused else 1)


async def test_closed_loading_lobby_gets_its_grace_period(engine: Engine) -> None:
    scene = await connected_scene(engine, duel={**MODES["duel"], **ONE_IDLE})
    scene.lobby_scaler.namespace_changed(scene.client().namespace_id)
    [first] = await scene.scale()
    await scene.serve()
    await scene.ready(first.lobby_id)
    for is_closed in (True, False):
        closing = pb.SetLobbyClosedRequest(is_closed=is_closed)
        await scene.fleet.set_closed(closing, scene.server(first.lobby_id))
        assert await scene.scale() == [], "the lobby is not stopped, and no other is started"
    assert (await scene.find()).lobby.lobby_id == first.lobby_id


async def test_old_lobbies_stop_when_empty_after_a_switch(connected: RuntimeScene) -> None:
    scene = connected
    placement, lobby = await scene.started()
    switch_version(scene)
    namespace = scene.client().namespace_id
    scene.lobby_scaler.namespace_changed(namespace)
    assert await scene.scale() == [], "the lobby has a player"
    await scene.disconnected(lobby.lobby_id, placement.player.token)
    [stopping] = await scene.scale()
    assert (stopping.lobby_id, stopping.is_stopping) == (lobby.lobby_id, True)
    joining = await expect_error(scene.join(lobby.lobby_id))
    assert joining.code == "MATCHMAKER_LOBBY_DRAINING"
    await scene.report(lobby.lobby_id, over=runtime_pb2.Over(exit_code=0, reason="stopped"))
    assert (await expect_error(scene.join(lobby.lobby_id))).code == "MATCHMAKER_LOBBY_STOPPED"


async def test_waiting_find_gets_its_lobby_after_a_switch(connected: RuntimeScene) -> None:
    scene = connected
    async with asking(scene.find(tags={"map": "sea"})) as finding:
        await eventually(lambda: _starts(scene))
        for name in (OTHER_VERSION_ID, THIRD_VERSION_ID):
            scene.feed(versions=[version(version_id=name)], current_version_id=name)
        scene.run, scene.sequence = "", 0
        [lobby] = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
        assert dict(lobby.spec.env) == {"MAP": "sea"}, "with the values of its creation"
        assert scene.runtime._resources_of(raw_id(lobby.lobby_id)) == (1000, 2048)
        await scene.serve()
        placement = await scene.placed(lobby.lobby_id, finding)
    await scene.connected(placement.lobby.lobby_id, placement.player.token)
    assert len(scene.runtime.other_versions) == 1
    await scene.desired_lobbies()
    assert not len(scene.runtime.other_versions)


async def _starts(scene: RuntimeScene) -> bool:
    return bool(scene.engine.processes.wanted_since(0)[2])


async def test_repeated_exit_report_is_one_crash(
    connected: RuntimeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = connected
    crashed: list[str] = []
    scene.runtime.on_lobby_crashed = lambda lobby: crashed.append(format_uuid(lobby.id))
    servers = scene.engine.processes
    full = ServiceError("STORAGE_FULL")
    async with scene.starting() as (started_lobby, finding):
        report = runtime_pb2.Over(exit_code=1, reason="exited")
        monkeypatch.setattr(type(servers), "record_exit", AsyncMock(side_effect=full))
        for _ in range(3):
            assert (
                await expect_error(scene.report(started_lobby.lobby_id, over=report))
            ).code == full.code
        monkeypatch.undo()
        await scene.report(started_lobby.lobby_id, over=report)
        assert (await expect_error(finding)).code == "MATCHMAKER_LOBBY_START_FAILED"
    await scene.report(started_lobby.lobby_id, over=report)
    assert crashed == [started_lobby.lobby_id]


@pytest.mark.parametrize("ask", [RuntimeScene.find, RuntimeScene.create])
async def test_find_that_waited_for_a_runtime_uses_its_version(
    engine: Engine, ask: Callable[[RuntimeScene], Awaitable[Any]]
) -> None:
    scene = RuntimeScene(engine)
    scene.runtime.expect_runtime()
    async with asking(ask(scene)) as finding:
        for _ in range(20):
            await asyncio.sleep(0)
        switch_version(scene)
        assert (await scene.desired_lobbies()).lobbies == []
        [lobby] = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
        assert lobby.version_id == OTHER_VERSION_ID
        assert lobby.spec.build_id == BUILD_ID
        await scene.serve()
        placement = await scene.placed(lobby.lobby_id, finding)
    assert placement.lobby.lobby_id == lobby.lobby_id


MANY: Final = 200


async def test_refusal_without_capacity_names_tier_and_free_capacity(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    await scene.report_free(2_000, 1_500)
    shortage = {
        "reason": "capacity",
        "tier": TIER,
        "tier_cpu_millicores": "1000",
        "tier_memory_mb": "2048",
        "free_cpu_millicores": "2000",
        "free_memory_mb": "1500",
    }
    with capture_logs() as events:
        for code, call in ((NO_LOBBY, scene.find), ("CAPACITY_EXHAUSTED", scene.create)):
            error = await expect_error(call())
            assert (error.code, error.metadata) == (code, shortage)
            assert f"tier {TIER} needs 1000 millicores and 2048 MB" in error.detail
    assert scene.lobby_templates.capacity_refusals.by_tier == {TIER: 2}
    [event] = events
    assert event["event"] == "no capacity for another lobby"
    assert (event["tier"], event["refusals"]) == (TIER, 1)


async def test_timeout_of_a_start_names_the_lobby_that_is_not_ready(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    await scene.desired_lobbies()
    caller = scene.client()
    deadline = asyncio.get_running_loop().time() + 0.05
    caller = replace(caller, call=replace(caller.call, deadline=deadline))
    request = pb.FindLobbyRequest(game_modes=["duel"])
    error = await expect_error(scene.matchmaker.find(request, caller))
    [lobby] = (await scene.desired_lobbies()).lobbies
    assert error.code == "DEADLINE_EXCEEDED"
    assert error.metadata == {"lobby_id": lobby.lobby_id, "reason": "lobby_not_ready"}
    assert "the server has not called ready" in error.detail


@pytest.mark.parametrize(
    ("adapter", "missing"),
    [
        ({}, "call lobbies/ready when the server listens"),
        (
            {"adapter": {"ready": "log", "log_match": "Done"}},
            'no line of its log matched log_match "Done"',
        ),
    ],
)
async def test_create_of_a_lobby_that_was_never_ready_is_explained(
    tmp_path: Path, adapter: dict[str, Any], missing: str
) -> None:
    async with running_engine(tmp_path, start_limit_ms=1_000) as engine:
        scene = RuntimeScene(engine, duel={**MODES["duel"], **adapter})
        await scene.desired_lobbies()
        request = pb.CreateLobbyRequest(game_mode="duel")
        by_back_end = scene.matchmaker.create(request, scene.back_end())
        async with asking(scene.create()) as by_player, asking(by_back_end) as creating:
            lobbies = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
            ports = "Nothing listens at PORT_GAME=12000."
            scene.unreachable = {lobby.lobby_id: ports for lobby in lobbies}
            await scene.desired_lobbies()
            error = await expect_error(by_player)
            assert error.metadata.keys() == {"lobby_id", "reason", "kind"}
            assert error.metadata["kind"] == "never-ready"
            error = await expect_error(creating)
    problem = f"The lobby was not ready after 1 s: {missing}. {ports}"
    assert error.metadata["problem"] == problem


async def test_lobby_at_which_nothing_listens_gets_no_players_until_it_does(
    connected: RuntimeScene,
) -> None:
    scene = connected
    async with scene.starting(scene.find()) as (lobby, finding):
        scene.unreachable = {lobby.lobby_id: "Nothing listens at PORT_GAME=12000."}
        await scene.desired_lobbies()
        await scene.serve()
        await scene.placed(lobby.lobby_id, finding)
    error = await expect_error(scene.find(prevent_auto_create_lobby=True))
    assert error.code == NO_LOBBY
    error = await expect_error(scene.join(lobby.lobby_id))
    expected = {"lobby_id": lobby.lobby_id, "kind": "nothing-listens"}
    assert (error.code, error.metadata) == ("MATCHMAKER_LOBBY_UNREACHABLE", expected)
    error = await expect_error(scene.join(lobby.lobby_id, scene.back_end()))
    assert error.metadata == {**expected, "problem": "Nothing listens at PORT_GAME=12000."}
    async with scene.starting(scene.find()) as (other, finding):
        await scene.serve()
        placement = await scene.placed(other.lobby_id, finding)
    assert placement.lobby.lobby_id == other.lobby_id, "find starts another one"
    scene.unreachable = {}
    await scene.desired_lobbies()
    placement = await scene.find(prevent_auto_create_lobby=True)
    assert placement.lobby.lobby_id == lobby.lobby_id


async def test_new_lobbies_reduce_free_capacity(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    await scene.report_free(2_500, 1_000_000)
    async with asking(scene.create()), asking(scene.create()):
        await until_met(lambda: len(engine.processes.wanted_since(0)[2]) >= 2)
        assert (await expect_error(scene.create())).code == "CAPACITY_EXHAUSTED"
        waiting = await expect_error(scene.find(tags={"nobody": "has"}))
        assert waiting.code == NO_LOBBY
        assert len((await scene.desired_lobbies()).lobbies) == 2
        await scene.report_free(500, 1_000_000)
        assert (await expect_error(scene.create())).code == "CAPACITY_EXHAUSTED"
        await scene.report_free(1_500, 1_000_000)
        async with scene.starting(scene.create()) as (third, _):
            assert not third.is_stopping


async def test_memory_limits_starts(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    await scene.report_free(1_000_000, 2_047)
    assert (await expect_error(scene.create())).code == "CAPACITY_EXHAUSTED"
    await scene.report_free(1_000_000, 2_048)
    async with asking(scene.create()):
        assert len((await scene.desired_lobbies(wait_ms=5_000)).lobbies) == 1


async def test_find_waits_for_the_runtime_after_a_start(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    scene.runtime.expect_runtime()
    async with asking(scene.find()) as finding, asking(scene.create()):
        await asyncio.sleep(0)
        assert not finding.done()
        answer = await asyncio.wait_for(scene.desired_lobbies(wait_ms=5_000), PATIENCE_S)
        while len(answer.lobbies) < 2:
            more = await asyncio.wait_for(scene.desired_lobbies(wait_ms=5_000), PATIENCE_S)
            answer.lobbies.extend(more.lobbies)


async def test_mode_without_image_does_not_wait(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    scene.runtime.expect_runtime()
    finding = await expect_error(scene.find("attached"))
    assert finding.code == NO_LOBBY
    assert not scene.runtime.is_known


async def test_stopping_lobby_is_not_counted_twice(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    await scene.report_free(2_000, 1_000_000)
    async with scene.starting(scene.create()) as (first, _):
        await scene.report_free(1_000, 1_000_000)
        await engine.processes.stop(raw_id(first.lobby_id), only_if_idle=False)
        async with asking(scene.create()):
            await wanted_lobbies(engine, 2)
            stopping, second = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
            assert (stopping.lobby_id, stopping.is_stopping) == (first.lobby_id, True)
            assert second.HasField("spec")


async def test_new_control_plane_learns_which_lobbies_are_ready(connected: RuntimeScene) -> None:
    scene = connected
    async with scene.starting() as (lobby, finding):
        assert (lobby.is_ready, lobby.HasField("spec")) == (False, True)
        await scene.serve()
        await scene.ready(lobby.lobby_id)
        await asyncio.wait_for(finding, PATIENCE_S)
    scene.run = ""
    [again] = (await scene.desired_lobbies()).lobbies
    assert (again.lobby_id, again.is_ready, again.HasField("spec")) == (lobby.lobby_id, True, False)


async def test_ended_lobby_frees_its_capacity(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    await scene.report_free(1_000, 1_000_000)
    async with asking(scene.create()):
        [lobby] = await wanted_lobbies(engine, 1)
        assert (await expect_error(scene.create())).code == "CAPACITY_EXHAUSTED"
        await engine.processes.record_exit(lobby, None)
    async with asking(scene.create()):
        assert lobby not in await wanted_lobbies(engine, 1)


async def test_capacity_reads_each_lobby_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, reads, read_lobby = RuntimeScene(engine), list[bytes](), engine.lobby

    def lobby(lobby_id: bytes) -> Lobby | None:
        reads.append(lobby_id)
        return read_lobby(lobby_id)

    monkeypatch.setattr(engine, "lobby", lobby)
    runtime = RuntimeConnection(
        engine,
        scene.namespaces,
        scene.player_addresses,
        PlayerSessions(engine.processes),
        {TIER: Resources(10, 10)},
    )
    capacity = runtime_pb2.Capacity(
        kinds=["archive"], free_cpu_millicores=10 * MANY, free_memory_mb=10 * MANY
    )
    await runtime.desired_lobbies(runtime_pb2.WantedRequest(capacity=capacity))
    await scene.desired_lobbies()
    namespace = scene.namespaces.resolved(raw_id(NAMESPACE_ID))
    for _ in range(MANY):
        assert runtime.can_start(TIER)
        make = scene.lobby_templates.for_idle(namespace, namespace.modes["duel"], "north")
        assert make is not None
        await engine.processes.start_idle(namespace.namespace_id, namespace.version_id, make)
    assert not runtime.can_start(TIER)
    # The runtime of the scene reads each lobby too.
    assert 0 < len(reads) <= 2 * MANY


async def wanted_lobbies(engine: Engine, count: int) -> list[bytes]:

    async def lobby_ids() -> list[bytes] | None:
        lobbies = [lobby for lobby, _ in engine.processes.wanted_since(0)[2]]
        return lobbies if len(lobbies) >= count else None

    lobbies: list[bytes] = await eventually(lobby_ids)
    return lobbies
