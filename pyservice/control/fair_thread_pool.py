"""Thread pool that runs at most one step of each tenant at a time.

Work that a hostile tenant can make slow, such as the check of an upload, runs in such a pool.
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
        """Runs `step` in a thread when it is the tenant's turn.

        If the caller is cancelled, a started step continues. The tenant's next step waits for its
        end.
        """
        await self.queue.acquire(None, tenant)
        try:
            future = asyncio.get_running_loop().run_in_executor(self._threads, step)
        except BaseException:
            self.queue.release(None, tenant)
            raise
        future.add_done_callback(lambda done: self._on_end(tenant, done))
        return await asyncio.shield(future)

    def _on_end(self, tenant: str, future: asyncio.Future[_Result]) -> None:
        if not future.cancelled():
            # Mark the error as retrieved.
            future.exception()
        self.queue.release(None, tenant)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
