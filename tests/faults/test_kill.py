"""`kill -9` at random moments under load from both doors: every answered token is good exactly once
and no place is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.faults.conftest import MakePlane
from tests.faults.plane import Plane
from tests.faults.shim import Rule, Shim
from tests.faults.siege import Fate, besiege

pytestmark = pytest.mark.anyio

SEED = 20_251_120


def within(longest_s: float, chance: random.Random, end: Fate) -> Fate:
    """Lets it live for a while and then ends it."""

    async def fate(plane: Plane) -> None:
        await asyncio.sleep(chance.random() * longest_s)
        await end(plane)

    return fate


@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=[pytest.mark.proof, pytest.mark.timeout(600)])]
)
async def test_kills_at_random_moments_lose_nothing_that_was_answered(
    make_plane: MakePlane, kills: int
) -> None:
    chance = random.Random(SEED)
    plane = make_plane()
    fates = [within(1.5, chance, Plane.kill) for _ in range(kills)]
    # In the long form the log grows fast enough for images to be written in between.
    world = await besiege(plane, fates, seed=SEED, state_bytes=10_000 if kills > 10 else 0)
    counts = world.ledger.counts
    assert counts["restarts"] == kills
    # A load that met no kill would prove nothing.
    assert counts["lost answers"] > 0, counts
    assert counts["expired"] > 0, counts
    for wanted in ("http answers", "grpc answers", "connected", "disconnected"):
        assert counts[wanted] > 10, counts
    if kills > 10:
        for wanted in ("lost find", "lost join", "lost connected", "lost disconnected", "rejoined"):
            assert counts[wanted] > 0, counts
        assert list(plane.commanded.journal_folder.glob("image-*.img"))
    await plane.stop()


async def test_a_stop_in_the_middle_of_everything_is_clean_and_loses_nothing(
    make_plane: MakePlane,
) -> None:
    chance = random.Random(SEED)
    plane = make_plane()
    fates = [within(1.0, chance, Plane.stop) for _ in range(2)]
    world = await besiege(plane, fates, seed=SEED)
    assert world.ledger.counts["restarts"] == 2
    await plane.stop()
    assert "Traceback" not in plane.log.read_text()


def deaths(chance: random.Random) -> list[Fate]:
    """Every way to die, in random order and at random moments."""

    def by_rule(arm: Callable[[Shim], Rule]) -> Fate:
        async def fate(plane: Plane) -> None:
            rule = arm(plane.commanded)
            try:
                await plane.wait_ended(timeout_s=60)
            finally:
                rule.forget()

        return fate

    def later() -> int:
        return chance.randint(1, 200)

    ways: list[Fate] = [Plane.kill, Plane.kill, Plane.stop]
    for _ in range(3):
        ways += [
            by_rule(lambda shim: shim.fail("fdatasync", "seg-*", first=later())),
            by_rule(lambda shim: shim.fail("pwrite", "seg-*", first=later())),
            by_rule(lambda shim: shim.kill("pwrite", "seg-*", at=later())),
            by_rule(lambda shim: shim.kill("fdatasync", "seg-*", at=later(), after=True)),
            by_rule(lambda shim: shim.tear("seg-*", at=later(), keep=chance.randint(1, 5_000))),
        ]
    chance.shuffle(ways)
    return [within(0.5, chance, way) for way in ways]


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_many_deaths_of_all_kinds_in_a_row_lose_nothing(
    make_plane: MakePlane, seed: int
) -> None:
    fates = deaths(random.Random(seed))
    plane = make_plane()
    world = await besiege(plane, fates, seed=seed, state_bytes=5_000)
    assert world.ledger.counts["restarts"] == len(fates)
    assert await plane.metric("hosting_ledger_violations_total") == 0
    await plane.stop()
