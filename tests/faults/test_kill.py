"""SIGKILL at random times under load from both transports. Every returned token works exactly once
and no slot leaks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.faults.conftest import MakePlane
from tests.faults.restarts_under_load import EndProcess, restart_under_load
from tests.support.fault_shim import Rule, Shim
from tests.support.killable_plane import Plane

pytestmark = [pytest.mark.anyio, pytest.mark.full]

SEED = 20_251_120


def after_random_delay(longest_s: float, chance: random.Random, end: EndProcess) -> EndProcess:
    async def end_process(plane: Plane) -> None:
        await asyncio.sleep(chance.random() * longest_s)
        await end(plane)

    return end_process


@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=[pytest.mark.proof, pytest.mark.timeout(600)])]
)
async def test_random_kills_lose_no_answered_request(make_plane: MakePlane, kills: int) -> None:
    chance = random.Random(SEED)
    plane = make_plane()
    endings = [after_random_delay(1.5, chance, Plane.kill) for _ in range(kills)]
    load_run = await restart_under_load(
        plane, endings, seed=SEED, state_bytes=10_000 if kills > 10 else 0
    )
    counts = load_run.ledger.counts
    assert counts["restarts"] == kills
    assert counts["lost answers"] > 0, counts
    assert counts["expired"] > 0, counts
    for counter in ("http answers", "grpc answers", "connected", "disconnected"):
        assert counts[counter] > 10, counts
    if kills > 10:
        for counter in (
            "lost find",
            "lost join",
            "lost connected",
            "lost disconnected",
            "rejoined",
        ):
            assert counts[counter] > 0, counts
        assert list(plane.commanded.journal_folder.glob("image-*.img"))
    await plane.stop()


async def test_stop_under_load_is_clean_and_loses_nothing(make_plane: MakePlane) -> None:
    chance = random.Random(SEED)
    plane = make_plane()
    endings = [after_random_delay(1.0, chance, Plane.stop) for _ in range(2)]
    load_run = await restart_under_load(plane, endings, seed=SEED)
    assert load_run.ledger.counts["restarts"] == 2
    await plane.stop()
    assert "Traceback" not in plane.log.read_text()


def random_kills(chance: random.Random) -> list[EndProcess]:
    def by_rule(arm: Callable[[Shim], Rule]) -> EndProcess:
        async def end_process(plane: Plane) -> None:
            rule = arm(plane.commanded)
            try:
                await plane.wait_ended(timeout_s=60)
            finally:
                rule.forget()

        return end_process

    def later() -> int:
        return chance.randint(1, 200)

    endings: list[EndProcess] = [Plane.kill, Plane.kill, Plane.stop]
    for _ in range(3):
        endings += [
            by_rule(lambda shim: shim.fail("fdatasync", "seg-*", first=later())),
            by_rule(lambda shim: shim.fail("pwrite", "seg-*", first=later())),
            by_rule(lambda shim: shim.kill("pwrite", "seg-*", at=later())),
            by_rule(lambda shim: shim.kill("fdatasync", "seg-*", at=later(), after=True)),
            by_rule(lambda shim: shim.tear("seg-*", at=later(), keep=chance.randint(1, 5_000))),
        ]
    chance.shuffle(endings)
    return [after_random_delay(0.5, chance, ending) for ending in endings]


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_repeated_kills_of_all_kinds_lose_nothing(make_plane: MakePlane, seed: int) -> None:
    endings = random_kills(random.Random(seed))
    plane = make_plane()
    load_run = await restart_under_load(plane, endings, seed=seed, state_bytes=5_000)
    assert load_run.ledger.counts["restarts"] == len(endings)
    assert await plane.metric("hosting_ledger_violations_total") == 0
    await plane.stop()
