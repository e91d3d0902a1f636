"""Thread pool that runs one step of each tenant at a time.

Uploads may be hostile, so their work has threads of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pyservice.concurrency.fair_queue import FairQueue

THREADS: Final = 2

_Result = TypeVar("_Result")


class FairThreadPool:
    def __init__(self, threads: int = THREADS, name: str = "contents") -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.queue = FairQueue(threads, 1)

    async def run(self, tenant: str, step: Callable[[], _Result]) -> _Result:
        """Runs a step and returns its result or raises its error.

        After a cancellation, a started step continues and keeps the tenant's turn.
        """
        await self.queue.acquire(None, tenant)
        try:
            working = asyncio.get_running_loop().run_in_executor(self._threads, step)
        except BaseException:
            self.queue.release(None, tenant)
            raise
        working.add_done_callback(lambda done: self._over(tenant, done))
        return await asyncio.shield(working)

    def _over(self, tenant: str, done: asyncio.Future[_Result]) -> None:
        if not done.cancelled():
            # Mark the error as retrieved.
            done.exception()
        self.queue.release(None, tenant)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
