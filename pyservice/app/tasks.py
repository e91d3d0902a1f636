"""Tasks of a plane that nobody waits for at a door: who keeps them, what the death of one means, how they end.

What they do is the parts' matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pyservice.observability.logging import get_logger

_log = get_logger("service")


class PartDied(Exception):
    """A plane ended because a part of it did; the message says which."""


class Tasks:
    """Those of one plane: work that goes on until the plane ends, and ends of what a caller has left."""

    def __init__(self, died: Callable[[], None] = lambda: None) -> None:
        """`died` is called when one of `own` has ended by itself: without it the plane is not what it ought to be."""
        self._died = died
        self._going_on: list[asyncio.Task[None]] = []
        self._finishing: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self.dead: list[str] = []
        """Names of those that ended by themselves."""

    @property
    def problem(self) -> str | None:
        """What is wrong, in words for whoever runs the service; None: nothing."""
        return f"{', '.join(self.dead)} died: see the log" if self.dead else None

    def own(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Begins work that goes on until `stop`, and is cancelled then."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._going_on.append(task)

    def finish(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Begins work that comes to an end of its own, for which `stop` waits."""
        task = asyncio.create_task(work, name=name)
        self._finishing.add(task)
        task.add_done_callback(self._finished)

    async def stop(self) -> None:
        """Cancels what goes on and waits for all of it. Once; when nobody begins anything any more."""
        while self._finishing:
            await asyncio.wait(set(self._finishing))
        self._is_stopping = True
        for task in self._going_on:
            task.cancel()
        await asyncio.gather(*self._going_on, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and self._is_stopping:
            return
        # By somebody else it may be cancelled through what it waits for.
        error = None if task.cancelled() else task.exception()
        _log.error("background task died", task=task.get_name(), exc_info=error)
        if not self._is_stopping:
            self.dead.append(task.get_name())
            self._died()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._finishing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("not finished", task=task.get_name(), exc_info=task.exception())
