"""`kill -9` at random moments under load from both doors: every answered token is good exactly once
and no place is lost.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.faults.conftest import MakePlane
from tests.faults.plane import Plane
from tests.faults.siege import Fate, besiege

pytestmark = pytest.mark.anyio

SEED = 20_251_120


def kill_within(chance: random.Random, longest_s: float) -> Fate:
    async def fate(plane: Plane) -> None:
        await asyncio.sleep(chance.random() * longest_s)
        await plane.kill()

    return fate


@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=[pytest.mark.proof, pytest.mark.timeout(600)])]
)
async def test_kills_at_random_moments_lose_nothing_that_was_answered(
    make_plane: MakePlane, kills: int
) -> None:
    chance = random.Random(SEED)
    plane = make_plane(settings={"journal": {"segment_bytes": 1 << 20}})
    fates = [kill_within(chance, 1.5) for _ in range(kills)]
    world = await besiege(plane, fates, seed=SEED)
    counts = world.ledger.counts
    assert counts["restarts"] == kills
    # A load that met no kill would prove nothing.
    assert counts["lost answers"] > 0, counts
    assert counts["expired"] > 0, counts
    for wanted in ("http answers", "grpc answers", "connected", "disconnected"):
        assert counts[wanted] > 10, counts
    if kills > 10:
        for wanted in ("lost find", "lost join", "lost connected", "lost disconnected"):
            assert counts[wanted] > 0, counts
    await plane.stop()
