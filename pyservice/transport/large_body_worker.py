"""Worker thread for large requests. Tenants take turns, so a hostile request never blocks the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.concurrency.fair_queue import FairQueue, FairQueueLimits, QueueFull
from pyservice.errors import ServiceError

T = TypeVar("T")

LARGE_BYTES: Final = 256 * 1024
"""Smaller bodies are read at once, because a thread costs more."""

_BOUNDS: Final = FairQueueLimits(
    per_host=1, per_tenant_at_host=1, per_tenant=1, waiting_per_tenant=32
)


class LargeBodyWorker:
    """One thread behind a fair queue."""

    def __init__(self, bounds: FairQueueLimits = _BOUNDS) -> None:
        self._turns = FairQueue(bounds)
        self._thread = ThreadPoolExecutor(1, "large request")

    async def run(self, whose: bytes, work: Callable[[], T]) -> T:
        """Runs work in the thread, with a fair queue between tenants. Raises OVERLOADED if too much
        waits.
        """
        loop = asyncio.get_running_loop()
        try:
            async with self._turns.permit(whose, ""):
                # The permit is held as long as the thread works.
                return await await_despite_cancel(loop.run_in_executor(self._thread, work))
        except QueueFull:
            raise ServiceError(
                "OVERLOADED",
                "Too many large requests of this token wait to be read. Send them one after the other.",
            ) from None


WORKER: Final = LargeBodyWorker()
