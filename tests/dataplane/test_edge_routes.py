"""Routes, port leases and refused ports with a simulated edge-guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane import edge_routes
from pyservice.dataplane.edge_routes import EdgeRoutes
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.ids import format_uuid
from pyservice.pb.hosting.internal.v1 import routes_pb2, runtime_pb2
from tests.dataplane.full_journal import fill_journal
from tests.support.data_plane_service import running_engine
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import NAMESPACE_ID
from tests.support.runtime_scene import (
    BUILD_ID,
    MODES,
    RuntimeScene,
    asking,
    connected_scene,
    outcome,
)
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

FAMILY = 6_000
"""Ports of one protocol family."""


def lease_of(suffix: str, **protocols: str) -> runtime_pb2.LeaseRequest:
    server_id = f"0192f000-0000-7000-8000-0000000000{suffix}"
    return runtime_pb2.LeaseRequest(
        server_id=server_id, namespace_id=NAMESPACE_ID, region="north", protocols=protocols
    )


async def game_and_web(scene: RuntimeScene) -> list[routes_pb2.Route]:
    return sorted((await scene.follow()).routes, key=lambda route: route.port_name)


async def test_http_ports_have_host_names_behind_a_domain(engine: Engine) -> None:
    scene = RuntimeScene(engine, PlayerAddresses(job_domain="job.test"))
    await scene.desired_lobbies()
    async with scene.starting() as (lobby, finding):
        routes = {route.port_name: route for route in await scene.serve()}
        host = f"{lobby.lobby_id}-web.lobby.north.job.test"
        assert (routes["web"].port, routes["web"].host, routes["web"].is_tls) == (0, host, True)
        placement = await scene.placed(lobby.lobby_id, finding)
    assert placement.ports["web"].host == f"{host}:443"
    assert placement.ports["game"].hostname == "north.job.test"


async def test_refused_port_is_replaced_before_it_is_returned(connected: RuntimeScene) -> None:
    scene = connected
    async with scene.starting() as (lobby, finding):
        game, web = await game_and_web(scene)
        answer = await scene.follow(outcome(game, "REFUSED"), outcome(web, "LISTENING"))
        instead = {route.port_name: route for route in answer.routes}
        assert instead["game"].port != game.port
        assert instead["web"].port == web.port
        await scene.follow(outcome(instead["game"], "LISTENING"))
        placement = await scene.placed(lobby.lobby_id, finding)
    assert placement.ports["game"].port == instead["game"].port


async def test_unserved_port_keeps_its_number(connected: RuntimeScene) -> None:
    scene = connected
    async with scene.starting() as (lobby, finding):
        routes = list((await scene.follow()).routes)
        answer = await scene.follow(*(outcome(route, "UNSERVED") for route in routes))
        assert not answer.routes
        await scene.follow(*(outcome(route, "LISTENING") for route in routes))
        placement = await scene.placed(lobby.lobby_id, finding)
    current_routes = {name: port.port for name, port in placement.ports.items()}
    assert current_routes == {route.port_name: route.port for route in routes}


async def test_outcomes_are_applied_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that they share a journal sync."""
    docker = {"image_id": BUILD_ID, "ports": {f"voice-{n}": {"protocol": "udp"} for n in range(16)}}
    scene = await connected_scene(engine, large={"docker": docker})
    replace_port, all_began = engine.processes.replace_port, asyncio.Barrier(16)

    async def replace_with_others(*port: Any) -> int | None:
        await all_began.wait()
        return await replace_port(*port)

    monkeypatch.setattr(engine.processes, "replace_port", replace_with_others)
    async with asking(scene.find("large")):
        await scene.desired_lobbies(wait_ms=5_000)
        refused_ones = list((await scene.follow()).routes)
        assert len(refused_ones) == 16
        following = scene.follow(*(outcome(route, "REFUSED") for route in refused_ones))
        answer = await asyncio.wait_for(following, PATIENCE_S)
        others = {route.port for route in answer.routes}
        assert len(others) == 16
        assert others.isdisjoint(route.port for route in refused_ones)


async def test_set_of_another_restore_is_replaced_by_a_complete_one(engine: Engine) -> None:
    epoch = engine.status().epoch
    routes = EdgeRoutes(engine, PlayerAddresses(), epoch, restore_id="second")
    version = 0

    async def is_complete(restore_id: str) -> bool:
        request = routes_pb2.FollowRequest(
            edge_id="edge", instance="one", epoch=epoch, version=version, restore_id=restore_id
        )
        answer = await routes.follow(request)
        assert answer.restore_id == "second"
        return bool(answer.is_complete)

    assert await is_complete("second"), "the instance is new"
    version = engine.processes.routes_since(0).lsn
    assert not await is_complete("second")
    assert await is_complete("first")
    assert await is_complete("")


