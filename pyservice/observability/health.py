from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Mapping
from typing import Final, Protocol

from pyservice.observability.logging import get_logger


class Note(str):
    """Text of a health condition that only informs the operator and reports no problem."""

    __slots__ = ()


Conditions = Mapping[str, str | None]
"""Conditions by name. None is healthy, a `Note` is information, any other text is a problem."""


def failed_conditions(conditions: Conditions) -> dict[str, str]:
    return {
        name: problem
        for name, problem in conditions.items()
        if problem is not None and not isinstance(problem, Note)
    }


_log = get_logger("upkeep")


class Measure(Protocol):
    @property
    def is_low(self) -> bool: ...

    def measure(self) -> None: ...

    def figures(self) -> Mapping[str, int]: ...


async def log_shortage(measure: Measure, every_s: float, low: str, recovered: str) -> None:
    """Checks a measure, such as free disk space, until cancelled.

    Logs the event `low` when a shortage begins, and the event `recovered` when it ends.
    """
    was_low = False
    while True:
        measure.measure()
        if measure.is_low != was_low:
            was_low = measure.is_low
            log_event = _log.error if was_low else _log.info
            log_event(low if was_low else recovered, **measure.figures())
        await asyncio.sleep(every_s)


_OPEN: Final = "/proc/self/fd"
_CHECK_S: Final = 1.0
_RESERVE_MAX: Final = 2560
"""Maximum of reserved descriptors: for other servers (1,024), the other plane (1,280), files,
databases and probes.
"""
_RESERVE_PART: Final = 4


def descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard limit, if possible. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # If the hard limit is infinite, the kernel's own limit still applies.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def descriptor_reserve(most: int) -> int:
    """Returns how many file descriptors are kept free of client connections. `most` is the limit of
    open files.
    """
    return min(_RESERVE_MAX, most // _RESERVE_PART)


def connections_max(files_each: int = 1) -> int:
    """Returns how many client connections are possible if each of them opens `files_each` files."""
    most = descriptor_limit()
    return (most - descriptor_reserve(most)) // files_each


def _count() -> int:
    try:
        return len(os.listdir(_OPEN))
    except OSError:
        return descriptor_limit()


class DescriptorMonitor:
    def __init__(self) -> None:
        self.most = descriptor_limit()
        self.used = 0
        self.measure()

    @property
    def is_low(self) -> bool:
        return self.used > self.most - descriptor_reserve(self.most)

    def measure(self) -> None:
        # Linux 6.2 and later report the count here.
        self.used = os.stat(_OPEN).st_size or _count()

    def figures(self) -> dict[str, int]:
        return {"used": self.used, "limit": self.most}

    async def run(self) -> None:
        low = "open files are nearly used up: raise the limit (ulimit -n, LimitNOFILE)"
        await log_shortage(self, _CHECK_S, low, "open files are free again")
