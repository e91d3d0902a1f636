"""Stop requests of a run: they cancel the step of the start that is waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")

_RETRY_INTERVAL_S: Final = 1.0


class Stopped(Exception):
    """A stop was requested during a step of a start."""


class StopRequest:
    """The stop of a run, with its timeout. A shorter timeout replaces a longer one."""

    def __init__(self) -> None:
        self.timeout_ms: int | None = None
        self._waiting: set[asyncio.Timeout] = set()

    @property
    def is_requested(self) -> bool:
        return self.timeout_ms is not None

    def request(self, timeout_ms: int) -> bool:
        if self.timeout_ms is not None and self.timeout_ms <= timeout_ms:
            return False
        is_first = not self.is_requested
        self.timeout_ms = timeout_ms
        if is_first:
            for waiting in self._waiting:
                if not waiting.expired():
                    waiting.reschedule(0)
        return True

    async def unless_stopped(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs a coroutine, and cancels it if a stop is requested. Raises Stopped."""
        return await self.within(None, work)

    async def within(self, timeout_s: float | None, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs a coroutine like `unless_stopped`. Raises TimeoutError after `timeout_s` seconds."""
        if self.is_requested:
            work.close()
            raise Stopped
        # A task for each wait would dominate the cost of a start.
        try:
            async with asyncio.timeout(timeout_s) as limit:
                self._waiting.add(limit)
                try:
                    return await work
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            if limit.expired() and self.is_requested:
                raise Stopped from None
            raise

    async def retry(
        self,
        work: Callable[[], Awaitable[None]],
        for_s: float,
        on_failure: Callable[[OSError], None],
    ) -> None:
        """Repeats `work` after each OSError, for at most `for_s` seconds. No attempt is
        interrupted.

        Raises Stopped if a stop is requested, and the last OSError after this time.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        is_logged = False
        while True:
            try:
                return await work()
            except OSError as error:
                if loop.time() >= until_s:
                    raise
                if not is_logged:
                    on_failure(error)
                is_logged = True
            await self.unless_stopped(asyncio.sleep(_RETRY_INTERVAL_S))
