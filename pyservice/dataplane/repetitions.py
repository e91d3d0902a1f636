"""Work that several requests with one idempotency key wait for is done once (decisions 1.8).

Owns who waits for what. It goes on until the last who waits has gone away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Running(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class Repetitions(Generic[T]):
    """Work in flight by key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._running: dict[bytes, _Running[T]] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def once(self, key: bytes, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the work gives or raises, begun by the first who asks under this key."""
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Running(asyncio.create_task(work()))
        running.waiters += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.waiters -= 1
            is_left = not running.waiters
            # Forgotten at once: who comes later must not share what is being cancelled.
            if (is_left or running.task.done()) and self._running.get(key) is running:
                del self._running[key]
            if is_left and not running.task.done():
                running.task.cancel()
