"""Whether a run has to end, and waiting that ends when it has to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

_AGAIN_S: Final = 1.0
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

    async def retried(
        self,
        work: Callable[[], Awaitable[None]],
        for_s: float,
        failed: Callable[[OSError], None],
    ) -> None:
        """Tries for so long, none of it cut off: it is done or not. The first failure is told. Raises Stopped between
        two tries, and at the end the last OSError.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        is_told = False
        while True:
            try:
                await work()
            except OSError as error:
                if loop.time() >= until_s:
                    raise
                if not is_told:
                    failed(error)
                is_told = True
            else:
                return
            await self.unless(asyncio.sleep(_AGAIN_S))
