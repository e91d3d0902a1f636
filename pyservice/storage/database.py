"""Database interface: transactions with the same statements for SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar

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
    select,
    tuple_,
)

from pyservice.observability.logging import get_logger
from pyservice.storage.database_errors import Conflict, DatabaseUnusable, retry_on_conflict

__all__ = [
    "CRASH_MARK_TABLE",
    "DELETION_BATCH_ROWS",
    "OWNER_LOCK",
    "CommitCallbacks",
    "Conflict",
    "Database",
    "DatabaseUnusable",
    "Record",
    "RecordReader",
    "Result",
    "Transaction",
    "Values",
    "batch_deletion",
    "delete_in_batches",
    "next_number",
    "open_database",
    "open_reader",
]
DELETION_BATCH_ROWS: Final = 200
OWNER_LOCK: Final = 0x686F73746F776E
"""Key of the PostgreSQL advisory lock of the owner."""
CRASH_MARK_TABLE: Final = "service_crash_mark"
"""Table with one row, which each crash of the PostgreSQL server removes, because the table is UNLOGGED.

The owner writes its claim's id there. So it notices that the server has crashed since.
"""

Record = Row[Any]
"""A row with columns as attributes. Rows of PostgreSQL have the same attributes (`postgres.Row`).
"""

Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Result = TypeVar("Result")

_log = get_logger("storage")


class Transaction(Protocol):
    """Transaction. Its statements take effect all or none.

    A statement raises Conflict, or ServiceError if the database is unavailable.
    """

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]: ...

    async def first(self, statement: Executable, values: Values = None) -> Record | None: ...

    async def run(self, statement: Executable, values: Values = None) -> int:
        """Runs a statement, and returns the number of affected rows.

        If `values` is a list, runs the statement for each item, and returns the length of the list.
        """
        ...

    def after_commit(self, call: Callable[[], None]) -> None:
        """Registers `call` to run after the commit.

        `call` also runs if the caller was cancelled, or if it is unknown whether the commit
        succeeded.
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
                _log.exception("commit callback failed")


class Database(Protocol):
    """Database of the control plane.

    `read` begins a transaction on one snapshot. `query` runs each statement by itself, which is
    cheaper. `write` begins a transaction that commits durably at its end, unless an exception is
    raised.
    """

    name: str
    location: str
    """Where the database is: `records.db`, or `host:port/name`. Never a user or password."""

    @property
    def finished_reads(self) -> int:
        """Number of finished transactions that read. As long as it grows, the database is
        available.
        """
        ...

    @property
    def finished_writes(self) -> int: ...

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def query(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def write(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def fence(self, claim_id: str, position: int, on_loss: Callable[[], NoReturn]) -> None:
        """Lets each writing transaction first check the owner's claim and the position.

        Calls `on_loss` if the database has another claim or an earlier position.
        Does nothing where a lock of a folder excludes other owners.
        """
        ...

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` on an SQLAlchemy connection in one transaction without a time limit."""
        ...

    def check(self, connection: Connection) -> None:
        """Raises DatabaseUnusable if committed data would not survive a crash of the machine.

        Checks the owner like a writing transaction.
        """
        ...

    async def close(self) -> None: ...


class RecordReader(Protocol):
    """Records in a process that does not change them."""

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    async def close(self) -> None: ...


def open_reader(url: str | None, folder: Path) -> RecordReader:
    """Returns a reader of the database that `open_database` returns for these arguments."""
    if url is not None:
        return open_database(url, folder)
    from pyservice.storage.sqlite_reader import SqliteReader

    return SqliteReader(folder / "records.db")


def open_database(url: str | None, folder: Path) -> Database:
    """Returns the PostgreSQL database at `url`, or without `url` a SQLite database in `folder`.

    Does not connect. The settings have checked the URL.
    """
    # Importing only the needed driver keeps the start fast.
    if url is None:
        from pyservice.storage.sqlite import SqliteDatabase

        return SqliteDatabase(folder / "records.db")
    from pyservice.storage.postgres import PostgresDatabase

    return PostgresDatabase(url)


def next_number(column: Column[Any]) -> ColumnElement[int]:
    """Returns an SQL expression for the largest value of a column plus one.

    Concurrent inserts can get the same number.
    """
    return select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()


def batch_deletion(order: Column[Any]) -> Delete:
    """Returns a statement that deletes one batch of the rows with a column value up to `last`.

    The rows with the smallest values are deleted first.
    """
    key = tuple(order.table.primary_key)
    first_ones = (
        select(*key).where(order <= bindparam("last")).order_by(order).limit(DELETION_BATCH_ROWS)
    )
    condition = tuple_(*key).in_(first_ones) if len(key) > 1 else key[0].in_(first_ones)
    return delete(order.table).where(condition)


async def delete_in_batches(
    database: Database, statement: Delete, last: int, most: int | None = None
) -> int:
    """Repeats a statement of `batch_deletion` until no matching row is left, or at most `most`
    times.

    Returns the number of deleted rows. Each batch uses an index and has its own transaction, so
    that other changes do not wait long. Raises OVERLOADED after too many conflicts.
    """

    async def once() -> int:
        async with database.write() as tx:
            return await tx.run(statement, {"last": last})

    deleted, times = 0, 0
    while most is None or times < most:
        count = await retry_on_conflict(once)
        deleted, times = deleted + count, times + 1
        if count < DELETION_BATCH_ROWS:
            break
    return deleted
