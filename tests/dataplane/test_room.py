"""Lobbies are made as long as somebody has room to start them (decisions 5.3, 5.5)."""

from __future__ import annotations

import asyncio

import pytest

from pyservice.dataplane.engine import Engine
from tests.dataplane.processes import Place, asking, refused
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_what_is_made_takes_room_before_the_runtime_has_heard_of_it(engine: Engine) -> None:
    place = Place(engine)
    place.free = (2_500, 1_000_000)
    await place.wanted()
    async with asking(place.create()), asking(place.create()):
        while len(engine.servers.wanted_since(0)[2]) < 2:
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
    place.runners.begin()
    async with asking(place.find()) as finding, asking(place.create()):
        await asyncio.sleep(0)
        assert not finding.done()
        answer = await asyncio.wait_for(place.wanted(wait_ms=5_000), PATIENCE_S)
        while len(answer.lobbies) < 2:
            more = await asyncio.wait_for(place.wanted(wait_ms=5_000), PATIENCE_S)
            answer.lobbies.extend(more.lobbies)


async def test_a_mode_without_an_image_waits_for_nobody(engine: Engine) -> None:
    place = Place(engine)
    place.runners.begin()
    finding = await refused(place.find("attached"))
    assert finding.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    assert not place.runners.is_settled
