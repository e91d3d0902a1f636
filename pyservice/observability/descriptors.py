"""Open files of this process: as many as the system lets it have, and whether there are any left.

Every connection is one. Who has too many, and what is refused then, is the listeners' matter.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Final

from pyservice.observability.shortage import tell_shortage

_OPEN: Final = "/proc/self/fd"
_CHECK_S: Final = 1.0
_RESERVE_MAX: Final = 2048
"""Requests to other servers (1,024), and to the other plane (512 and some); files, databases, probes."""
_RESERVE_PART: Final = 4


def limit() -> int:
    """How many this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> int:
    """Takes as many as it may have: what shells give by default is for programs with few connections. The limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where there is no hard limit, the kernel's own still holds.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return limit()


def reserve_of(most: int) -> int:
    """How many of so many clients' connections leave to everything else."""
    return min(_RESERVE_MAX, most // _RESERVE_PART)


def connections_most(files_each: int = 1) -> int:
    """How many connections of clients this process may have, when each has so many files open, itself included."""
    most = limit()
    return (most - reserve_of(most)) // files_each


def _count() -> int:
    try:
        return len(os.listdir(_OPEN))
    except OSError:
        # Looking takes one.
        return limit()


class DescriptorWatch:
    """How many are used, against the limit."""

    def __init__(self) -> None:
        self.most = limit()
        self.used = 0
        self.look()

    @property
    def is_low(self) -> bool:
        return self.used > self.most - reserve_of(self.most)

    def look(self) -> None:
        """Measures now."""
        # Linux from 6.2 on says here how many there are.
        self.used = os.stat(_OPEN).st_size or _count()

    def figures(self) -> dict[str, int]:
        return {"used": self.used, "limit": self.most}

    async def run(self) -> None:
        """Measures until cancelled, and says when few are left and when there are enough again."""
        low = "open files are nearly used up: raise the limit (ulimit -n, LimitNOFILE)"
        await tell_shortage(self, _CHECK_S, low, "open files are free again")
