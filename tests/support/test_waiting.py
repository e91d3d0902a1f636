from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.waiting import FreeTime, eventually, promised

pytestmark = pytest.mark.anyio

BUSY = "print(flush=True)\nwhile True: pass"


@pytest.fixture
def overloaded() -> Iterator[None]:
    if not Path("/proc/pressure/cpu").exists():
        pytest.skip("the kernel does not count who waits for a processor")
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            command = [sys.executable, "-S", "-c", BUSY]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
        yield


async def test_cpu_contention_is_not_counted(overloaded: None) -> None:
    began = FreeTime()
    await asyncio.sleep(1.0)
    assert began.wall_s >= 0.99
    assert began.passed_s < 0.8 * began.wall_s


async def test_free_time_never_exceeds_the_clock() -> None:
    began = FreeTime()
    assert began.passed_s >= 0.0
    await asyncio.sleep(0.1)
    passed_s = began.passed_s
    assert passed_s <= began.wall_s
    assert began.is_within(3_600.0)


async def test_missing_pressure_counters_count_as_lost_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.support.waiting._pressure_s", lambda _: None)
    began = FreeTime()
    await asyncio.sleep(0.5)
    assert 0.0 < began.passed_s < 0.2 * began.wall_s


async def test_check_returns_its_value_or_fails_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.support.waiting.PATIENCE_S", 0.05)
    looks = 0

    async def third() -> int:
        nonlocal looks
        looks += 1
        return looks // 3

    async def never() -> bool:
        return False

    assert await eventually(third) == 1
    assert await promised(third, 0.05) == 1
    with pytest.raises(AssertionError, match="not within"):
        await eventually(never, 0.05)
    with pytest.raises(AssertionError, match="not within"):
        await promised(never, 0.05)
