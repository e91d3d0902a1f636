"""Threads and places for work on what tenants uploaded, which may be hostile: a few of their own, so that nothing else
waits behind it, and shared out fairly. What is done is the caller's; in threads it comes in short steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

THREADS: Final = 2
PERMITS: Final = 4
"""What is read holds up to 128 MiB, which is the largest window of its compression."""

_Result = TypeVar("_Result")


class TenantQueues:
    """Of each tenant one at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    async def acquire(self, tenant: str) -> None:
        """Waits for its turn; whoever has it calls `leave`."""
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        try:
            await turn.acquire()
        except BaseException:
            self._forget(tenant)
            raise

    def release(self, tenant: str) -> None:
        """The next one has its turn."""
        self._turns[tenant].release()
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._turns[tenant], self._waiting[tenant]

    def __len__(self) -> int:
        return len(self._turns)


class FairThreadPool:
    """The threads take the steps of all tenants in the order in which they came, and have one of each: so tenants have
    turns one after the other, however much each has to do.
    """

    def __init__(self, threads: int = THREADS, name: str = "contents") -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.queues = TenantQueues()

    async def run(self, tenant: str, step: Callable[[], _Result]) -> _Result:
        """What the step returns or raises. Whoever is cancelled leaves a step that has begun to its end, and the turn
        lasts as long.
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
            # Perhaps nobody waits for it any more.
            done.exception()
        self.queues.release(tenant)

    def close(self) -> None:
        """Waits for the steps that have begun; the others are not taken any more."""
        self._threads.shutdown(cancel_futures=True)


class FairPermits:
    """For what takes memory while it lasts: so many at one time, and of each tenant one."""

    def __init__(self, places: int = PERMITS) -> None:
        self._permits = asyncio.Semaphore(places)
        self.queues = TenantQueues()

    @contextlib.asynccontextmanager
    async def permit(self, tenant: str) -> AsyncIterator[None]:
        """Waits for one, and has it inside."""
        await self.queues.acquire(tenant)
        try:
            async with self._permits:
                yield
        finally:
            self.queues.release(tenant)
