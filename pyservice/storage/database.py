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
"""Rows."""


Record = Row[Any]
"""A row; its columns are attributes. What PostgreSQL gives looks the same (`postgres_connections`)."""

Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Result = TypeVar("Result")

_log = get_logger("storage")


class Transaction(Protocol):
    """Statements that take effect together. Raises Conflict, and ServiceError when the database is away."""

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        """All rows."""
        ...

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        """The first row, None when there is none."""
        ...

    async def run(self, statement: Executable, values: Values = None) -> int:
        """How many rows it concerned; of several values, how many those were."""
        ...

    def after_commit(self, call: Callable[[], None]) -> None:
        """Calls it when the change was committed, or may have been: also when nobody waits for it any more."""
        ...


class CommitCallbacks:
    """Calls that wait for the commit."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def after_commit(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def run_commit_callbacks(self, _: object = None) -> None:
        for call in self._calls:
            try:
                call()
            except Exception:  # noqa: BLE001 — the others are told of the change all the same
                _log.exception("what follows a change failed")


class Database(Protocol):
    """What handlers hold. `read` sees one state; `look` is for who asks one thing, or does not mind that each statement
    sees the state of its own moment; `write` commits at its end, durably, unless something was raised.
    """

    name: str

    @property
    def finished_reads(self) -> int:
        """How many turns are over of those who may be before a reader: while it grows, who waits for his own waits for
        others, and not for a database that is away.
        """
        ...

    @property
    def finished_writes(self) -> int:
        """The same of a writer."""
        ...

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def query(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def write(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Work that wants a plain connection, in one transaction and however long it takes: migrations, checks."""
        ...

    def check(self, connection: Connection) -> None:
        """Raises DatabaseUnusable when what was committed would not outlive a crash of the machine."""
        ...

    async def close(self) -> None: ...


def open_database(url: str | None, folder: Path) -> Database:
    """SQLite in `folder` without a URL, else `postgresql://…`. Connects when it is used. Raises DatabaseUnusable."""
    # Whoever uses one has no time for the other's driver at each start.
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
    """One more than the greatest that there is. Two that are made at the same time may have the same."""
    return select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()


def batch_deletion(order: Column[Any]) -> Delete:
    """Drops of the rows of its table up to `last`, in the order of this column, the first ones."""
    key = tuple(order.table.primary_key)
    first_ones = (
        select(*key).where(order <= bindparam("last")).order_by(order).limit(DELETION_BATCH_ROWS)
    )
    condition = tuple_(*key).in_(first_ones) if len(key) > 1 else key[0].in_(first_ones)
    return delete(order.table).where(condition)


async def delete_in_batches(
    database: Database, statement: Delete, last: int, most: int | None = None
) -> int:
    """Runs what `batch_deletion` made until nothing is left, or so many times at most; how many rows went. Raises
    OVERLOADED.
    """

    async def once() -> int:
        async with database.write() as tx:
            return await tx.run(statement, {"last": last})

    gone, times = 0, 0
    while most is None or times < most:
        # Somebody else may drop the same rows in another order, or change one of them.
        now = await retry_on_conflict(once)
        gone, times = gone + now, times + 1
        if now < DELETION_BATCH_ROWS:
            break
    return gone
