"""Errors of databases: translation to service errors, and retries after conflicts."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError

from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger

_FULL: Final = "53100"
"""PostgreSQL's disk_full."""
_COLLISIONS: Final = ("40001", "40P01")
"""PostgreSQL gave one of two writers up: serialization_failure, deadlock_detected."""
Made = TypeVar("Made")

_PAUSES_S: Final = (0.0, *(min(0.005 * 2**number, 0.2) for number in range(11)))
"""Before each further attempt, at the most: who lost to others draws from it, so that they do not meet again."""

_log = get_logger("storage")


class Conflict(Exception):
    """Something is there already, or is needed and not there, or two writers were in each other's way: try anew."""


class TransactionRolledBack(Exception):
    """SQLite rolled the whole transaction back, because the disk is full or failed."""


class DatabaseUnusable(Exception):
    """The database cannot be used as it is; the message says what to do."""


class _DatabaseErrorTranslation:
    """What a database says, in words that callers know."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
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
                "records.db is no database: put a backup in its place"
            ) from error
        if _sqlite_code(error) == sqlite3.SQLITE_FULL or state == _FULL:
            _log.error("database full", error=str(getattr(error, "orig", error)))
            raise ServiceError("STORAGE_FULL") from error
        if _is_ours(error):
            return
        if isinstance(error, DBAPIError | sqlite3.Error | OSError | TimeoutError) or _is_of_asyncpg(
            error
        ):
            _log.error(
                "database database_unavailable",
                error=f"{type(error).__name__}: {error}".split("\n")[0],
            )
            raise database_unavailable() from error


translate_database_errors: Final = _DatabaseErrorTranslation()
"""The same for every `with`: it has no state."""


def database_unavailable() -> ServiceError:
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE",
        "The database does not answer; games go on, changes have to wait. Try again.",
    )


def _sqlite_code(error: BaseException) -> int | None:
    said = error.orig if isinstance(error, DBAPIError) else error
    return getattr(said, "sqlite_errorcode", None)


def sqlstate(error: BaseException) -> str:
    """What PostgreSQL calls it; empty when it is not the server's."""
    said = error.orig if isinstance(error, DBAPIError) else error
    return getattr(said, "sqlstate", None) or ""


def _is_of_asyncpg(error: BaseException) -> bool:
    return type(error).__module__.startswith("asyncpg.")


def _is_ours(error: BaseException) -> bool:
    """A statement that no database could run, or a value that is none of its column's: a defect, not a database that is
    database_unavailable.
    """
    if _sqlite_code(error) == sqlite3.SQLITE_ERROR or sqlstate(error).startswith(("22", "42")):
        return True
    # The drivers' own words for a value that they cannot send.
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return True
    return _is_of_asyncpg(error) and isinstance(error, ValueError)


async def retry_on_conflict(attempt: Callable[[], Awaitable[Made]]) -> Made:
    """What `attempt` gives, a transaction of its own each time. Raises what it raises, and OVERLOADED when others are
    faster again and again.
    """
    for longest_s in _PAUSES_S:
        try:
            return await attempt()
        except Conflict:
            await asyncio.sleep(random.uniform(0.0, longest_s))
    try:
        return await attempt()
    except Conflict:
        _log.exception("change given up")
        raise ServiceError("OVERLOADED") from None
