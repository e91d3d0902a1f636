"""Work in the background that goes on whatever it meets: what it may meet is told and tried again, what nobody foresaw
is logged with its traceback, counted, and tried again as well, later each time.

Owns these errors and the pauses after them. What the work is, and what becomes of it meanwhile, is its owner's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage.database import Conflict

_log = get_logger("control")

Sleep = Callable[[float], Awaitable[None]]


class Backoff:
    """Between tries: twice as long each time, up to a longest one, until one succeeds."""

    def __init__(self, first_s: float, longest_s: float, sleep: Sleep = asyncio.sleep) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._sleep = sleep
        self._next_s = first_s

    async def wait(self) -> None:
        """The next one."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._longest_s)
        await self._sleep(pause_s)

    def reset(self) -> None:
        """After a success."""
        self._next_s = self._first_s


class RetryingJob:
    """One piece of work, in steps."""

    def __init__(
        self,
        work: str,
        failed: str,
        *foreseen: type[Exception],
        pauses_s: tuple[float, float],
        is_worth_a_warning: bool = False,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`work` is its name in metrics, `failed` what the log says of a step that did. Of errors that are `foreseen`
        (ServiceError and Conflict always are) a line of the log is enough, for operators when it `is_worth_a_warning`.
        `pauses_s`: the first one and the longest.
        """
        self.work = work
        self.unexpected_errors = 0
        """How many errors nobody foresaw."""
        self._failed = failed
        self._foreseen: tuple[type[Exception], ...] = (ServiceError, Conflict, *foreseen)
        self._pauses_s = pauses_s
        self._tell = _log.warning if is_worth_a_warning else _log.debug
        self._sleep = sleep

    def new_backoff(self) -> Backoff:
        """For somebody who tries again."""
        return Backoff(*self._pauses_s, self._sleep)

    async def attempt(
        self, step: Callable[[], Awaitable[object]], **about: Any
    ) -> Exception | None:
        """Does a step; what it met, None when it succeeded. `about` goes to the log."""
        try:
            await step()
        except Exception as error:  # noqa: BLE001 — whatever it is, the work goes on
            self.record_failure(error, **about)
            return error
        return None

    def record_failure(self, error: Exception, **about: Any) -> None:
        """Says what a step met, and counts it when nobody foresaw it."""
        if self.is_expected(error):
            self._tell(self._failed, error=str(error), **about)
            return
        self.unexpected_errors += 1
        _log.error(self._failed, work=self.work, exc_info=error, **about)

    def is_expected(self, error: Exception) -> bool:
        """Whether it is one that this work may meet."""
        return isinstance(error, self._foreseen)

    async def retry_until_done(self, step: Callable[[], Awaitable[object]], **about: Any) -> None:
        """Tries until it succeeds. `about` goes to the log."""
        pauses = self.new_backoff()
        while await self.attempt(step, **about) is not None:
            await pauses.wait()

    async def repeat_forever(
        self, step: Callable[[], Awaitable[object]], *, every_s: float = 0.0
    ) -> NoReturn:
        """Until cancelled: a step, so long a pause, the next one."""
        while True:
            await self.retry_until_done(step)
            # At the least, others have their turn of the loop: statements of SQLite do not give it away.
            await self._sleep(every_s)
