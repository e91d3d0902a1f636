"""Large requests are read apart from the event loop: one after the other in one thread, those who sent
them in turn, so that a hostile one costs others a share of the processor and not a pause.

What is read, and what is wrong with it, is the doors' and `schema`'s.
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
"""Of a body or message. What has less is read at once: handing it over and back would cost more."""

_BOUNDS: Final = FairQueueLimits(
    per_host=1, per_tenant_at_host=1, per_tenant=1, waiting_per_tenant=32
)


class LargeBodyWorker:
    """A thread and who is next."""

    def __init__(self, bounds: FairQueueLimits = _BOUNDS) -> None:
        self._turns = FairQueue(bounds)
        self._thread = ThreadPoolExecutor(1, "large request")

    async def run(self, whose: bytes, work: Callable[[], T]) -> T:
        """What the work returns or raises. `whose`: who waits in one line; those of different lines
        come in turn. Raises OVERLOADED when too much of it waits already.
        """
        loop = asyncio.get_running_loop()
        try:
            async with self._turns.permit(whose, ""):
                # The turn is taken, and what is read is held, as long as the thread is at it.
                return await await_despite_cancel(loop.run_in_executor(self._thread, work))
        except QueueFull:
            raise ServiceError(
                "OVERLOADED",
                "Too many large requests of this token wait to be read. Send them one after the other.",
            ) from None


WORKER: Final = LargeBodyWorker()
