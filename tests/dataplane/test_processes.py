"""Lobbies that the service starts, as runtime, edge-guard, players and lobby servers live through it, over the real
engine: only the two who speak to the data plane from outside are played here, by the messages of their protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.fleet import Fleet
from pyservice.dataplane.making import Making
from pyservice.dataplane.matchmaker import Matchmaker
from pyservice.dataplane.routes import RouteBook
from pyservice.dataplane.runners import Runners
from pyservice.dataplane.supply import Supply
from pyservice.dataplane.ways_in import WayIn
from pyservice.errors import ServiceError
from pyservice.ids import parse_uuid
from pyservice.pb.hosting.internal.v1 import routes_pb2, runtime_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.configurations import GAME_ID, version
from tests.dataplane.scene import Scene
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

BUILD_ID = "0192f000-0000-7000-8000-0000000000b1"
OTHER_VERSION_ID = "0192f000-0000-7000-8000-0000000000e9"
DOCKER: dict[str, Any] = {
    "image_id": BUILD_ID,
    "args": ["--map", "$(MAP)"],
    "env": {"MAP": "sea"},
    "ports": {"game": {"protocol": "udp"}, "web": {"protocol": "https"}},
}
MODES: dict[str, Any] = {
    "duel": {
        "max_players": 2,
        "taggable": True,
        "allow_dynamic_max_players": True,
        "actions": {"create": {"enabled": True, "enable_public": True}},
        "docker": DOCKER,
    },
    "private": {"actions": {"create": {"enabled": True}}, "docker": DOCKER},
    "attached": {"docker": {"ports": {"game": {"protocol": "tcp"}}}},
}


class Place(Scene):
    """A scene with a runtime and an edge-guard."""

    def __init__(self, engine: Engine, way_in: WayIn | None = None, **modes: Any) -> None:
        super().__init__(engine, versions=[version(**{**MODES, **modes})])
        self.way_in = way_in or WayIn(advertised="192.0.2.7")
        self.runners = Runners(engine, self.namespaces, self.way_in)
        self.making = Making(
            lambda: self.runners.is_connected,
            has_job_domain=self.way_in.job_domain is not None,
            heartbeat_grace_ms=10_000,
        )
        regions = self.matchmaker._regions
        self.matchmaker = Matchmaker(
            engine, self.namespaces, regions, making=self.making, way_in=self.way_in
        )
        self.routes = RouteBook(engine, self.way_in, engine.status().epoch)
        self.fleet = Fleet(
            engine,
            self.namespaces,
            regions,
            heartbeat_timeout_ms=30_000,
            heartbeat_grace_ms=10_000,
            served=self.routes.served,
        )
        self.supply = Supply(engine, self.namespaces, self.making, ["north", "south"], 30_000)
        self.run = ""
        self.sequence = 0
        self.epoch = self.version = 0

    # The runtime

    async def wanted(self, wait_ms: int = 0, kinds: tuple[str, ...] = ("archive",)) -> Any:
        answer = await self.runners.wanted(
            runtime_pb2.WantedRequest(
                run=self.run,
                after_sequence=self.sequence,
                wait_ms=wait_ms,
                capacity=runtime_pb2.Capacity(kinds=kinds),
            )
        )
        self.run, self.sequence = answer.run, answer.sequence
        return answer

    async def report(self, lobby_id: str, **what: Any) -> None:
        report = runtime_pb2.LobbyReport(lobby_id=lobby_id, **what)
        await self.runners.report(runtime_pb2.ReportRequest(reports=[report]))

    async def place(self, lobby_id: str) -> None:
        names = {"game": 12_000, "web": 12_001}
        backends = {
            name: runtime_pb2.Backend(address="127.0.0.1", port=port)
            for name, port in names.items()
        }
        await self.report(lobby_id, placed=runtime_pb2.Placed(backends=backends))

    # Edge-guard

    async def follow(self, *outcomes: routes_pb2.Outcome, instance: str = "one") -> Any:
        answer = await self.routes.follow(
            routes_pb2.FollowRequest(
                edge_id="edge",
                instance=instance,
                epoch=self.epoch,
                version=self.version,
                outcomes=outcomes,
            )
        )
        self.epoch, self.version = answer.epoch, answer.version
        return answer

    async def serve(self) -> list[routes_pb2.Route]:
        """Edge-guard binds all that it is told of, and says so."""
        routes = list((await self.follow()).routes)
        await self.follow(*(outcome(route, "LISTENING") for route in routes))
        return routes

    async def ready(self, lobby_id: str) -> None:
        await self.fleet.ready(pb.LobbyReadyRequest(), self.server(lobby_id))

    async def create(self, mode: str = "duel", **fields: Any) -> pb.CreateLobbyResponse:
        request = pb.CreateLobbyRequest(game_mode=mode, **fields)
        return await self.matchmaker.create(request, self.client())


def outcome(route: routes_pb2.Route, kind: str) -> routes_pb2.Outcome:
    return routes_pb2.Outcome(
        owner_id=route.owner_id,
        port_name=route.port_name,
        port=route.port,
        kind=f"OUTCOME_KIND_{kind}",
        reason="in use" if kind == "REFUSED" else "",
    )


@pytest.fixture
async def place(engine: Engine) -> Place:
    return Place(engine)


@pytest.fixture
async def connected(place: Place) -> Place:
    """With a runtime that has asked."""
    assert (await place.wanted()).is_complete
    return place


@contextlib.asynccontextmanager
async def asking(work: Awaitable[Any]) -> AsyncIterator[asyncio.Future[Any]]:
    """It is under way meanwhile, and asked for no more afterwards."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ServiceError):
            await task


