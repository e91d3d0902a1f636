"""Worker thread that processes large requests, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.concurrency.fair_queue import FairQueue, QueueFull
from pyservice.errors import ServiceError

T = TypeVar("T")

LARGE_BYTES: Final = 256 * 1024
"""Smaller bodies are read on the event loop, because a thread would cost more."""

_PRESENT_PER_TENANT: Final = 32


class LargeBodyWorker:
    def __init__(self) -> None:
        self._turns = FairQueue(1, 1, present_max=_PRESENT_PER_TENANT)
        self._thread = ThreadPoolExecutor(1, "large request")

    async def run(self, tenant: bytes, work: Callable[[], T]) -> T:
        """Runs `work` in the worker thread. Different tenants that wait take turns.

        Raises OVERLOADED if too many requests of the tenant wait.
        """
        loop = asyncio.get_running_loop()
        try:
            async with self._turns.permit(None, tenant):
                # Cancellation does not free the permit while the thread still works.
                return await await_despite_cancel(loop.run_in_executor(self._thread, work))
        except QueueFull:
            raise ServiceError(
                "OVERLOADED",
                "Too many large requests of this token wait to be read. Send them one after the other.",
            ) from None


WORKER: Final = LargeBodyWorker()
