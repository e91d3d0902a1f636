"""Signal that wakes all tasks that wait for a change."""

from __future__ import annotations

import asyncio
import contextlib


class ChangeSignal:
    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Returns the event of the next change. Take it before a check, so that no change is missed."""
        return self._next

    def send(self) -> None:
        earlier, self._next = self._next, asyncio.Event()
        earlier.set()


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> None:
    """Waits for an event, or for a time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
