"""Tasks of a plane that nobody waits for at a door: who keeps them, what the death of one means, how they end.

What they do is the parts' matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from pyservice.observability.logging import get_logger

_log = get_logger("service")


_GRACE_S: Final = 2.0


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

    async def stop(self, grace_s: float = _GRACE_S) -> None:
        """Waits for what comes to an end of its own, and so long at most; then cancels that and what goes on, and waits
        as long again. What does not end is told by its name and left. Once; when nobody begins anything any more.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s
        # What is finished may begin something.
        while self._finishing and loop.time() < until_s:
            await asyncio.wait(set(self._finishing), timeout=until_s - loop.time())
        self._is_stopping = True
        for name in await end({*self._finishing, *self._going_on}, grace_s):
            _log.error("background task does not end", task=name)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Told to end: by `stop`, or by a process that could not start and leaves. Through what it waits for it may be
        # cancelled without being told.
        if task.cancelled() and task.cancelling():
            return
        error = None if task.cancelled() else task.exception()
        _log.error("background task died", task=task.get_name(), exc_info=error)
        if not self._is_stopping:
            self.dead.append(task.get_name())
            self._died()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._finishing.discard(task)
        if task.cancelled():
            _log.error("not finished", task=task.get_name())
        elif task.exception() is not None:
            _log.error("not finished", task=task.get_name(), exc_info=task.exception())


async def end(tasks: Collection[asyncio.Task[Any]], grace_s: float) -> list[str]:
    """Cancels them; the names of those that have not ended so long after."""
    if not tasks:
        return []
    for task in tasks:
        task.cancel()
    _, left = await asyncio.wait(tasks, timeout=grace_s)
    return sorted(task.get_name() for task in left)
