"""Background tasks of one plane, and the end of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from pyservice.observability.logging import get_logger

_log = get_logger("service")

_GRACE_S: Final = 2.0


class BackgroundTaskDied(Exception):
    pass


class BackgroundTasks:
    """Background tasks of one plane: permanent tasks, and finite tasks that outlive their request."""

    def __init__(self, on_death: Callable[[], None] = lambda: None) -> None:
        self._on_death = on_death
        self._permanent: list[asyncio.Task[None]] = []
        self._finite: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self.dead_tasks: list[str] = []

    @property
    def problem(self) -> str | None:
        return f"{', '.join(self.dead_tasks)} died: see the log" if self.dead_tasks else None

    def own(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Starts a permanent task, which `stop` cancels."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_permanent_end)
        self._permanent.append(task)

    def finish(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Starts a finite task. `stop` waits for its end."""
        task = asyncio.create_task(work, name=name)
        self._finite.add(task)
        task.add_done_callback(self._on_finite_end)

    async def stop(self, grace_s: float = _GRACE_S) -> None:
        """Waits up to `grace_s` seconds for finite tasks. Then cancels all tasks, and waits as long
        again.

        Logs the tasks that do not end.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s
        while self._finite and loop.time() < until_s:
            await asyncio.wait(set(self._finite), timeout=until_s - loop.time())
        self._is_stopping = True
        for name in await cancel_tasks({*self._finite, *self._permanent}, grace_s):
            _log.error("background task does not end", task=name)

    def _on_permanent_end(self, task: asyncio.Task[None]) -> None:
        # `stop` or a failed start cancelled the task. A task may also end as cancelled because a
        # future that it awaits was cancelled.
        if task.cancelled() and task.cancelling():
            return
        error = None if task.cancelled() else task.exception()
        _log.error("background task died", task=task.get_name(), exc_info=error)
        if not self._is_stopping:
            self.dead_tasks.append(task.get_name())
            self._on_death()

    def _on_finite_end(self, task: asyncio.Task[None]) -> None:
        self._finite.discard(task)
        if task.cancelled():
            _log.error("background task not finished", task=task.get_name())
        elif task.exception() is not None:
            _log.error(
                "background task not finished", task=task.get_name(), exc_info=task.exception()
            )


async def cancel_tasks(tasks: Collection[asyncio.Task[Any]], grace_s: float) -> list[str]:
    if not tasks:
        return []
    for task in tasks:
        task.cancel()
    _, running = await asyncio.wait(tasks, timeout=grace_s)
    return sorted(task.get_name() for task in running)
