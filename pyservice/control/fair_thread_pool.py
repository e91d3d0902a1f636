"""Thread pool that runs one step of each tenant at a time.

Uploads may be hostile, so their work has threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

THREADS: Final = 2
PERMITS: Final = 4
"""Limit of build checks in progress. Decompression holds up to 128 MiB for each."""

_Result = TypeVar("_Result")


class TenantQueues:
    """One FIFO queue for each tenant. At most one caller of a tenant holds its turn."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    async def acquire(self, tenant: str) -> None:
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        try:
            await turn.acquire()
        except BaseException:
            self._forget(tenant)
            raise

    def release(self, tenant: str) -> None:
        self._turns[tenant].release()
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._turns[tenant], self._waiting[tenant]

    def __len__(self) -> int:
        return len(self._turns)


class FairThreadPool:
    def __init__(self, threads: int = THREADS, name: str = "contents") -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.queues = TenantQueues()

    async def run(self, tenant: str, step: Callable[[], _Result]) -> _Result:
        """Runs a step and returns its result or raises its error.

        After a cancellation, a started step continues and keeps the tenant's turn.
        """
        await self.queues.acquire(tenant)
        try:
            working = asyncio.get_running_loop().run_in_executor(self._threads, step)
        except BaseException:
            self.queues.release(tenant)
            raise
        working.add_done_callback(lambda done: self._over(tenant, done))
        return await asyncio.shield(working)

    def _over(self, tenant: str, done: asyncio.Future[_Result]) -> None:
        if not done.cancelled():
            # Mark the error as retrieved.
            done.exception()
        self.queues.release(tenant)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class FairPermits:
    def __init__(self, places: int = PERMITS) -> None:
        self._permits = asyncio.Semaphore(places)
        self.queues = TenantQueues()

    @contextlib.asynccontextmanager
    async def permit(self, tenant: str) -> AsyncIterator[None]:
        await self.queues.acquire(tenant)
        try:
            async with self._permits:
                yield
        finally:
            self.queues.release(tenant)
