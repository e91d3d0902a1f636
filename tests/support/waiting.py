"""Waiting in tests, independent of other load on the machine.

A test waits up to PATIENCE_S for an event without a promised time. For a time that the product
promises, `FreeTime` counts only time without waiting for resources.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

PATIENCE_S: Final = 30.0
"""Maximum wait of a test in seconds. It must be shorter than 40 s, after which a watch without
changes responds.
"""
POLL_S: Final = 0.01
SLACK: Final = 2.0
"""Factor on promised times, because the test process needs time too."""
STEAL: Final = 8
"""Field of `/proc/stat` with the ticks that the hypervisor gave to other machines."""
Found = TypeVar("Found")


class FreeTime:
    """Clock without the time in which any process waited for a CPU or a disk."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._lost = _lost_s()

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def passed_s(self) -> float:
        lost = [now - then for now, then in zip(_lost_s(), self._lost, strict=True)]
        return max(0.0, self.wall_s - max(lost))

    def is_within(self, promised_s: float) -> bool:
        """Returns whether an event that the product promises within `promised_s` may still arrive
        in time.
        """
        is_free = self.passed_s < SLACK * promised_s
        return is_free and self.wall_s < SLACK * promised_s + PATIENCE_S


def _lost_s() -> tuple[float, ...]:
    """Returns the seconds lost to waiting for CPUs, for disks and for the hypervisor. A kernel
    without pressure statistics counts as 90 % lost.
    """
    unknown = 0.9 * time.monotonic()
    waits = [_pressure_s(Path(f"/proc/pressure/{name}")) for name in ("cpu", "io")]
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=STEAL + 1)[STEAL])
    stolen_s = ticks / os.sysconf("SC_CLK_TCK")
    return (*(unknown if one is None else one for one in waits), stolen_s)


def _pressure_s(path: Path) -> float | None:
    try:
        words = path.read_text().splitlines()[0].split()
    except OSError:
        return None
    return int(words[-1].removeprefix("total=")) / 1e6


def is_ready(answer: httpx.Response) -> bool:
    """Returns whether /readyz is ready, or reports only a late event loop.

    A busy machine causes a late loop, and /readyz reports it for ten seconds.
    """
    late = re.fullmatch(r"loop: late by \d+ ms\nnot ready\n", answer.text)
    return answer.status_code == 200 or late is not None


def until(condition: Callable[[], Found]) -> Found:
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(POLL_S)
    return value


async def eventually(check: Any, timeout_s: float = PATIENCE_S) -> Any:
    """Waits for the first true value of an asynchronous check and returns the value."""
    end = time.monotonic() + timeout_s
    while not (result := await check()):
        assert time.monotonic() < end, f"not within {timeout_s} s: {result!r}"
        await asyncio.sleep(POLL_S)
    return result


async def promised(check: Any, within_s: float) -> Any:
    """Waits as `eventually` does, for a time that the product promises, in seconds of `FreeTime`."""
    began = FreeTime()
    while not (result := await check()):
        assert began.is_within(within_s), f"not within {within_s} s: {result!r}"
        await asyncio.sleep(POLL_S)
    return result
