"""Errors of databases: translation to service errors, and retries after conflicts."""

from __future__ import annotations

import asyncio
import math
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger

_FULL: Final = "53100"
_READ_ONLY: Final = "25006"
_COLLISIONS: Final = ("40001", "40P01")
"""SQLSTATEs serialization_failure and deadlock_detected."""
Result = TypeVar("Result")

_PAUSES_S: Final = (0.0, *(min(0.005 * 2**number, 0.2) for number in range(11)))
"""Upper bounds of the random pauses before each retry, in seconds."""

_LOG_PAUSES_S: Final = doubling(1.0, 300.0)
_OVER_S: Final = 60.0
"""Time without an error after which the next one counts as a new event."""

_log = get_logger("storage")


class Conflict(Exception):
    """A unique or foreign key was violated, or a concurrent writer made the transaction fail."""


class TransactionRolledBack(Exception):
    """SQLite rolled the whole transaction back, because the disk is full or failed."""


class DatabaseUnusable(Exception):
    """The database cannot be used in its current state. The message has the remedy."""


class DatabaseReadOnly(ServiceError):
    """The database accepts no changes now, for example because its server is a standby."""

    def __init__(self) -> None:
        super().__init__(
            "CONTROL_PLANE_UNAVAILABLE",
            "The database is read-only. Running games continue. Try again later.",
        )


class _PausedLog:
    """Logs the first error of an event, and later ones after growing pauses.

    Several jobs retry their writes all the time, and reads succeed between them.
    """

    def __init__(self, event: str, fields: Mapping[str, str], now_s: Callable[[], float]) -> None:
        self._event = event
        self._fields = fields
        self._now_s = now_s
        self._backoff = Backoff(_LOG_PAUSES_S)
        self._last_s = self._next_s = -math.inf
        self._repeats = 0

    def error(self, error: BaseException) -> None:
        now_s = self._now_s()
        if now_s - self._last_s >= _OVER_S:
            self._backoff.reset()
            self._next_s = now_s
            self._repeats = 0
        self._last_s = now_s
        self._repeats += 1
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._backoff.next_s()
        repeats = {"repeats": self._repeats} if self._repeats > 1 else {}
        _log.error(self._event, error=str(getattr(error, "orig", error)), **repeats, **self._fields)


class DatabaseErrorTranslation:
    """Context manager that raises errors of database drivers as Conflict or ServiceError."""

    def __init__(self, location: str = "", now_s: Callable[[], float] = time.monotonic) -> None:
        """`location` names the database in the log."""
        self._log_fields = {"database": location} if location else {}
        self._last_error = ""
        self._repeats = 0
        self._full = _PausedLog("database full", self._log_fields, now_s)
        self._read_only = _PausedLog("database read-only", self._log_fields, now_s)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self._repeats = 0
            return
        state = sqlstate(error)
        if (
            isinstance(error, sqlite3.IntegrityError | IntegrityError)
            or state.startswith("23")
            or state in _COLLISIONS
        ):
            raise Conflict(str(getattr(error, "orig", error))) from error
        if isinstance(error, TransactionRolledBack):
            raise database_unavailable() from error
        if _sqlite_code(error) == sqlite3.SQLITE_NOTADB:
            raise DatabaseUnusable(
                "records.db is not a database: replace it with a backup"
            ) from error
        if _sqlite_code(error) == sqlite3.SQLITE_FULL or state == _FULL:
            self._full.error(error)
            raise ServiceError("STORAGE_FULL") from error
        if state == _READ_ONLY:
            self._read_only.error(error)
            raise DatabaseReadOnly from error
        if _is_ours(error):
            return
        if isinstance(error, DBAPIError | sqlite3.Error | OSError | TimeoutError) or _is_of_asyncpg(
            error
        ):
            self._log_unavailable(f"{type(error).__name__}: {error}".split("\n")[0])
            raise database_unavailable() from error

    def _log_unavailable(self, error: str) -> None:
        """Logs an error. If it is repeated without a success between, logs the 2nd, 4th, 8th and so
        on.
        """
        self._repeats = self._repeats + 1 if error == self._last_error else 1
        self._last_error = error
        if self._repeats & (self._repeats - 1):
            return
        repeats = {"repeats": self._repeats} if self._repeats > 1 else {}
        _log.error("database unavailable", error=error, **repeats, **self._log_fields)


translate_database_errors: Final = DatabaseErrorTranslation()


def database_unavailable() -> ServiceError:
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE",
        "The database does not answer. Running games continue. Try again later.",
    )


def _sqlite_code(error: BaseException) -> int | None:
    driver_error = error.orig if isinstance(error, DBAPIError) else error
    return getattr(driver_error, "sqlite_errorcode", None)


def sqlstate(error: BaseException) -> str:
    """Returns the SQLSTATE code of an error, or an empty text."""
    driver_error = error.orig if isinstance(error, DBAPIError) else error
    return getattr(driver_error, "sqlstate", None) or ""


def _is_of_asyncpg(error: BaseException) -> bool:
    return type(error).__module__.startswith("asyncpg.")


def _is_ours(error: BaseException) -> bool:
    if _sqlite_code(error) == sqlite3.SQLITE_ERROR or sqlstate(error).startswith(("22", "42")):
        return True
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return True
    return _is_of_asyncpg(error) and isinstance(error, ValueError)


async def retry_on_conflict(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Runs the transaction `attempt`, and repeats it after a Conflict.

    Raises OVERLOADED after the last retry.
    """
    for longest_s in _PAUSES_S:
        try:
            return await attempt()
        except Conflict:
            await asyncio.sleep(random.uniform(0.0, longest_s))
    try:
        return await attempt()
    except Conflict:
        _log.exception("transaction conflict: retries exhausted")
        raise ServiceError("OVERLOADED") from None