async def test_new_edge_guard_instance_has_bound_nothing(connected: RuntimeScene) -> None:
    scene = connected
    async with scene.starting() as (lobby, _):
        await scene.serve()
        answer = await scene.follow(instance="two")
        assert answer.is_complete
        async with asking(scene.ready(lobby.lobby_id)) as getting_ready:
            await scene.follow(instance="two")
            assert not getting_ready.done()
            listening = [outcome(route, "LISTENING") for route in answer.routes]
            await scene.follow(*listening, instance="two")
            await asyncio.wait_for(getting_ready, PATIENCE_S)


async def test_ready_waits_until_ports_forward_to_the_process(connected: RuntimeScene) -> None:
    scene = connected
    async with scene.starting() as (lobby, finding):
        before = await scene.serve()
        assert [route.backend_port for route in before] == [0, 0]
        # Edge-guard does not know the process yet.
        await scene.place_process(lobby.lobby_id)
        served = scene.routes.wait_lobby_served(raw_id(lobby.lobby_id))
        async with asking(served) as serving, asking(scene.ready(lobby.lobby_id)) as ready:
            await scene.follow(*(outcome(route, "LISTENING") for route in before))
            assert await is_pending(serving)
            scene.version = 0
            game, web = await game_and_web(scene)
            assert (game.backend_port, web.backend_port) == (12_000, 12_001)
            elsewhere = outcome(web, "LISTENING")
            elsewhere.backend_port = game.backend_port
            await scene.follow(outcome(game, "LISTENING"), elsewhere)
            assert await is_pending(serving), "one of two routes has this backend"
            assert not ready.done()
            await scene.follow(outcome(web, "LISTENING"))
            await asyncio.wait_for(ready, PATIENCE_S)
        await asyncio.wait_for(finding, PATIENCE_S)


async def test_outdated_outcomes_are_ignored(connected: RuntimeScene) -> None:
    scene = connected
    async with scene.starting() as (lobby, _):
        before = list((await scene.follow(question=1)).routes)
        await scene.place_process(lobby.lobby_id)
        after = list((await scene.follow(question=2)).routes)
        early = [outcome(route, "LISTENING") for route in before]
        late = [outcome(route, "LISTENING") for route in after]
        await scene.follow(*early, *late, question=4)
        await scene.follow(*early, question=3)
        await asyncio.wait_for(scene.ready(lobby.lobby_id), PATIENCE_S)
        await scene.follow(*late, instance="two", question=1)
        served = scene.routes.wait_lobby_served(raw_id(lobby.lobby_id))
        await asyncio.wait_for(served, PATIENCE_S)


async def is_pending(request: asyncio.Future[Any]) -> bool:
    for _ in range(10):
        await asyncio.sleep(0)
    return not request.done()