async def refused(work: Awaitable[Any]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await asyncio.wait_for(work, PATIENCE_S)
    return caught.value


async def test_a_find_starts_a_lobby_and_its_player_is_told_where_it_is_when_it_listens(
    connected: Place,
) -> None:
    place = connected
    async with asking(place.find(tags={"map": "sea"})) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        spec = wanted.spec
        assert (spec.build_id, spec.game_mode, spec.region) == (BUILD_ID, "duel", "north")
        assert (list(spec.args), dict(spec.env), dict(spec.tags)) == (
            ["--map", "$(MAP)"],
            {"MAP": "sea"},
            {"map": "sea"},
        )
        assert (spec.game_id, spec.tier, spec.network_mode) == (GAME_ID, "basic-1d1", "bridge")
        assert {name: port.protocol for name, port in spec.ports.items()} == {
            "game": "udp",
            "web": "https",
        }
        assert place.engine.lobby_of_token(spec.lobby_token) == parse_uuid(wanted.lobby_id)

        await place.place(wanted.lobby_id)
        routes = {route.port_name: route for route in (await place.follow()).routes}
        assert (routes["game"].backend_address, routes["game"].backend_port) == (
            "127.0.0.1",
            12_000,
        )
        async with asking(place.ready(wanted.lobby_id)) as getting_ready:
            await place.follow(outcome(routes["game"], "LISTENING"))
            assert not getting_ready.done()
            await place.follow(outcome(routes["web"], "LISTENING"))
            await asyncio.wait_for(getting_ready, PATIENCE_S)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    port = found.ports["game"]
    assert (port.hostname, port.port) == ("192.0.2.7", routes["game"].port)
    assert port.host == f"192.0.2.7:{port.port}"
    assert not found.ports["web"].is_tls, "nobody has a certificate: it is served plain"
    assert 26_000 <= found.ports["web"].port <= 31_999
    await place.connected(found.lobby.lobby_id, found.player.token)


async def test_behind_a_domain_streams_have_names_of_their_own(engine: Engine) -> None:
    place = Place(engine, WayIn(job_domain="job.test"))
    await place.wanted()
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        routes = {route.port_name: route for route in await place.serve()}
        host = f"{wanted.lobby_id}-web.lobby.north.job.test"
        assert (routes["web"].port, routes["web"].host, routes["web"].is_tls) == (0, host, True)
        await place.ready(wanted.lobby_id)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    assert found.ports["web"].host == f"{host}:443"
    assert found.ports["game"].hostname == "north.job.test"


async def test_without_somebody_who_starts_processes_nothing_is_made(place: Place) -> None:
    assert (await refused(place.find())).code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    assert (await refused(place.create())).code == "CAPACITY_EXHAUSTED"
    await place.wanted(kinds=())
    assert (await refused(place.create())).code == "CAPACITY_EXHAUSTED", (
        "who runs nothing is nobody"
    )
    await place.wanted()
    assert (await refused(place.find("attached"))).code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    prevented = place.find(prevent_auto_create_lobby=True)
    assert (await refused(prevented)).code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    assert (await place.wanted()).lobbies == []


async def test_a_create_gets_a_lobby_of_its_own_as_it_was_asked_for(connected: Place) -> None:
    place = connected
    asked = place.create(
        max_players=1, tags={"a": "b"}, lobby_config=b'{"seed": 18446744073709551615}'
    )
    async with asking(asked) as creating:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        spec = wanted.spec
        assert spec.lobby_config == b'{"seed": 18446744073709551615}'
        limits = (spec.max_players, spec.max_players_direct, spec.max_players_party)
        assert limits == (1, 1, 1)
        await place.serve()
        await place.ready(wanted.lobby_id)
        made = await asyncio.wait_for(creating, PATIENCE_S)
    assert made.lobby.lobby_id == wanted.lobby_id
    listed = await place.matchmaker.list_lobbies(pb.ListLobbiesRequest(), place.client())
    assert [lobby.lobby_id for lobby in listed.lobbies] == [wanted.lobby_id]
    async with asking(place.create()):
        [other] = (await place.wanted(wait_ms=5_000)).lobbies
        assert other.lobby_id != wanted.lobby_id, "never one that is there"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mode": "none"}, "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        ({"region": "nowhere"}, "MATCHMAKER_REGION_NOT_FOUND"),
        ({"mode": "attached"}, "MATCHMAKER_CREATE_DISABLED"),
        ({"mode": "private", "tags": {"a": "b"}}, "MATCHMAKER_TAGS_DISABLED"),
        ({"mode": "private", "max_players": 1}, "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED"),
        ({"mode": "private", "publicity": "public"}, "MATCHMAKER_PUBLICITY_DISABLED"),
        ({"max_players": 33}, "BODY_INVALID"),
        ({"party_size": 3}, "BODY_INVALID"),
    ],
)
async def test_a_create_that_its_mode_does_not_allow_is_refused(
    connected: Place, fields: dict[str, Any], code: str
) -> None:
    assert (await refused(connected.create(**fields))).code == code
    assert (await connected.wanted()).lobbies == []


