"""The records in a PostgreSQL server, asked through asyncpg with statements that SQLAlchemy compiled once.

Rows that change are locked by the statements that change them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Executable, NullPool
from sqlalchemy.exc import SQLAlchemyError

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.storage.failures import DatabaseUnusable, told
from pyservice.storage.postgres_connections import Connections, connect
from pyservice.storage.postgres_refusals import refusals_told
from pyservice.storage.postgres_statements import postgres_statements
from pyservice.storage.statements import Statements
from pyservice.storage.transactions import (
    Afterwards,
    Record,
    Result,
    Transaction,
    Values,
)

_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""The default would show each statement another state."""
_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


class PostgresDatabase:
    """A server."""

    name = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = url
        self._connections = Connections(url)
        self._statements = postgres_statements()

    @property
    def read_turns(self) -> int:
        return self._connections.turns

    @property
    def write_turns(self) -> int:
        # All have the same connections.
        return self._connections.turns

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return self._transaction(_READ)

    def look(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return self._transaction(None)

    def write(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return self._transaction(_WRITE)

    @contextlib.asynccontextmanager
    async def _transaction(self, begin: str | None) -> AsyncIterator[Transaction]:
        """Without `begin` each statement is one."""
        connection = await self._connections.begun(begin)
        if begin is None:
            tx: _PostgresTransaction = _Look(connection, self._statements, self._connections)
        else:
            tx = _PostgresTransaction(connection, self._statements)
        try:
            yield tx
            if begin is not None:
                with told:
                    await await_despite_cancel(tx.commit())
        except BaseException as error:
            await self._connections.give_up(tx.connection, error)
            raise
        self._connections.give_back(tx.connection)

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        # Migrations want SQLAlchemy's own connection. Most starts need it for one look alone.
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: connect(self._url, None),
            poolclass=NullPool,
            hide_parameters=True,
        )
        with told, refusals_told(self._url):
            connection = await engine.connect()
        try:
            with told, refusals_told(self._url):
                result = await connection.run_sync(work)
                await await_despite_cancel(connection.commit())
                return result
        finally:
            # A connection that broke may say so again when it is given back; that was told already.
            with contextlib.suppress(SQLAlchemyError, OSError):
                await await_despite_cancel(connection.close())

    def check(self, connection: Connection) -> None:
        for name in ("fsync", "synchronous_commit"):
            if connection.exec_driver_sql(f"SHOW {name}").scalar() != "on":
                raise DatabaseUnusable(
                    f"the PostgreSQL server has {name} off, a crash would lose what was answered: "
                    f"set {name} = on in its configuration"
                )

    async def close(self) -> None:
        await self._connections.close()


class _PostgresTransaction(Afterwards):
    def __init__(self, connection: Any, statements: Statements) -> None:
        super().__init__()
        self.connection = connection
        self._statements = statements

    async def commit(self) -> None:
        """A connection that is lost now leaves it open whether it was committed."""
        try:
            said = await self.connection.execute("COMMIT")
        finally:
            self.call_afterwards()
        if said != "COMMIT":
            # The server's way to say so; whoever goes on after an error of a statement would never know.
            raise RuntimeError(f"a statement had failed, nothing was committed: {said}")

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        prepared = self._statements.prepared(statement, values)
        with told:
            return await self._fetch(prepared.text, prepared.one(values))

    async def _fetch(self, text: str, values: Sequence[Any]) -> Sequence[Record]:
        rows: Sequence[Record] = await self.connection.fetch(text, *values)
        return rows

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        rows = await self.all(statement, values)
        return rows[0] if rows else None

    async def run(self, statement: Executable, values: Values = None) -> int:
        prepared = self._statements.prepared(statement, values)
        if isinstance(values, list | tuple):
            with told:
                await self.connection.executemany(prepared.text, prepared.many(values))
            return len(values)
        with told:
            said: str = await self.connection.execute(prepared.text, *prepared.one(values))
        # Such as INSERT 0 1, UPDATE 3, CREATE TABLE.
        count = said.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0


class _Look(_PostgresTransaction):
    """Statements that change nothing, each by itself: one whose connection is lost is asked once more, on a new one. An
    answer that does not come in time is not asked for again.
    """

    def __init__(self, connection: Any, statements: Statements, connections: Connections) -> None:
        super().__init__(connection, statements)
        self._connections = connections

    async def _fetch(self, text: str, values: Sequence[Any]) -> Sequence[Record]:
        try:
            return await super()._fetch(text, values)
        except Exception as error:
            if isinstance(error, TimeoutError) or not self.connection.is_closed():
                raise
        self.connection = await self._connections.another(self.connection)
        return await super()._fetch(text, values)