async def test_server_ports_are_leased_before_its_process_starts(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    scene.runtime.wait_server_served = scene.routes.wait_server_served
    request = datagrams(1)
    async with asking(scene.runtime.lease(request)) as leasing:
        routes = await scene.new_routes()
        assert {route.backend_port for route in routes} == {0}
        await scene.follow(*(outcome(route, "LISTENING") for route in routes))
        leased = await asyncio.wait_for(leasing, PATIENCE_S)
    backends = {
        name: runtime_pb2.Backend(address="127.0.0.1", port=12_000 + number)
        for number, name in enumerate(leased.ports)
    }
    place_request = runtime_pb2.PlaceServerRequest(server_id=request.server_id, backends=backends)
    await scene.runtime.place_server(place_request)
    again = await asyncio.wait_for(scene.runtime.lease(request), PATIENCE_S)
    assert again == leased


async def test_removals_are_repeated_until_confirmed(connected: RuntimeScene) -> None:
    scene = connected
    async with scene.starting() as (lobby, _):
        await scene.serve()
        await scene.report(lobby.lobby_id, over=runtime_pb2.Over(reason="exited"))
    assert list((await scene.follow()).removed) == [lobby.lobby_id]
    scene.epoch = 0
    again = await scene.follow()
    assert (again.is_complete, list(again.removed)) == (True, [lobby.lobby_id])
    removal = routes_pb2.Outcome(
        owner_id=lobby.lobby_id, kind=routes_pb2.OutcomeKind.OUTCOME_KIND_REMOVED
    )
    await scene.follow(removal)
    await scene.follow(removal)
    scene.epoch = 0
    assert list((await scene.follow()).removed) == []


async def test_exhausted_ports_create_no_lobby(engine: Engine) -> None:
    streams = {"docker": {**MODES["duel"]["docker"], "ports": {"game": {"protocol": "tcp"}}}}
    scene = await connected_scene(engine, streams=streams)
    await asyncio.gather(
        *(scene.runtime.lease(datagrams(number)) for number in range(FAMILY // 16))
    )
    for request in (scene.find, scene.create):
        # On a busy machine, the leases take longer than a runtime may be silent.
        await scene.desired_lobbies()
        assert (await expect_error(request())).code == "PORTS_EXHAUSTED"
    one_more = await expect_error(scene.runtime.lease(datagrams(FAMILY)))
    assert one_more.code == "PORTS_EXHAUSTED"
    assert (await scene.desired_lobbies()).lobbies == []
    async with scene.starting(scene.find("streams")) as (lobby, _):
        assert lobby.spec.game_mode == "streams", "ports of the other family are left"


def datagrams(number: int) -> runtime_pb2.LeaseRequest:
    return runtime_pb2.LeaseRequest(
        server_id=format_uuid(number.to_bytes(16)),
        namespace_id=NAMESPACE_ID,
        region="north",
        protocols={f"port-{port}": "udp" for port in range(16)},
    )


async def test_server_lease_lifecycle(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    request = lease_of("f1", game="udp", web="http")
    server_id = request.server_id
    leased = await scene.runtime.lease(request)
    assert leased == await scene.runtime.lease(request)
    assert leased.ports["game"].hostname == "192.0.2.7"
    assert list((await scene.runtime.leases(runtime_pb2.LeasesRequest())).server_ids) == [server_id]
    backend = runtime_pb2.Backend(address="127.0.0.1", port=12_000)
    place_request = runtime_pb2.PlaceServerRequest(server_id=server_id, backends={"game": backend})
    await scene.runtime.place_server(place_request)
    routes = {route.port_name: route for route in (await scene.follow()).routes}
    assert routes["game"].port == leased.ports["game"].port
    assert (routes["game"].backend_port, routes["web"].backend_port) == (12_000, 0)
    end_request = runtime_pb2.EndLeaseRequest(server_id=server_id)
    await scene.runtime.end_lease(end_request)
    await scene.runtime.end_lease(end_request)
    assert (await expect_error(scene.runtime.lease(request))).code == "IN_USE"
    assert (
        await expect_error(scene.runtime.place_server(place_request))
    ).code == "SERVER_NOT_FOUND"


UDP_LEASE = lease_of("c3", game="udp")
Unblock = Callable[[], Awaitable[None]]
Block = Callable[[Engine, Path], Awaitable[Unblock]]


@pytest.fixture
async def patient_scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RuntimeScene]:
    for name in ("LOBBY_SERVED_TIMEOUT_S", "SERVER_SERVED_TIMEOUT_S"):
        monkeypatch.setattr(edge_routes, name, PATIENCE_S)
    async with running_engine(tmp_path, port_quarantine_ms=50) as engine:
        scene = await connected_scene(engine)
        scene.runtime.wait_server_served = scene.routes.wait_server_served
        yield scene


async def pool_is_empty(engine: Engine, _: Path) -> Unblock:
    owners = [number.to_bytes(16) for number in range(1, FAMILY)]

    async def lease(owners: list[bytes]) -> None:
        ports = [
            (f"other-{at}", "udp", "number", 0, 0, False, "uncounted")
            for at, _ in enumerate(owners)
        ]
        await engine.processes.lease(owners[0], raw_id(NAMESPACE_ID), "north", ports)

    await asyncio.gather(*(lease(owners[at : at + 16]) for at in range(0, FAMILY - 1, 16)))

    async def unblock() -> None:
        await engine.processes.end_lease(owners[0])
        await engine.processes.ports_returned(owners[0])

    return unblock


async def disk_is_full(engine: Engine, folder: Path) -> Unblock:
    return await fill_journal(engine, folder / "journal")


both = pytest.mark.parametrize("block", [pool_is_empty, disk_is_full])


async def game(patient_scene: RuntimeScene, other_than: int = 0) -> routes_pb2.Route:

    async def look_up() -> Any:
        current_routes = [
            route for route in (await patient_scene.follow()).routes if route.port_name == "game"
        ]
        return [route for route in current_routes if route.port != other_than]

    [route] = await eventually(look_up)
    assert isinstance(route, routes_pb2.Route)
    return route


async def finish_with_another_number(
    patient_scene: RuntimeScene, request: asyncio.Future[Any], refused_route: routes_pb2.Route
) -> int:
    other = await game(patient_scene, other_than=refused_route.port)
    again = await patient_scene.follow(outcome(refused_route, "REFUSED"))
    assert not again.routes, "a repeated refusal changes nothing"
    await patient_scene.follow(outcome(other, "LISTENING"))
    await asyncio.wait_for(request, PATIENCE_S)
    assert not (await patient_scene.follow()).routes
    return other.port


@both
async def test_waiting_lobby_gets_another_number(
    patient_scene: RuntimeScene, tmp_path: Path, block: Block
) -> None:
    async with patient_scene.starting() as (lobby, finding):
        first, web = await game_and_web(patient_scene)
        unblock = await block(patient_scene.engine, tmp_path)
        await patient_scene.follow(outcome(first, "REFUSED"), outcome(web, "LISTENING"))
        async with asking(patient_scene.ready(lobby.lobby_id)) as ready:
            assert await is_pending(ready)
            await unblock()
            number = await finish_with_another_number(patient_scene, ready, first)
        placement = await asyncio.wait_for(finding, PATIENCE_S)
    assert placement.ports["game"].port == number


@pytest.mark.full
@both
async def test_waiting_server_gets_another_number(
    patient_scene: RuntimeScene, tmp_path: Path, block: Block
) -> None:
    async with asking(patient_scene.runtime.lease(UDP_LEASE)) as leasing:
        first = await game(patient_scene)
        unblock = await block(patient_scene.engine, tmp_path)
        await patient_scene.follow(outcome(first, "REFUSED"))
        assert await is_pending(leasing)
        await unblock()
        number = await finish_with_another_number(patient_scene, leasing, first)
        assert (await leasing).ports["game"].port == number


@pytest.mark.full
async def test_repeated_ready_gets_another_number(
    patient_scene: RuntimeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with patient_scene.starting() as (lobby, _):
        first, web = await game_and_web(patient_scene)
        unblock = await disk_is_full(patient_scene.engine, tmp_path)
        await patient_scene.follow(outcome(first, "REFUSED"), outcome(web, "LISTENING"))
        with monkeypatch.context() as patched:
            patched.setattr(edge_routes, "LOBBY_SERVED_TIMEOUT_S", 0.05)
            assert (await expect_error(patient_scene.ready(lobby.lobby_id))).code == "OVERLOADED"
        await unblock()
        async with asking(patient_scene.ready(lobby.lobby_id)) as ready:
            await finish_with_another_number(patient_scene, ready, first)


async def test_refused_port_does_not_block_other_routes(
    patient_scene: RuntimeScene, tmp_path: Path
) -> None:
    async with patient_scene.starting() as (lobby, _):
        first = await game(patient_scene)
        await disk_is_full(patient_scene.engine, tmp_path)
        await patient_scene.place_process(lobby.lobby_id)
        answer = await patient_scene.follow(outcome(first, "REFUSED"))
        assert sorted(route.backend_port for route in answer.routes) == [12_000, 12_001]
        await patient_scene.report(lobby.lobby_id, over=runtime_pb2.Over(reason="exited"))
        assert list((await patient_scene.follow()).removed) == [lobby.lobby_id]


async def test_refused_port_is_forgotten_with_its_owner(
    patient_scene: RuntimeScene, tmp_path: Path
) -> None:
    async with patient_scene.starting() as (lobby, _):
        first = await game(patient_scene)
        await disk_is_full(patient_scene.engine, tmp_path)
        await patient_scene.follow(outcome(first, "REFUSED"))
        assert patient_scene.routes._refused_ports
        await patient_scene.report(lobby.lobby_id, over=runtime_pb2.Over(reason="exited"))
        removal = outcome(first, "REMOVED")
        await patient_scene.follow(removal)
        assert not patient_scene.routes._refused_ports


@pytest.mark.full
async def test_unserved_port_after_refusal_keeps_its_number(
    patient_scene: RuntimeScene, tmp_path: Path
) -> None:
    async with patient_scene.starting() as (lobby, _):
        first, web = await game_and_web(patient_scene)
        unblock = await disk_is_full(patient_scene.engine, tmp_path)
        await patient_scene.follow(outcome(first, "REFUSED"), outcome(web, "LISTENING"))
        await patient_scene.follow(outcome(first, "UNSERVED"))
        await unblock()
        async with asking(patient_scene.ready(lobby.lobby_id)) as ready:
            assert await is_pending(ready)
            assert not (await patient_scene.follow()).routes
            await patient_scene.follow(outcome(first, "LISTENING"))
            await asyncio.wait_for(ready, PATIENCE_S)


MIXED_LEASE = lease_of("c1", game="tcp", voice="udp", web="http")


class LeaseScene(RuntimeScene):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.start()

    def start(self) -> None:
        self.routes = EdgeRoutes(self.engine, self.player_addresses, self.engine.status().epoch)
        self.runtime.wait_server_served = self.routes.wait_server_served


@pytest.fixture
async def lease_scene(engine: Engine) -> LeaseScene:
    return LeaseScene(engine)


async def test_lease_returns_the_ports_that_edge_guard_bound(lease_scene: LeaseScene) -> None:
    async with asking(lease_scene.runtime.lease(MIXED_LEASE)) as leasing:
        first = {route.port_name: route for route in await lease_scene.new_routes()}
        game, voice, web = (first[name] for name in ("game", "voice", "web"))
        await lease_scene.follow(outcome(game, "REFUSED"), outcome(voice, "LISTENING"))
        await lease_scene.follow(outcome(web, "LISTENING"))
        assert not leasing.done()
        # The response to its request had the new number.
        lease_scene.version = 0
        [other] = [route for route in await lease_scene.new_routes() if route.port_name == "game"]
        assert other.port != game.port
        await lease_scene.follow(outcome(other, "LISTENING"))
        leased = await leasing
    numbers = {name: port.port for name, port in leased.ports.items()}
    assert numbers == {"game": other.port, "voice": voice.port, "web": web.port}
    assert await lease_scene.runtime.lease(MIXED_LEASE) == leased


async def test_lease_without_edge_guard_is_overloaded(
    lease_scene: LeaseScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_routes, "SERVER_SERVED_TIMEOUT_S", 0.05)
    assert (await expect_error(lease_scene.runtime.lease(MIXED_LEASE))).code == "OVERLOADED"


TCP_LEASE = lease_of("c2", game="tcp")


async def all_routes(lease_scene: LeaseScene, instance: str) -> list[routes_pb2.Route]:
    lease_scene.version = 0
    return await lease_scene.new_routes(instance=instance)


async def leased(lease_scene: LeaseScene) -> runtime_pb2.PublicPort:
    async with asking(lease_scene.runtime.lease(TCP_LEASE)) as leasing:
        [route] = await all_routes(lease_scene, "one")
        await lease_scene.follow(outcome(route, "LISTENING"))
        answer: runtime_pb2.LeaseResponse = await asyncio.wait_for(leasing, PATIENCE_S)
    return answer.ports["game"]


@pytest.mark.parametrize("is_restarted", [False, True], ids=["the same", "another"])
async def test_returned_port_is_not_replaced(
    lease_scene: LeaseScene, *, is_restarted: bool
) -> None:
    current_routes = await leased(lease_scene)
    if is_restarted:
        lease_scene.start()
    [route] = await all_routes(lease_scene, "two")
    await lease_scene.follow(outcome(route, "REFUSED"), instance="two")
    [after] = await all_routes(lease_scene, "two")
    assert after.port == current_routes.port


async def test_repeated_lease_returns_the_same_port(
    lease_scene: LeaseScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    current_routes = await leased(lease_scene)
    [route] = await all_routes(lease_scene, "two")
    monkeypatch.setattr(edge_routes, "SERVER_SERVED_TIMEOUT_S", 0.05)
    async with asking(expect_error(lease_scene.runtime.lease(TCP_LEASE))) as asking_again:
        await asyncio.sleep(0)
        await lease_scene.follow(outcome(route, "REFUSED"), instance="two")
        assert (await asking_again).code == "OVERLOADED"
    monkeypatch.setattr(edge_routes, "SERVER_SERVED_TIMEOUT_S", PATIENCE_S)
    async with asking(lease_scene.runtime.lease(TCP_LEASE)) as asking_again:
        await lease_scene.follow(outcome(route, "LISTENING"), instance="two")
        assert (await asking_again).ports["game"] == current_routes


async def test_unreturned_port_may_change_after_a_restart(lease_scene: LeaseScene) -> None:
    async with asking(lease_scene.runtime.lease(TCP_LEASE)):
        [first] = await all_routes(lease_scene, "one")
    lease_scene.start()
    async with asking(lease_scene.runtime.lease(TCP_LEASE)) as leasing:
        [route] = await all_routes(lease_scene, "one")
        assert route == first
        await lease_scene.follow(outcome(route, "REFUSED"))

        async def changed() -> Any:
            [route] = await all_routes(lease_scene, "one")
            return route if route.port != first.port else None

        other = await eventually(changed)
        await lease_scene.follow(outcome(other, "LISTENING"))
        assert (await leasing).ports["game"].port == other.port