async def test_everybody_who_waits_hears_what_the_process_exited_with(connected: Place) -> None:
    place = connected
    async with asking(place.find()) as first, asking(place.find()) as second:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        over = runtime_pb2.Over(exit_code=3, reason="exited")
        await place.report(wanted.lobby_id, over=over)
        for waiting in (first, second):
            error = await refused(waiting)
            assert error.code == "MATCHMAKER_LOBBY_START_FAILED"
            assert error.metadata == {
                "lobby_id": wanted.lobby_id,
                "reason": "exited",
                "exit_code": "3",
            }
    await place.report(wanted.lobby_id, over=over)
    assert list((await place.wanted()).gone) == [wanted.lobby_id]


async def test_a_port_that_somebody_else_has_is_replaced_before_anybody_hears_of_it(
    connected: Place,
) -> None:
    place = connected
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        game, web = sorted((await place.follow()).routes, key=lambda route: route.port_name)
        answer = await place.follow(outcome(game, "REFUSED"), outcome(web, "LISTENING"))
        instead = {route.port_name: route for route in answer.routes}
        assert instead["game"].port != game.port
        assert instead["web"].port == web.port
        await place.follow(outcome(instead["game"], "LISTENING"))
        await place.ready(wanted.lobby_id)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    assert found.ports["game"].port == instead["game"].port


async def test_routes_of_a_lobby_that_ended_are_told_until_they_are_gone(connected: Place) -> None:
    place = connected
    async with asking(place.find()):
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        await place.serve()
        await place.report(wanted.lobby_id, over=runtime_pb2.Over(reason="exited"))
    assert list((await place.follow()).removed) == [wanted.lobby_id]
    place.epoch = 0
    again = await place.follow()
    assert (again.is_complete, list(again.removed)) == (True, [wanted.lobby_id])
    gone = routes_pb2.Outcome(
        owner_id=wanted.lobby_id, kind=routes_pb2.OutcomeKind.OUTCOME_KIND_REMOVED
    )
    await place.follow(gone)
    await place.follow(gone)
    place.epoch = 0
    assert list((await place.follow()).removed) == []


