"""One SIGKILL at each step of the journal: at start, commit, segment change and compaction.

`STEPS` lists all steps. A test compares the table with the recorded calls.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import pytest

from tests.faults.conftest import MakePlane
from tests.faults.restarts_under_load import EndProcess, restart_under_load
from tests.support.fault_shim import RecordedCall, Rule, Shim
from tests.support.killable_plane import Plane

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.full]

SEGMENT_BYTES: Final = 1 << 20
# States of this size fill a segment in about thirty calls.
STATE_BYTES: Final = 30_000
SMALL: Final[dict[str, Any]] = {
    "seed": 7,
    "players": 6,
    "lobbies": 2,
    "miss_chance": 0.0,
    "state_bytes": STATE_BYTES,
}
FIRST: Final = "at the first start"
START: Final = "at a start"


@dataclass(frozen=True, slots=True)
class JournalStep:
    name: str
    kind: str
    files: str
    at: int = 1
    when: Literal["at the first start", "at a start", "under load"] = "under load"


STEPS: Final = (
    JournalStep("room for the first segment", "fallocate", "segment-*", when=FIRST),
    JournalStep("zeros of the first segment", "pwrite", "segment-*", when=FIRST),
    JournalStep("header of the first segment", "pwrite", "segment-*", 2, when=FIRST),
    JournalStep("sync of the first segment", "fdatasync", "segment-*", when=FIRST),
    JournalStep("name of the first segment", "rename", "seg-*", when=FIRST),
    JournalStep("folder with the first segment", "fsync", "", when=FIRST),
    JournalStep("first batch of the first run", "pwrite", "seg-*", when=FIRST),
    JournalStep("sync of the first run", "fdatasync", "seg-*", when=FIRST),
    JournalStep("folder at recovery", "fsync", "", when=START),
    JournalStep("sync of the last batch", "fdatasync", "seg-*", when=START),
    JournalStep("first batch of a run", "pwrite", "seg-*", when=START),
    JournalStep("sync of a first batch", "fdatasync", "seg-*", 2, when=START),
    JournalStep("commit", "pwrite", "seg-*", 7),
    JournalStep("sync of a commit", "fdatasync", "seg-*", 7),
    JournalStep("room for a new segment", "fallocate", "segment-*"),
    JournalStep("zeros of a new segment", "pwrite", "segment-*"),
    JournalStep("header of a new segment", "pwrite", "segment-*", 2),
    JournalStep("sync of a new segment", "fdatasync", "segment-*"),
    JournalStep("name of a segment", "rename", "seg-*"),
    JournalStep("folder with a new segment", "fsync", ""),
    JournalStep("first batch in the second segment", "pwrite", "seg-000000000002.log"),
    JournalStep("sync in the second segment", "fdatasync", "seg-000000000002.log"),
    JournalStep("head of an image", "pwrite", "image.tmp"),
    JournalStep("end of an image", "pwrite", "image.tmp", 2),
    JournalStep("sync of an image", "fdatasync", "image.tmp"),
    JournalStep("name of an image", "rename", "image-*"),
    JournalStep("segment set aside", "rename", "free-*"),
    JournalStep("new header of a used segment", "pwrite", "free-*"),
    JournalStep("sync of a used segment", "fdatasync", "free-*"),
)
QUICK: Final = (
    ("zeros of the first segment", "torn"),
    ("first batch of a run", "torn"),
    ("sync of a commit", "after"),
    ("first batch in the second segment", "torn"),
    ("name of an image", "after"),
)


def cases() -> Iterator[object]:
    for step in STEPS:
        for moment in ("before", "after", *(["torn"] if step.kind == "pwrite" else [])):
            marks = [] if (step.name, moment) in QUICK else [pytest.mark.proof]
            yield pytest.param(step, moment, id=f"{step.name}, {moment}", marks=marks)


def aim(shim: Shim, step: JournalStep, moment: str) -> Rule:
    if moment == "torn":
        return shim.tear(step.files, at=step.at, keep=700)
    return shim.kill(step.kind, step.files, at=step.at, after=moment == "after")


async def kill_at(plane: Plane, shim: Shim, step: JournalStep, moment: str) -> None:
    if step.when == "under load":
        rule = aim(shim, step, moment)
    else:
        if plane.process is not None:
            await plane.kill()
        rule = aim(shim, step, moment)
        plane.spawn()
    try:
        await plane.wait_ended(timeout_s=60)
        assert rule.hits == 1, plane.log_tail()
    finally:
        rule.forget()


def passing(shim: Shim) -> Callable[[float], Awaitable[None]]:
    async def pass_at_once(seconds: float) -> None:
        shim.shift_boot_clock(seconds)

    return pass_at_once


@pytest.mark.parametrize(("step", "moment"), list(cases()))
async def test_kill_at_each_journal_step_loses_nothing(
    make_plane: MakePlane, step: JournalStep, moment: str
) -> None:
    plane = make_plane(settings={"journal": {"segment_bytes": SEGMENT_BYTES}})
    shim = plane.commanded
    endings: list[EndProcess] = [lambda plane: kill_at(plane, shim, step, moment)]
    if step.when == FIRST:
        await endings.pop()(plane)
    await restart_under_load(plane, endings, sleep=passing(shim), **SMALL)


def role(step: RecordedCall) -> tuple[str, str]:
    return step.kind, re.sub(r"\d{6,}", "*", step.name)


@pytest.mark.proof
@pytest.mark.fast
async def test_step_table_has_every_step_of_the_journal(make_plane: MakePlane) -> None:
    plane = make_plane(settings={"journal": {"segment_bytes": SEGMENT_BYTES}})
    shim = plane.commanded
    created: set[tuple[str, str]] = set()

    async def until_a_segment_is_used_again(plane: Plane) -> None:
        async with asyncio.timeout(60):
            while ("fdatasync", "free-*.log") not in created:
                created.update(role(step) for step in shim.steps())
                await asyncio.sleep(0.1)
        await plane.kill()

    await restart_under_load(plane, [until_a_segment_is_used_again], sleep=passing(shim), **SMALL)
    created.update(role(step) for step in shim.steps())
    named = {(step.kind, re.sub(r"\d{6,}\.log", "*", step.files)) for step in STEPS}
    assert {(kind, re.sub(r"\*\.\w+$", "*", name)) for kind, name in created} == named
