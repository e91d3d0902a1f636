"""Health conditions of a process, and its open file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Mapping
from typing import Final, Protocol

from pyservice.observability.logging import get_logger


class Note(str):
    """What an operator may want to know besides: it neither holds nor is it failed_conditions."""

    __slots__ = ()


Conditions = Mapping[str, str | None]
"""By name: None when it holds, a `Note` when there is only something to tell, else what is wrong."""


def failed_conditions(conditions: Conditions) -> dict[str, str]:
    """What makes the process not ready, by name."""
    return {
        name: said
        for name, said in conditions.items()
        if said is not None and not isinstance(said, Note)
    }


_log = get_logger("upkeep")


class Measure(Protocol):
    """What is measured."""

    @property
    def is_low(self) -> bool:
        """Whether little is left, when it was last looked at."""

    def look(self) -> None:
        """Measures now."""

    def figures(self) -> Mapping[str, int]:
        """What goes to the log."""


async def log_shortage(measure: Measure, every_s: float, low: str, enough: str) -> None:
    """Until cancelled; `low` and `enough` are what the log says."""
    was_low = False
    while True:
        measure.look()
        if measure.is_low != was_low:
            was_low = measure.is_low
            say = _log.error if was_low else _log.info
            say(low if was_low else enough, **measure.figures())
        await asyncio.sleep(every_s)


_OPEN: Final = "/proc/self/fd"
_CHECK_S: Final = 1.0
_RESERVE_MAX: Final = 2048
"""Requests to other servers (1,024), and to the other plane (512 and some); files, databases, probes."""
_RESERVE_PART: Final = 4


def descriptor_limit() -> int:
    """How many this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptor_limit() -> int:
    """Raises the soft limit to the hard one. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where there is no hard limit, the kernel's own still holds.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def descriptor_reserve(most: int) -> int:
    """How many of so many clients' connections leave to everything else."""
    return min(_RESERVE_MAX, most // _RESERVE_PART)


def connections_max(files_each: int = 1) -> int:
    """How many connections of clients this process may have, when each has so many files open, itself included."""
    most = descriptor_limit()
    return (most - descriptor_reserve(most)) // files_each


def _count() -> int:
    try:
        return len(os.listdir(_OPEN))
    except OSError:
        # Looking takes one.
        return descriptor_limit()


class DescriptorMonitor:
    """How many are used, against the limit."""

    def __init__(self) -> None:
        self.most = descriptor_limit()
        self.used = 0
        self.look()

    @property
    def is_low(self) -> bool:
        return self.used > self.most - descriptor_reserve(self.most)

    def look(self) -> None:
        """Measures now."""
        # Linux from 6.2 on says here how many there are.
        self.used = os.stat(_OPEN).st_size or _count()

    def figures(self) -> dict[str, int]:
        return {"used": self.used, "limit": self.most}

    async def run(self) -> None:
        """Measures until cancelled, and says when few are left and when there are enough again."""
        low = "open files are nearly used up: raise the limit (ulimit -n, LimitNOFILE)"
        await log_shortage(self, _CHECK_S, low, "open files are free again")
