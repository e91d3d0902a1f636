"""Whether a run has to end, and waiting that ends when it has to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from pyservice.finishing import drop

_Result = TypeVar("_Result")


class Stopped(Exception):
    """It is not wanted any more."""


class Stop:
    """Of one run. Asked for once or more often: the soonest wins."""

    def __init__(self) -> None:
        self.timeout_ms: int | None = None
        """Between SIGTERM and SIGKILL; None: nobody asked."""
        self._is_asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_asked(self) -> bool:
        return self.timeout_ms is not None

    def ask(self, timeout_ms: int) -> bool:
        """False: it ends sooner than that."""
        if self.timeout_ms is not None and self.timeout_ms <= timeout_ms:
            return False
        self.timeout_ms = timeout_ms
        if not self._is_asked.done():
            self._is_asked.set_result(None)
        return True

    async def before(self, timeout_s: float, work: Awaitable[_Result]) -> _Result:
        """Raises TimeoutError, Stopped."""
        async with asyncio.timeout(timeout_s):
            return await self.unless(work)

    async def unless(self, work: Awaitable[_Result]) -> _Result:
        """Raises Stopped; then what was begun is cancelled."""
        working = asyncio.ensure_future(work)
        try:
            either: list[asyncio.Future[Any]] = [working, self._is_asked]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise Stopped
        finally:
            if not working.done():
                await drop(working)
