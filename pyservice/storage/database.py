"""Transactions on the records, with the same statements for SQLite and PostgreSQL.

Owns what callers hold and which database it is. How each keeps its promises is `sqlite`'s and `postgres`'s; statements
are the queries' modules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import SQLAlchemyError

from pyservice.storage.failures import Conflict, DatabaseUnusable
from pyservice.storage.transactions import Record, Result, Transaction

__all__ = [
    "Conflict",
    "Database",
    "DatabaseUnusable",
    "Record",
    "Transaction",
    "open_database",
]


class Database(Protocol):
    """What handlers hold. `read` sees one state; `look` is for who asks one thing, or does not mind that each statement
    sees the state of its own moment; `write` commits at its end, durably, unless something was raised.
    """

    name: str

    @property
    def read_turns(self) -> int:
        """How many turns are over of those who may be before a reader: while it grows, who waits for his own waits for
        others, and not for a database that is away.
        """
        ...

    @property
    def write_turns(self) -> int:
        """The same of a writer."""
        ...

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def look(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
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