async def test_another_edge_guard_has_bound_nothing_yet(connected: Place) -> None:
    place = connected
    async with asking(place.find()):
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        await place.serve()
        answer = await place.follow(instance="two")
        assert answer.is_complete
        async with asking(place.ready(wanted.lobby_id)) as getting_ready:
            await place.follow(instance="two")
            assert not getting_ready.done()
            listening = [outcome(route, "LISTENING") for route in answer.routes]
            await place.follow(*listening, instance="two")
            await asyncio.wait_for(getting_ready, PATIENCE_S)


async def test_idle_lobbies_are_kept_between_their_bounds(engine: Engine) -> None:
    kept = {**MODES["duel"], "idle_lobbies": {"min": 2, "max": 3}, "regions": {"north": {}}}
    place = Place(engine, duel=kept)
    namespace = place.client().namespace_id
    place.supply.changed(namespace)
    await place.supply.step()
    assert (await place.wanted()).lobbies == [], "nobody would start them"
    place.supply.changed(namespace)
    await place.supply.step()
    first = [lobby.lobby_id for lobby in (await place.wanted()).lobbies]
    assert len(first) == 2
    await place.supply.step()
    assert (await place.wanted()).lobbies == [], "two start already"
    await place.serve()
    for lobby_id in first:
        await place.ready(lobby_id)
    found = await place.find()
    await place.supply.step()
    [third] = (await place.wanted()).lobbies
    assert found.lobby.lobby_id in first
    await place.serve()
    await place.ready(third.lobby_id)
    await place.disconnected(found.lobby.lobby_id, found.player.token)
    await place.supply.step()
    assert (await place.wanted()).lobbies == [], "three are not too many"


async def test_after_another_version_the_old_lobbies_stop_when_they_are_empty(
    connected: Place,
) -> None:
    place = connected
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        await place.serve()
        await place.ready(wanted.lobby_id)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    place.feed(
        versions=[version(version_id=OTHER_VERSION_ID, **MODES)],
        current_version_id=OTHER_VERSION_ID,
    )
    namespace = place.client().namespace_id
    place.supply.changed(namespace)
    await place.supply.step()
    assert (await place.wanted()).lobbies == [], "somebody is in it"
    await place.disconnected(wanted.lobby_id, found.player.token)
    await place.supply.step()
    [stopping] = (await place.wanted()).lobbies
    assert (stopping.lobby_id, stopping.is_stopping) == (wanted.lobby_id, True)
    joining = await refused(place.join(wanted.lobby_id))
    assert joining.code == "MATCHMAKER_LOBBY_DRAINING"
    await place.report(wanted.lobby_id, over=runtime_pb2.Over(exit_code=0, reason="stopped"))
    assert (await refused(place.join(wanted.lobby_id))).code == "MATCHMAKER_LOBBY_STOPPED"


async def test_dynamic_servers_have_ports_that_are_given_back(place: Place) -> None:
    server_id = "0192f000-0000-7000-8000-0000000000f1"
    request = runtime_pb2.LeaseRequest(
        server_id=server_id,
        namespace_id=server_id,
        region="north",
        protocols={"game": "udp", "web": "http"},
    )
    leased = await place.runners.lease(request)
    assert leased == await place.runners.lease(request)
    assert leased.ports["game"].hostname == "192.0.2.7"
    assert list((await place.runners.leases(runtime_pb2.LeasesRequest())).server_ids) == [server_id]
    backend = runtime_pb2.Backend(address="127.0.0.1", port=12_000)
    placed = runtime_pb2.PlaceServerRequest(server_id=server_id, backends={"game": backend})
    await place.runners.place_server(placed)
    routes = {route.port_name: route for route in (await place.follow()).routes}
    assert routes["game"].port == leased.ports["game"].port
    assert (routes["game"].backend_port, routes["web"].backend_port) == (12_000, 0)
    over = runtime_pb2.EndLeaseRequest(server_id=server_id)
    await place.runners.end_lease(over)
    await place.runners.end_lease(over)
    assert (await refused(place.runners.lease(request))).code == "IN_USE"
    assert (await refused(place.runners.place_server(placed))).code == "SERVER_NOT_FOUND"
