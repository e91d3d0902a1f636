"""Fair queue for concurrency permits. A request counts against several limits at once.

A webhook request, for example, counts for its host, for its tenant at this host, and for its tenant
at all hosts. Slow requests of one tenant then delay no other tenant.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

Keys = tuple[Hashable, ...]


class QueueFull(Exception):
    pass


class FairQueue:
    """Grants concurrency permits to the requests of one event loop.

    A request has one key for each limit, from the widest limit to the narrowest. Requests with
    equal keys are served in order of arrival. Waiting requests with different keys take turns.
    """

    def __init__(self, *limits: int, present_max: int | None = None) -> None:
        """Each of `limits` is the maximum number of concurrent requests with the same key.

        A request has one key for each limit. `present_max` limits the running and waiting requests
        that share the last of their keys.
        """
        self._limits = limits
        self._present_max = present_max
        self.running: dict[Hashable, int] = {}
        self.waiting: dict[Hashable, int] = {}
        self._lines: dict[Keys, deque[asyncio.Future[None]]] = {}
        self._turns: dict[Hashable, dict[Keys, None]] = {}
        """Waiting lines by key. The first free line gets the next permit and moves to the end."""

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting)

    @asynccontextmanager
    async def permit(self, *keys: Hashable) -> AsyncIterator[None]:
        """Waits for a permit and holds it during the `async with` block. `keys` has one key for
        each limit.

        Raises QueueFull if too many requests with the same last key run or wait.
        """
        await self.acquire(*keys)
        try:
            yield
        finally:
            self.release(*keys)

    async def acquire(self, *keys: Hashable) -> None:
        """Waits for a permit. The caller must `release` the permit."""
        if self._present_max is not None:
            last = keys[-1]
            if self.running.get(last, 0) + self.waiting.get(last, 0) >= self._present_max:
                raise QueueFull
        if not self.try_acquire(*keys):
            await self._wait(keys)

    def try_acquire(self, *keys: Hashable) -> bool:
        if keys in self._lines or self.is_full(keys):
            return False
        _count(self.running, keys, 1)
        return True

    def is_full(self, keys: Keys) -> bool:
        running = self.running
        return any(
            running.get(key, 0) >= limit for key, limit in zip(keys, self._limits, strict=True)
        )

    def release(self, *keys: Hashable) -> None:
        # A key that had free permits blocked no line.
        freed = [
            key
            for key, limit in zip(keys, self._limits, strict=True)
            if key in self._turns and self.running[key] >= limit
        ]
        _count(self.running, keys, -1)
        for key in freed:
            self._grant(key)

    async def _wait(self, keys: Keys) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(keys, deque()).append(turn)
        _count(self.waiting, keys, 1)
        for key in keys:
            self._turns.setdefault(key, {})[keys] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(*keys)
            else:
                self._remove(keys, turn)
            raise

    def _grant(self, key: Hashable) -> None:
        while keys := next(
            (line_keys for line_keys in self._turns.get(key, ()) if not self.is_full(line_keys)),
            None,
        ):
            turn = self._lines[keys][0]
            self._remove(keys, turn)
            if not turn.cancelled():
                for waiting_key in keys if keys in self._lines else ():
                    self._turns[waiting_key][keys] = self._turns[waiting_key].pop(keys)
                _count(self.running, keys, 1)
                turn.set_result(None)
                return

    def _remove(self, keys: Keys, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(keys)
        # The grant may have removed a cancelled turn.
        if line is None or turn not in line:
            return
        line.remove(turn)
        _count(self.waiting, keys, -1)
        if not line:
            del self._lines[keys]
            for key in keys:
                del self._turns[key][keys]
                if not self._turns[key]:
                    del self._turns[key]


def _count(counts: dict[Hashable, int], keys: Keys, more: int) -> None:
    for key in keys:
        counts[key] = counts.get(key, 0) + more
        if not counts[key]:
            del counts[key]
