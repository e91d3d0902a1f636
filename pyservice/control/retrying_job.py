"""Background jobs that retry every error with exponential back-off.

Expected errors are logged in one line. Unexpected errors are counted and logged with a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage.database import Conflict

_log = get_logger("control")


class RetryingJob:
    def __init__(
        self,
        work: str,
        failed: str,
        *expected_errors: type[Exception],
        pauses_s: tuple[float, float],
        is_worth_a_warning: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Sets the job's name in metrics (`work`) and the message of its log entries (`failed`).

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
        self._delays_s = doubling(*pauses_s)
        self._log_expected = _log.warning if is_worth_a_warning else _log.debug
        self._sleep = sleep

    def new_backoff(self) -> Backoff:
        return Backoff(self._delays_s)

    async def attempt(
        self, step: Callable[[], Awaitable[object]], **log_fields: Any
    ) -> Exception | None:
        """Runs `step` once. Returns None on success, or else logs and returns the error.

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
        backoff = self.new_backoff()
        while await self.attempt(step, **log_fields) is not None:
            await self._sleep(backoff.next_s())

    async def repeat_forever(
        self, step: Callable[[], Awaitable[object]], *, every_s: float = 0.0
    ) -> NoReturn:
        while True:
            await self.retry_until_done(step)
            # The sleep yields to the event loop, which SQLite statements do not.
            await self._sleep(every_s)
