"""Lobbies are made as long as somebody has room to start them (decisions 5.3, 5.5)."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.native import Lobby
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from tests.dataplane.configurations import NAMESPACE_ID
from tests.dataplane.processes import Place, asking, refused
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

TIER: Final = "basic-1d1"
MANY: Final = 200


async def test_what_is_made_takes_room_before_the_runtime_has_heard_of_it(engine: Engine) -> None:
    place = Place(engine)
    place.free = (2_500, 1_000_000)
    await place.wanted()
    async with asking(place.create()), asking(place.create()):
        while len(engine.processes.wanted_since(0)[2]) < 2:
            await asyncio.sleep(0)
        assert (await refused(place.create())).code == "CAPACITY_EXHAUSTED"
        waiting = await refused(place.find(tags={"nobody": "has"}))
        assert waiting.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
        assert len((await place.wanted()).lobbies) == 2
        place.free = (500, 1_000_000)
        await place.wanted()
        assert (await refused(place.create())).code == "CAPACITY_EXHAUSTED"
        place.free = (1_500, 1_000_000)
        await place.wanted()
        async with asking(place.create()):
            [third] = (await place.wanted(wait_ms=5_000)).lobbies
            assert not third.is_stopping


async def test_memory_counts_as_processors_do(engine: Engine) -> None:
    place = Place(engine)
    place.free = (1_000_000, 2_047)
    await place.wanted()
    assert (await refused(place.create())).code == "CAPACITY_EXHAUSTED"
    place.free = (1_000_000, 2_048)
    await place.wanted()
    async with asking(place.create()):
        answer = await asyncio.wait_for(place.wanted(wait_ms=5_000), PATIENCE_S)
        assert len(answer.lobbies) == 1


async def test_right_after_a_start_a_find_waits_for_whoever_starts_processes(
    engine: Engine,
) -> None:
    place = Place(engine)
    place.runtime.expect_runtime()
    async with asking(place.find()) as finding, asking(place.create()):
        await asyncio.sleep(0)
        assert not finding.done()
        answer = await asyncio.wait_for(place.wanted(wait_ms=5_000), PATIENCE_S)
        while len(answer.lobbies) < 2:
            more = await asyncio.wait_for(place.wanted(wait_ms=5_000), PATIENCE_S)
            answer.lobbies.extend(more.lobbies)


async def test_a_mode_without_an_image_waits_for_nobody(engine: Engine) -> None:
    place = Place(engine)
    place.runtime.expect_runtime()
    finding = await refused(place.find("attached"))
    assert finding.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    assert not place.runtime.is_known


async def test_one_that_stops_before_it_is_ready_is_not_counted_beside_what_it_has(
    engine: Engine,
) -> None:
    place = Place(engine)
    place.free = (2_000, 1_000_000)
    await place.wanted()
    async with asking(place.create()):
        [first] = (await place.wanted(wait_ms=5_000)).lobbies
        # It has begun, so what is free is without it.
        place.free = (1_000, 1_000_000)
        await place.wanted()
        await engine.processes.stop(raw_id(first.lobby_id), only_if_idle=False)
        async with asking(place.create()):
            await wanted_lobbies(engine, 2)
            stopping, second = (await place.wanted(wait_ms=5_000)).lobbies
            assert (stopping.lobby_id, stopping.is_stopping) == (first.lobby_id, True)
            assert second.HasField("spec")


async def test_a_lobby_that_ends_before_anybody_has_heard_of_it_leaves_its_room(
    engine: Engine,
) -> None:
    place = Place(engine)
    place.free = (1_000, 1_000_000)
    await place.wanted()
    async with asking(place.create()):
        [lobby] = await wanted_lobbies(engine, 1)
        assert (await refused(place.create())).code == "CAPACITY_EXHAUSTED"
        await engine.processes.exited(lobby, None)
    async with asking(place.create()):
        assert lobby not in await wanted_lobbies(engine, 1)


async def test_lobbies_that_come_at_once_are_looked_at_once_each(engine: Engine) -> None:
    place, source = Place(engine), Counting(engine)
    runtime = RuntimeConnection(source, place.namespaces, place.player_addresses, {TIER: (10, 10)})
    capacity = runtime_pb2.Capacity(
        kinds=["archive"], free_cpu_millicores=10 * MANY, free_memory_mb=10 * MANY
    )
    await runtime.wanted(runtime_pb2.WantedRequest(capacity=capacity))
    await place.wanted()
    namespace = place.namespaces.resolved(raw_id(NAMESPACE_ID))
    for _ in range(MANY):
        assert runtime.can_start(TIER)
        make = place.lobby_templates.for_idle(namespace, namespace.modes["duel"], "north")
        assert make is not None
        await engine.processes.start_idle(namespace.namespace_id, namespace.version_id, make)
    assert not runtime.can_start(TIER)
    assert source.looks <= MANY


class Counting:
    """The engine, and how often it was asked for a lobby."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.processes = engine.processes
        self.wait_for_batch = engine.wait_for_batch
        self.looks = 0

    def lobby(self, lobby: bytes) -> Lobby | None:
        self.looks += 1
        return self._engine.lobby(lobby)


async def wanted_lobbies(engine: Engine, count: int) -> list[bytes]:
    """As soon as there are so many."""

    async def found() -> list[bytes] | None:
        lobbies = [lobby for lobby, _ in engine.processes.wanted_since(0)[2]]
        return lobbies if len(lobbies) >= count else None

    lobbies: list[bytes] = await eventually(found)
    return lobbies
