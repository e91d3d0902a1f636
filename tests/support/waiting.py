"""How long tests wait, beside whatever else the machine does.

What has to come is waited for with PATIENCE_S, which is no figure of the product. Where the product promises a time,
the time is counted that the machine had for it: see `FreeTime`.
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
"""What has not come by then does not come. A watch that nobody wakes answers by itself after 40 s."""
POLL_S: Final = 0.01
SLACK: Final = 2.0
"""Times what is promised: whoever looks needs some of it himself."""
STEAL: Final = 8
"""Field of `/proc/stat` with the ticks in which another machine had the processors."""
Found = TypeVar("Found")


class FreeTime:
    """Seconds since it was made, without those in which somebody on the machine waited for a processor or a disk: the
    whole time on a quiet machine, and next to nothing on one that has more work than it can do.
    """

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
        """Whether there may be more to come of what was promised within so many seconds."""
        is_free = self.passed_s < SLACK * promised_s
        return is_free and self.wall_s < SLACK * promised_s + PATIENCE_S


def _lost_s() -> tuple[float, ...]:
    """Seconds that were lost until now: waiting for processors, for disks, for the host. A kernel that does not count
    them may have lost all but a tenth.
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
    """Whether /readyz finds nothing wrong but a loop that was late once: then a machine had other work, and it is said
    for ten seconds.
    """
    late = re.fullmatch(r"loop: late by \d+ ms\nnot ready\n", answer.text)
    return answer.status_code == 200 or late is not None


def until(condition: Callable[[], Found]) -> Found:
    """The first true value of the condition."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(POLL_S)
    return value


async def eventually(check: Any, timeout_s: float = PATIENCE_S) -> Any:
    """What an asynchronous check returns once it is true; what it waits for comes from elsewhere."""
    end = time.monotonic() + timeout_s
    while not (result := await check()):
        assert time.monotonic() < end, f"not within {timeout_s} s: {result!r}"
        await asyncio.sleep(POLL_S)
    return result


async def promised(check: Any, within_s: float) -> Any:
    """The same of what the product promises within so many seconds, of `FreeTime`."""
    began = FreeTime()
    while not (result := await check()):
        assert began.is_within(within_s), f"not within {within_s} s: {result!r}"
        await asyncio.sleep(POLL_S)
    return result
