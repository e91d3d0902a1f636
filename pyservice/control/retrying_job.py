"""Background jobs that retry every error with exponential back-off.

Expected errors are logged in one line. Unexpected errors are counted and logged with a traceback.
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
    def __init__(self, first_s: float, longest_s: float, sleep: Sleep = asyncio.sleep) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._sleep = sleep
        self._next_s = first_s

    async def wait(self) -> None:
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._longest_s)
        await self._sleep(pause_s)

    def reset(self) -> None:
        self._next_s = self._first_s


class RetryingJob:
    def __init__(
        self,
        work: str,
        failed: str,
        *expected_errors: type[Exception],
        pauses_s: tuple[float, float],
        is_worth_a_warning: bool = False,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`work` is the job's name in metrics, and `failed` is the message of its log entries.

        ServiceError, Conflict and `expected_errors` are logged without a traceback. `pauses_s` has
        the first and the longest delay between attempts.
        """
        self.work = work
        self.unexpected_errors = 0
        self._failure_event = failed
        self._expected_errors: tuple[type[Exception], ...] = (
            ServiceError,
            Conflict,
            *expected_errors,
        )
        self._pauses_s = pauses_s
        self._log_expected = _log.warning if is_worth_a_warning else _log.debug
        self._sleep = sleep

    def new_backoff(self) -> Backoff:
        return Backoff(*self._pauses_s, self._sleep)

    async def attempt(
        self, step: Callable[[], Awaitable[object]], **log_fields: Any
    ) -> Exception | None:
        """Runs `step` once. Returns None, or logs and returns its error.

        The fields of `log_fields` are added to the log entry.
        """
        try:
            await step()
        except Exception as error:  # noqa: BLE001 — the job must continue
            self.record_failure(error, **log_fields)
            return error
        return None

    def record_failure(self, error: Exception, **log_fields: Any) -> None:
        if self.is_expected(error):
            self._log_expected(self._failure_event, error=str(error), **log_fields)
            return
        self.unexpected_errors += 1
        _log.error(self._failure_event, work=self.work, exc_info=error, **log_fields)

    def is_expected(self, error: Exception) -> bool:
        return isinstance(error, self._expected_errors)

    async def retry_until_done(
        self, step: Callable[[], Awaitable[object]], **log_fields: Any
    ) -> None:
        pauses = self.new_backoff()
        while await self.attempt(step, **log_fields) is not None:
            await pauses.wait()

    async def repeat_forever(
        self, step: Callable[[], Awaitable[object]], *, every_s: float = 0.0
    ) -> NoReturn:
        while True:
            await self.retry_until_done(step)
            # The sleep yields to the event loop, which SQLite statements do not.
            await self._sleep(every_s)
