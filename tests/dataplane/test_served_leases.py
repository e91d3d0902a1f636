"""Ports of a dynamic server are told when edge-guard has them: until then they may become others (decisions 5.9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyservice.dataplane import edge_routes
from pyservice.dataplane.engine import Engine
from pyservice.pb.hosting.internal.v1 import routes_pb2, runtime_pb2
from tests.dataplane.configurations import NAMESPACE_ID
from tests.dataplane.processes import Place, asking, outcome, refused
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

WISH = runtime_pb2.LeaseRequest(
    server_id="0192f000-0000-7000-8000-0000000000c1",
    namespace_id=NAMESPACE_ID,
    region="north",
    protocols={"game": "tcp", "voice": "udp", "web": "http"},
)


@pytest.fixture
async def place(engine: Engine) -> Place:
    made = Place(engine)
    made.runtime.wait_server_served = made.routes.wait_server_served
    return made


async def told(place: Place) -> Sequence[routes_pb2.Route]:
    """What edge-guard is told of."""

    async def found() -> Any:
        return list((await place.follow()).routes)

    new: Sequence[routes_pb2.Route] = await eventually(found)
    return new


async def test_who_wants_ports_is_told_those_that_edge_guard_could_have(place: Place) -> None:
    async with asking(place.runtime.lease(WISH)) as leasing:
        first = {route.port_name: route for route in await told(place)}
        game, voice, web = (first[name] for name in ("game", "voice", "web"))
        await place.follow(outcome(game, "REFUSED"), outcome(voice, "LISTENING"))
        await place.follow(outcome(web, "LISTENING"))
        assert not leasing.done()
        # The answer to its question was the new number.
        place.version = 0
        [other] = [route for route in await told(place) if route.port_name == "game"]
        assert other.port != game.port
        await place.follow(outcome(other, "LISTENING"))
        leased = await leasing
    numbers = {name: port.port for name, port in leased.ports.items()}
    assert numbers == {"game": other.port, "voice": voice.port, "web": web.port}
    assert await place.runtime.lease(WISH) == leased


async def test_who_wants_ports_while_edge_guard_is_away_is_told_to_try_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_routes, "SERVER_SERVED_TIMEOUT_S", 0.05)
    assert (await refused(place.runtime.lease(WISH))).code == "OVERLOADED"
