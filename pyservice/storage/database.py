"""Transactions on the records, with the same statements for SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Delete,
    Executable,
    Row,
    bindparam,
    delete,
    func,
    make_url,
    select,
    tuple_,
)
from sqlalchemy.exc import SQLAlchemyError

from pyservice.observability.logging import get_logger
from pyservice.storage.database_errors import Conflict, DatabaseUnusable, retry_on_conflict

__all__ = [
    "DELETION_BATCH_ROWS",
    "CommitCallbacks",
    "Conflict",
    "Database",
    "DatabaseUnusable",
    "Record",
    "Result",
    "Transaction",
    "Values",
    "batch_deletion",
    "delete_in_batches",
    "next_number",
    "open_database",
]
DELETION_BATCH_ROWS: Final = 200


Record = Row[Any]
"""A row with columns as attributes. Rows of PostgreSQL have the same attributes (`postgres.Row`).
"""

Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Result = TypeVar("Result")

_log = get_logger("storage")


class Transaction(Protocol):
    """Statements that take effect together. Each raises Conflict, or ServiceError if the database
    is unavailable.
    """

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]: ...

    async def first(self, statement: Executable, values: Values = None) -> Record | None: ...

    async def run(self, statement: Executable, values: Values = None) -> int:
        """Runs a statement. Returns the number of affected rows, or of value sets."""
        ...

    def after_commit(self, call: Callable[[], None]) -> None:
        """Registers `call` to run after the commit, or when the commit may have happened.

        `call` runs even if the caller was cancelled.
        """
        ...


class CommitCallbacks:
    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def after_commit(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def run_commit_callbacks(self, _: object = None) -> None:
        for call in self._calls:
            try:
                call()
            except Exception:  # noqa: BLE001 — the other callbacks must run
                _log.exception("what follows a change failed")


class Database(Protocol):
    """A database of records.

    `read` is one snapshot. `query` runs each statement by itself, which is cheaper. `write` commits
    durably at its end, unless an exception was raised.
    """

    name: str

    @property
    def finished_reads(self) -> int:
        """Number of finished transactions. While it grows, a waiting reader only waits for its
        turn, and the database is available.
        """
        ...

    @property
    def finished_writes(self) -> int: ...

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def query(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def write(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` on an SQLAlchemy connection in one transaction without a time limit."""
        ...

    def check(self, connection: Connection) -> None:
        """Raises DatabaseUnusable if committed data would not survive a crash of the machine."""
        ...

    async def close(self) -> None: ...


def open_database(url: str | None, folder: Path) -> Database:
    """Returns SQLite in `folder`, or PostgreSQL at `url`, without connecting. Raises
    DatabaseUnusable.
    """
    # Importing only the needed driver keeps the start fast.
    if url is None:
        from pyservice.storage.sqlite import SqliteDatabase

        return SqliteDatabase(folder / "records.db")
    try:
        parsed = make_url(url)
    except SQLAlchemyError:
        raise DatabaseUnusable("database_url is no URL, such as postgresql://host/name") from None
    if parsed.get_backend_name() != "postgresql":
        raise DatabaseUnusable(
            f"database_url names {parsed.get_backend_name()}: postgresql it is, or nothing"
        )
    from pyservice.storage.postgres import PostgresDatabase

    return PostgresDatabase(url)


def next_number(column: Column[Any]) -> ColumnElement[int]:
    """Returns an expression for the largest value plus one. Concurrent inserts can get the same
    number.
    """
    return select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()


def batch_deletion(order: Column[Any]) -> Delete:
    """Returns a statement that deletes the first rows with a column value up to `last`."""
    key = tuple(order.table.primary_key)
    first_ones = (
        select(*key).where(order <= bindparam("last")).order_by(order).limit(DELETION_BATCH_ROWS)
    )
    condition = tuple_(*key).in_(first_ones) if len(key) > 1 else key[0].in_(first_ones)
    return delete(order.table).where(condition)


async def delete_in_batches(
    database: Database, statement: Delete, last: int, most: int | None = None
) -> int:
    """Repeats a `batch_deletion` until no row is left, or `most` times. Returns the number of
    deleted rows.

    Each batch uses an index and has its own transaction, so that other changes do not wait long.
    Raises OVERLOADED.
    """

    async def once() -> int:
        async with database.write() as tx:
            return await tx.run(statement, {"last": last})

    gone, times = 0, 0
    while most is None or times < most:
        now = await retry_on_conflict(once)
        gone, times = gone + now, times + 1
        if now < DELETION_BATCH_ROWS:
            break
    return gone
