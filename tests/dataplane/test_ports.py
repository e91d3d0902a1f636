"""Public ports of lobbies and dynamic servers, as edge-guard, players and runtime live through it, over the real
engine: where something is reached, who else has a port, and when it is given back.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.ids import format_uuid
from pyservice.pb.hosting.internal.v1 import routes_pb2, runtime_pb2
from tests.dataplane.configurations import NAMESPACE_ID
from tests.dataplane.processes import (
    BUILD_ID,
    MODES,
    Place,
    asking,
    connected_place,
    outcome,
    refused,
)
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

FAMILY = 6_000
"""Ports of 26000 to 31999 for datagrams, and as many for streams."""


@pytest.fixture
async def connected(engine: Engine) -> Place:
    return await connected_place(engine)


async def test_behind_a_domain_streams_have_names_of_their_own(engine: Engine) -> None:
    place = Place(engine, PlayerAddresses(job_domain="job.test"))
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


async def test_what_no_other_number_would_mend_takes_none(connected: Place) -> None:
    place = connected
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        routes = list((await place.follow()).routes)
        answer = await place.follow(*(outcome(route, "UNSERVED") for route in routes))
        assert not answer.routes
        # It is tried again until it is served.
        await place.follow(*(outcome(route, "LISTENING") for route in routes))
        await place.ready(wanted.lobby_id)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    told = {name: port.port for name, port in found.ports.items()}
    assert told == {route.port_name: route.port for route in routes}


async def test_what_edge_guard_says_together_waits_for_the_disk_together(engine: Engine) -> None:
    docker = {"image_id": BUILD_ID, "ports": {f"voice-{n}": {"protocol": "udp"} for n in range(16)}}
    place = await connected_place(engine, crowd={"docker": docker})

    def syncs() -> int:
        text = engine.render_metrics({}).decode()
        return int(text.partition("\nhosting_journal_syncs_total ")[2].split("\n", 1)[0])

    async with asking(place.find("crowd")):
        await place.wanted(wait_ms=5_000)
        refused_ones = list((await place.follow()).routes)
        assert len(refused_ones) == 16
        before = syncs()
        answer = await place.follow(*(outcome(route, "REFUSED") for route in refused_ones))
        others = {route.port for route in answer.routes}
        assert len(others) == 16
        assert others.isdisjoint(route.port for route in refused_ones)
        assert syncs() - before < 8


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


async def test_a_lobby_is_ready_when_whoever_connects_is_led_to_it(connected: Place) -> None:
    place = connected
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        before = await place.serve()
        assert [route.backend_port for route in before] == [0, 0]
        # The process is there, and edge-guard has not heard of it.
        await place.place(wanted.lobby_id)
        # What `ready` waits for ends at once; itself it is kept besides.
        served = place.routes.wait_lobby_served(raw_id(wanted.lobby_id))
        async with asking(served) as serving, asking(place.ready(wanted.lobby_id)) as ready:
            await place.follow(*(outcome(route, "LISTENING") for route in before))
            assert await still_waits(serving), "players would meet nobody"
            place.version = 0
            game, web = sorted((await place.follow()).routes, key=lambda route: route.port_name)
            assert (game.backend_port, web.backend_port) == (12_000, 12_001)
            elsewhere = outcome(web, "LISTENING")
            elsewhere.backend_port = game.backend_port
            await place.follow(outcome(game, "LISTENING"), elsewhere)
            assert await still_waits(serving), "one of two leads there"
            assert not ready.done()
            await place.follow(outcome(web, "LISTENING"))
            await asyncio.wait_for(ready, PATIENCE_S)
        await asyncio.wait_for(finding, PATIENCE_S)


async def test_a_question_that_is_heard_after_a_newer_one_takes_nothing_back(
    connected: Place,
) -> None:
    place = connected
    async with asking(place.find()):
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        before = list((await place.follow(question=1)).routes)
        await place.place(wanted.lobby_id)
        after = list((await place.follow(question=2)).routes)
        early = [outcome(route, "LISTENING") for route in before]
        late = [outcome(route, "LISTENING") for route in after]
        await place.follow(*early, *late, question=4)
        await place.follow(*early, question=3)
        await asyncio.wait_for(place.ready(wanted.lobby_id), PATIENCE_S)
        # Another process counts from its own beginning.
        await place.follow(*late, instance="two", question=1)
        served = place.routes.wait_lobby_served(raw_id(wanted.lobby_id))
        await asyncio.wait_for(served, PATIENCE_S)


async def still_waits(asked: asyncio.Future[Any]) -> bool:
    """After so long that whoever was woken has looked."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not asked.done()


