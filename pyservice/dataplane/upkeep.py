"""What the data plane watches about its own process: free storage, a journal that stands still, how
late the event loop runs.

Owns the measuring. Whether that makes it ready, and how it is told, is for the composition root.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyservice.dataplane.engine import Status
from pyservice.observability.shortage import tell_shortage

_STORAGE_CHECK_S: Final = 2.0
_JOURNAL_CHECK_S: Final = 0.5
_LAG_CHECK_S: Final = 0.25
_LAG_KEPT: Final = 40


class StorageWatch:
    """Free bytes where the data directory is, against the reserve."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self.reserve_bytes = reserve_bytes
        self.free_bytes = 0
        self.look()

    @property
    def is_low(self) -> bool:
        return self.free_bytes < self.reserve_bytes

    def look(self) -> None:
        """Measures now."""
        stat = os.statvfs(self._folder)
        self.free_bytes = stat.f_bavail * stat.f_frsize

    def figures(self) -> dict[str, int]:
        return {"free_bytes": self.free_bytes, "reserve_bytes": self.reserve_bytes}

    async def run(self) -> None:
        """Measures until cancelled, and says when the reserve is reached and left."""
        low, enough = "storage reserve reached", "storage reserve is free again"
        await tell_shortage(self, _STORAGE_CHECK_S, low, enough)


class JournalWatch:
    """For how long nothing became durable although something waits for it."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._seen_durable = -1
        self._stuck_since_s: float | None = None
        self.stalled_ms = 0.0

    async def run(self) -> None:
        """Looks until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            status = self._status()
            now_s = loop.time()
            if status.durable != self._seen_durable or status.durable >= status.last:
                self._seen_durable, self._stuck_since_s = status.durable, None
            elif self._stuck_since_s is None:
                self._stuck_since_s = now_s
            since_s = self._stuck_since_s
            self.stalled_ms = 0.0 if since_s is None else (now_s - since_s) * 1000
            await asyncio.sleep(_JOURNAL_CHECK_S)


class LoopWatch:
    """How much later than asked the event loop comes around; the worst of the last seconds."""

    def __init__(self) -> None:
        self._lags_s = [0.0] * _LAG_KEPT
        self._next = 0

    @property
    def worst_ms(self) -> float:
        return max(self._lags_s) * 1000

    async def run(self) -> None:
        """Measures until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_CHECK_S
            await asyncio.sleep(_LAG_CHECK_S)
            self._lags_s[self._next] = max(0.0, loop.time() - due)
            self._next = (self._next + 1) % _LAG_KEPT
