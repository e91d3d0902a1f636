"""Whether a run has to end, and waiting that ends when it has to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Stopped(Exception):
    """It is not wanted any more."""


class Stop:
    """Of one run. Asked for once or more often: the soonest wins."""

    def __init__(self) -> None:
        self.timeout_ms: int | None = None
        """Between SIGTERM and SIGKILL; None: nobody asked."""
        self._waiting: set[asyncio.Timeout] = set()

    @property
    def is_asked(self) -> bool:
        return self.timeout_ms is not None

    def ask(self, timeout_ms: int) -> bool:
        """False: it ends sooner than that."""
        if self.timeout_ms is not None and self.timeout_ms <= timeout_ms:
            return False
        is_first = not self.is_asked
        self.timeout_ms = timeout_ms
        if is_first:
            # Later on whoever waited is on its way out, and cannot be hurried again.
            for waiting in self._waiting:
                if not waiting.expired():
                    waiting.reschedule(0)
        return True

    async def unless(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Raises Stopped; then what was begun is cancelled, and over."""
        return await self.before(None, work)

    async def before(self, timeout_s: float | None, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The same; raises TimeoutError when it takes longer."""
        if self.is_asked:
            work.close()
            raise Stopped
        # A task for each, and one that waits for either, would be most of what a start costs here.
        try:
            async with asyncio.timeout(timeout_s) as limit:
                self._waiting.add(limit)
                try:
                    return await work
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            if limit.expired() and self.is_asked:
                raise Stopped from None
            raise
