"""Work that blocks, done by a few threads beside the event loop.

What comes while they are busy is taken by whichever is done first, and what several of them did is told to the loop at
once: two hundred runs that begin at the same time would wake threads and loop four hundred times otherwise, which costs
as much as what is done.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

_Result = TypeVar("_Result")


class _Task(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class _Done(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: BaseException | None


class Workers:
    """Of one event loop. `close` when nobody waits any more."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads_max = threads
        self._lock = threading.Lock()
        """Of who works and what is left: a thread that finds nothing must not end beside something that comes."""
        self._left: deque[_Task] = deque()
        self._working = 0
        self._done: deque[_Done] = deque()
        self._is_told = False
        """Whether the loop is about to look at what is done."""

    async def do(self, work: Callable[[], _Result]) -> _Result:
        """Its result, or what it raises. What has begun is not cut off; what has not, and that nobody waits for any
        more, is not begun.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        with self._lock:
            self._left.append(_Task(work, future))
            is_wanted = self._working < min(self._threads_max, len(self._left))
            self._working += is_wanted
        if is_wanted:
            self._threads.submit(self._work, loop)
        return await future

    def close(self) -> None:
        """Nothing is begun any more."""
        with self._lock:
            self._left.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if not self._left:
                    self._working -= 1
                    return
                task = self._left.popleft()
            if task.future.done():
                continue
            try:
                done = _Done(task.future, task.work(), None)
            except BaseException as error:  # noqa: BLE001 — it is told to whoever waits for it
                done = _Done(task.future, None, error)
            self._done.append(done)
            if not self._is_told:
                self._is_told = True
                try:
                    loop.call_soon_threadsafe(self._tell)
                except RuntimeError:
                    return  # the loop is closed, and nobody waits

    def _tell(self) -> None:
        # In this order: what is done from here on is told by another call.
        self._is_told = False
        while self._done:
            future, result, error = self._done.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
