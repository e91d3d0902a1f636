"""Single-flight: concurrent callers with equal keys share one execution of the same work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyservice.concurrency.cancellation import cancel_and_wait

Key = TypeVar("Key")
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class _Flight(Generic[Result]):
    task: asyncio.Task[Result]
    is_kept: bool
    callers: int = 0


class SingleFlight(Generic[Key, Result]):
    def __init__(self, *, is_kept: bool = False, is_fresh: bool = False) -> None:
        """If `is_kept`, the work continues even if all its callers are cancelled. Otherwise it is
        cancelled with its last caller.

        If `is_fresh`, a caller never joins work that has already started. So the work starts after
        the call, and its result cannot be older than the call.
        """
        self._is_kept = is_kept
        self._is_fresh = is_fresh
        self._flights: dict[Key, _Flight[Result]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: Key) -> bool:
        return key in self._flights

    async def run(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        """Returns the result of `work`, which runs once for all concurrent callers with this key.

        Callers must not change the shared result. Raises the error of `work`.
        """
        flight = self._flights.get(key)
        if flight is None:
            task = asyncio.create_task(self._start(key, work))
            flight = self._flights[key] = _Flight(task, self._is_kept)
            task.add_done_callback(lambda done: self._end(key, done))
        flight.callers += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.callers -= 1
            if not (flight.callers or flight.is_kept or flight.task.done()):
                # Later callers must not join a cancelled run.
                self._remove(key, flight.task)
                flight.task.cancel()

    def keep(self, key: Key) -> None:
        """Lets the work under this key continue even if all its callers are cancelled."""
        self._flights[key].is_kept = True

    async def stop(self) -> None:
        await cancel_and_wait(*(flight.task for flight in self._flights.values()))

    async def _start(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        if self._is_fresh:
            del self._flights[key]
        return await work()

    def _end(self, key: Key, done: asyncio.Task[Result]) -> None:
        self._remove(key, done)
        if not done.cancelled():
            # Mark the error as retrieved, because all callers may be cancelled.
            done.exception()

    def _remove(self, key: Key, task: asyncio.Task[Result]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
