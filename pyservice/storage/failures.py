"""What databases say when they cannot, in words that callers know."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage.group_commit import GroupLost

_FULL: Final = (sqlite3.SQLITE_FULL,)
_COLLISIONS: Final = ("40001", "40P01")
"""PostgreSQL gave one of two writers up: serialization_failure, deadlock_detected."""

_log = get_logger("storage")


class Conflict(Exception):
    """Something is there already, or is needed and not there, or two writers were in each other's way: try anew."""


class DatabaseUnusable(Exception):
    """The database cannot be used as it is; the message says what to do."""


class Told:
    """What a database says, in words that callers know."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            return
        if isinstance(error, IntegrityError) or _sqlstate(error) in _COLLISIONS:
            raise Conflict(str(getattr(error, "orig", error))) from error
        if isinstance(error, GroupLost):
            raise away() from error
        if isinstance(error, PoolExhausted):
            raise ServiceError("OVERLOADED") from error
        if _sqlite_code(error) == sqlite3.SQLITE_NOTADB:
            raise DatabaseUnusable(
                "records.db is no database: put a backup in its place"
            ) from error
        if isinstance(error, DBAPIError) and _is_full(error):
            _log.error("database full", error=str(error.orig))
            raise ServiceError("STORAGE_FULL") from error
        if _is_ours(error):
            return
        if isinstance(error, DBAPIError | OSError | TimeoutError) or _is_of_driver(error):
            _log.error("database away", error=f"{type(error).__name__}: {error}".split("\n")[0])
            raise away() from error


told: Final = Told()
"""The same for every `with`: it has no state."""


def away() -> ServiceError:
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE",
        "The database does not answer; games go on, changes have to wait. Try again.",
    )


def _is_full(error: DBAPIError) -> bool:
    # PostgreSQL: class 53 with 53100, disk_full.
    return _sqlite_code(error) in _FULL or _sqlstate(error) == "53100"


def _sqlite_code(error: BaseException) -> int | None:
    return getattr(error.orig, "sqlite_errorcode", None) if isinstance(error, DBAPIError) else None


def _sqlstate(error: BaseException) -> str | None:
    return getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None


def _is_of_driver(error: BaseException) -> bool:
    """asyncpg raises some errors of connections as they are."""
    return type(error).__module__.startswith("asyncpg.")


def _is_ours(error: BaseException) -> bool:
    """A statement that no database could run: a defect, not a database that is away."""
    return _sqlite_code(error) == sqlite3.SQLITE_ERROR or (_sqlstate(error) or "").startswith("42")
