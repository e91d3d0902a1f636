"""What answers wait for: that an LSN is durable, that a lobby that starts is ready, and no longer
than a deadline. Lives on one event loop, which the native part wakes once per batch.

Owns the waiting requests. Deciding what to wait for is the engine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final, Generic, Protocol, TypeVar

from pyservice.errors import ServiceError
from pyservice.observability.rays import note

_PRUNE_AT: Final = 4096

Value = TypeVar("Value")


class Ended(Protocol):
    """A hold that ended; how is for whoever waited."""

    @property
    def hold(self) -> int: ...


Outcome = TypeVar("Outcome", bound=Ended)
OutcomeRead = TypeVar("OutcomeRead", bound=Ended, covariant=True)


class Source(Protocol[OutcomeRead]):
    """What wakes, and what became true meanwhile."""

    def wake_fd(self) -> int: ...
    def durable(self) -> int: ...
    def take_resolved(self) -> Sequence[OutcomeRead]: ...
    def release_hold(self, hold: int) -> None: ...


class Waiting(Generic[Outcome]):
    """Requests that wait. `deadline` is in seconds of the loop's clock; when it passes the answer
    is DEADLINE_EXCEEDED and the change stands.
    """

    def __init__(
        self,
        source: Source[Outcome],
        longest_hold_ms: int,
        on_woken: Callable[[], None] | None = None,
    ) -> None:
        """`on_woken` is called when more is durable, after those who wait for it."""
        self._source = source
        self._on_woken = on_woken
        self._longest_hold_s = longest_hold_ms / 1000
        self._settling: list[tuple[int, asyncio.Future[None]]] = []
        self._prune_at = _PRUNE_AT
        self._holding: dict[int, list[asyncio.Future[Outcome]]] = {}
        self._watching: list[asyncio.Future[None]] = []
        self._wake_fd = source.wake_fd()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.durable: int = source.durable()
        """What was durable when the loop was woken last."""

    def start(self) -> None:
        """Begins to be woken; called on the loop that awaits the answers."""
        self._loop = asyncio.get_running_loop()
        if self._wake_fd >= 0:
            self._loop.add_reader(self._wake_fd, self._woke)

    def stop(self) -> None:
        """Is woken no more. Repeats do nothing."""
        if self._loop is not None and self._wake_fd >= 0:
            self._loop.remove_reader(self._wake_fd)

    async def settled(self, lsn: int, deadline: float | None) -> None:
        """Returns when the LSN is durable. Raises DEADLINE_EXCEEDED."""
        if lsn <= self.durable:
            return
        future: asyncio.Future[None] = self._running_loop().create_future()
        if len(self._settling) >= self._prune_at:
            self._prune()
        self._settling.append((lsn, future))
        began = perf_counter()
        try:
            await self._until(future, deadline)
        finally:
            note("journal wait", began)

    async def progressed(self, at_most_s: float) -> None:
        """Returns when the next batch is durable, or after so long."""
        loop = self._running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._watching.append(future)
        timer = loop.call_later(at_most_s, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self._watching.remove(future)

    async def resolved(self, hold: int, deadline: float | None) -> Outcome:
        """How the hold ended. It is released once by each request that goes away before that.

        Raises DEADLINE_EXCEEDED when neither lobby nor caller say anything for too long.
        """
        loop = self._running_loop()
        limit = loop.time() + self._longest_hold_s
        future: asyncio.Future[Outcome] = loop.create_future()
        waiting = self._holding.setdefault(hold, [])
        waiting.append(future)
        began = perf_counter()
        try:
            return await self._until(future, limit if deadline is None else min(limit, deadline))
        except BaseException:
            # Once the hold has ended there are places or none, and nothing is undone.
            if self._holding.get(hold) is waiting:
                waiting.remove(future)
                if not waiting:
                    del self._holding[hold]
                self._source.release_hold(hold)
            raise
        finally:
            note("lobby start", began)

    def give_up_holds(self) -> None:
        """Who waits for a lobby that starts is sent away: the service stops."""
        for futures in self._holding.values():
            for future in futures:
                if not future.done():
                    future.set_exception(ServiceError("SHUTTING_DOWN"))

    def _woke(self) -> None:
        """A batch is durable: everybody whose LSN it has goes on, and holds that ended are told."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        durable = self._source.durable()
        if durable > self.durable:
            self.durable = durable
            self._release(durable)
        watching, self._watching = self._watching, []
        for watcher in watching:
            _finish(watcher)
        for outcome in self._source.take_resolved():
            for future in self._holding.pop(outcome.hold, ()):
                if not future.done():
                    future.set_result(outcome)
        if self._on_woken is not None:
            self._on_woken()

    def _release(self, durable: int) -> None:
        remaining = []
        for waiter in self._settling:
            lsn, future = waiter
            if lsn > durable:
                remaining.append(waiter)
            elif not future.done():
                future.set_result(None)
        self._settling = remaining

    def _prune(self) -> None:
        """Forgets who went away, so that a stalled disk does not let the list grow without end."""
        self._settling = [waiter for waiter in self._settling if not waiter[1].done()]
        self._prune_at = max(_PRUNE_AT, 2 * len(self._settling))

    async def _until(self, future: asyncio.Future[Value], deadline: float | None) -> Value:
        if deadline is None:
            return await future
        timer = self._running_loop().call_at(deadline, _expire, future)
        try:
            return await future
        finally:
            timer.cancel()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("nobody said on which loop to wait")
        return self._loop


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(ServiceError("DEADLINE_EXCEEDED"))