async def test_a_server_has_its_ports_before_its_process_is_there(engine: Engine) -> None:
    place = Place(engine)
    place.runtime.wait_server_served = place.routes.wait_server_served
    wish = datagrams(1)
    async with asking(place.runtime.lease(wish)) as leasing:

        async def told() -> Any:
            return list((await place.follow()).routes)

        routes = await eventually(told)
        assert {route.backend_port for route in routes} == {0}
        await place.follow(*(outcome(route, "LISTENING") for route in routes))
        leased = await asyncio.wait_for(leasing, PATIENCE_S)
    backends = {
        name: runtime_pb2.Backend(address="127.0.0.1", port=12_000 + number)
        for number, name in enumerate(leased.ports)
    }
    placed = runtime_pb2.PlaceServerRequest(server_id=wish.server_id, backends=backends)
    await place.runtime.place_server(placed)
    again = await asyncio.wait_for(place.runtime.lease(wish), PATIENCE_S)
    assert again == leased, "who asks again waits for nothing more"


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


async def test_when_all_ports_are_leased_no_lobby_is_made(engine: Engine) -> None:
    streams = {"docker": {**MODES["duel"]["docker"], "ports": {"game": {"protocol": "tcp"}}}}
    place = await connected_place(engine, streams=streams)
    await asyncio.gather(
        *(place.runtime.lease(datagrams(number)) for number in range(FAMILY // 16))
    )
    for asked in (place.find(), place.create()):
        assert (await refused(asked)).code == "PORTS_EXHAUSTED"
    one_more = await refused(place.runtime.lease(datagrams(FAMILY)))
    assert one_more.code == "PORTS_EXHAUSTED"
    assert (await place.wanted()).lobbies == []
    async with asking(place.find("streams")):
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        assert wanted.spec.game_mode == "streams", "there are ports of the other family"


def datagrams(number: int) -> runtime_pb2.LeaseRequest:
    """What a dynamic server wants that has as many ports as one may have."""
    return runtime_pb2.LeaseRequest(
        server_id=format_uuid(number.to_bytes(16)),
        namespace_id=NAMESPACE_ID,
        region="north",
        protocols={f"port-{port}": "udp" for port in range(16)},
    )


async def test_dynamic_servers_have_ports_that_are_given_back(engine: Engine) -> None:
    place = Place(engine)
    server_id = "0192f000-0000-7000-8000-0000000000f1"
    request = runtime_pb2.LeaseRequest(
        server_id=server_id,
        namespace_id=server_id,
        region="north",
        protocols={"game": "udp", "web": "http"},
    )
    leased = await place.runtime.lease(request)
    assert leased == await place.runtime.lease(request)
    assert leased.ports["game"].hostname == "192.0.2.7"
    assert list((await place.runtime.leases(runtime_pb2.LeasesRequest())).server_ids) == [server_id]
    backend = runtime_pb2.Backend(address="127.0.0.1", port=12_000)
    placed = runtime_pb2.PlaceServerRequest(server_id=server_id, backends={"game": backend})
    await place.runtime.place_server(placed)
    routes = {route.port_name: route for route in (await place.follow()).routes}
    assert routes["game"].port == leased.ports["game"].port
    assert (routes["game"].backend_port, routes["web"].backend_port) == (12_000, 0)
    over = runtime_pb2.EndLeaseRequest(server_id=server_id)
    await place.runtime.end_lease(over)
    await place.runtime.end_lease(over)
    assert (await refused(place.runtime.lease(request))).code == "IN_USE"
    assert (await refused(place.runtime.place_server(placed))).code == "SERVER_NOT_FOUND"
