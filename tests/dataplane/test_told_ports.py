"""Numbers of a dynamic server that somebody was told do not change, whatever edge-guard meets (decisions 5.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pyservice.dataplane import edge_routes
from pyservice.dataplane.edge_routes import EdgeRoutes
from pyservice.dataplane.engine import Engine
from pyservice.pb.hosting.internal.v1 import routes_pb2, runtime_pb2
from tests.dataplane.configurations import NAMESPACE_ID
from tests.dataplane.processes import Place, asking, outcome, refused
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

WISH = runtime_pb2.LeaseRequest(
    server_id="0192f000-0000-7000-8000-0000000000c2",
    namespace_id=NAMESPACE_ID,
    region="north",
    protocols={"game": "tcp"},
)


class Later(Place):
    """A data plane that may be started again over its engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.start()

    def start(self) -> None:
        """Whatever it had in memory is gone."""
        self.routes = EdgeRoutes(self.engine, self.player_addresses, self.engine.status().epoch)
        self.runtime.wait_server_served = self.routes.wait_server_served


@pytest.fixture
async def place(engine: Engine) -> Later:
    return Later(engine)


async def routes_told(place: Place, instance: str) -> Sequence[routes_pb2.Route]:
    """All that edge-guard is told of."""
    place.version = 0

    async def found() -> Any:
        return list((await place.follow(instance=instance)).routes)

    told: Sequence[routes_pb2.Route] = await eventually(found)
    return told


async def leased(place: Place) -> runtime_pb2.PublicPort:
    """A number that was told."""
    async with asking(place.runtime.lease(WISH)) as leasing:
        [route] = await routes_told(place, "one")
        await place.follow(outcome(route, "LISTENING"))
        answer: runtime_pb2.LeaseResponse = await asyncio.wait_for(leasing, PATIENCE_S)
    return answer.ports["game"]


@pytest.mark.parametrize("is_restarted", [False, True], ids=["the same", "another"])
async def test_what_was_told_stays_when_another_edge_guard_cannot_have_it(
    place: Later, *, is_restarted: bool
) -> None:
    told = await leased(place)
    if is_restarted:
        place.start()
    [route] = await routes_told(place, "two")
    await place.follow(outcome(route, "REFUSED"), instance="two")
    [after] = await routes_told(place, "two")
    assert after.port == told.port


async def test_who_asks_again_is_told_the_same_or_to_try_again(
    place: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await leased(place)
    [route] = await routes_told(place, "two")
    monkeypatch.setattr(edge_routes, "SERVER_SERVED_TIMEOUT_S", 0.05)
    async with asking(refused(place.runtime.lease(WISH))) as asking_again:
        await asyncio.sleep(0)
        await place.follow(outcome(route, "REFUSED"), instance="two")
        assert (await asking_again).code == "OVERLOADED"
    monkeypatch.setattr(edge_routes, "SERVER_SERVED_TIMEOUT_S", PATIENCE_S)
    async with asking(place.runtime.lease(WISH)) as asking_again:
        await place.follow(outcome(route, "LISTENING"), instance="two")
        assert (await asking_again).ports["game"] == told


async def test_what_nobody_was_told_changes_over_a_restart(place: Later) -> None:
    async with asking(place.runtime.lease(WISH)):
        [first] = await routes_told(place, "one")
    place.start()
    async with asking(place.runtime.lease(WISH)) as leasing:
        [route] = await routes_told(place, "one")
        assert route == first
        # Before anybody waits again, or after.
        await place.follow(outcome(route, "REFUSED"))

        async def changed() -> Any:
            [route] = await routes_told(place, "one")
            return route if route.port != first.port else None

        other = await eventually(changed)
        await place.follow(outcome(other, "LISTENING"))
        assert (await leasing).ports["game"].port == other.port
