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
from tests.faults.plane import Plane
from tests.faults.restarts_under_load import EndProcess, restart_under_load
from tests.faults.shim import Rule, Shim, Step

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

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
class Named:
    name: str
    kind: str
    files: str
    at: int = 1
    when: Literal["at the first start", "at a start", "under load"] = "under load"


STEPS: Final = (
    Named("room for the first segment", "fallocate", "segment.tmp", when=FIRST),
    Named("zeros of the first segment", "pwrite", "segment.tmp", when=FIRST),
    Named("header of the first segment", "pwrite", "segment.tmp", 2, when=FIRST),
    Named("sync of the first segment", "fdatasync", "segment.tmp", when=FIRST),
    Named("name of the first segment", "rename", "seg-*", when=FIRST),
    Named("folder with the first segment", "fsync", "", when=FIRST),
    Named("first batch of the first run", "pwrite", "seg-*", when=FIRST),
    Named("sync of the first run", "fdatasync", "seg-*", when=FIRST),
    Named("folder at recovery", "fsync", "", when=START),
    Named("last batch written again", "pwrite", "seg-*", when=START),
    Named("sync of the last batch", "fdatasync", "seg-*", when=START),
    Named("first batch of a run", "pwrite", "seg-*", 2, when=START),
    Named("sync of a first batch", "fdatasync", "seg-*", 2, when=START),
    Named("commit", "pwrite", "seg-*", 7),
    Named("sync of a commit", "fdatasync", "seg-*", 7),
    Named("room for a new segment", "fallocate", "segment.tmp"),
    Named("zeros of a new segment", "pwrite", "segment.tmp"),
    Named("header of a new segment", "pwrite", "segment.tmp", 2),
    Named("sync of a new segment", "fdatasync", "segment.tmp"),
    Named("name of a segment", "rename", "seg-*"),
    Named("folder with a new segment", "fsync", ""),
    Named("first batch in the second segment", "pwrite", "seg-000000000002.log"),
    Named("sync in the second segment", "fdatasync", "seg-000000000002.log"),
    Named("head of an image", "pwrite", "image.tmp"),
    Named("end of an image", "pwrite", "image.tmp", 2),
    Named("sync of an image", "fdatasync", "image.tmp"),
    Named("name of an image", "rename", "image-*"),
    Named("segment set aside", "rename", "free-*"),
    Named("new header of a used segment", "pwrite", "free-*"),
    Named("sync of a used segment", "fdatasync", "free-*"),
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
        for way in ("before", "after", *(["torn"] if step.kind == "pwrite" else [])):
            marks = [] if (step.name, way) in QUICK else [pytest.mark.proof]
            yield pytest.param(step, way, id=f"{step.name}, {way}", marks=marks)


def aim(shim: Shim, step: Named, way: str) -> Rule:
    if way == "torn":
        return shim.tear(step.files, at=step.at, keep=700)
    return shim.kill(step.kind, step.files, at=step.at, after=way == "after")


async def die_at(plane: Plane, shim: Shim, step: Named, way: str) -> None:
    if step.when == "under load":
        rule = aim(shim, step, way)
    else:
        if plane.process is not None:
            await plane.kill()
        rule = aim(shim, step, way)
        plane.spawn()
    try:
        await plane.wait_ended(timeout_s=60)
        assert rule.struck == 1, plane.log_tail()
    finally:
        rule.forget()


def passing(shim: Shim) -> Callable[[float], Awaitable[None]]:
    async def pass_at_once(seconds: float) -> None:
        shim.shift_boot_clock(seconds)

    return pass_at_once


@pytest.mark.parametrize(("step", "way"), list(cases()))
async def test_kill_at_each_journal_step_loses_nothing(
    make_plane: MakePlane, step: Named, way: str
) -> None:
    plane = make_plane(settings={"journal": {"segment_bytes": SEGMENT_BYTES}})
    shim = plane.commanded
    endings: list[EndProcess] = [lambda plane: die_at(plane, shim, step, way)]
    if step.when == FIRST:
        await endings.pop()(plane)
    await restart_under_load(plane, endings, sleep=passing(shim), **SMALL)


def role(step: Step) -> tuple[str, str]:
    return step.kind, re.sub(r"\d{6,}", "*", step.name)


@pytest.mark.proof
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


@pytest.mark.proof
async def test_killed_compaction_is_retried_without_errors(
    make_plane: MakePlane,
) -> None:
    plane = make_plane(settings={"journal": {"segment_bytes": SEGMENT_BYTES}})
    shim = plane.commanded

    async def outlive(plane: Plane) -> None:
        pid = plane.pid
        rule = shim.kill("rename", "image-*", with_service=False)
        async with asyncio.timeout(90):
            while not rule.struck or not list(shim.journal_folder.glob("image-*.img")):
                await asyncio.sleep(0.02)
        rule.release()
        assert plane.process is not None
        assert plane.process.poll() is None
        assert shim.service_pid == pid
        await plane.kill()

    await restart_under_load(plane, [outlive], sleep=passing(shim), **SMALL)
