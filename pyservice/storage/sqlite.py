"""The records in one SQLite file, asked through the driver with statements that SQLAlchemy compiled once.

Statements run where they are called: one takes tens of microseconds, handing it to a thread and back takes hundreds.
Only what syncs (commit) goes to a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Executable, NullPool, create_engine, event

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.observability.logging import get_logger
from pyservice.storage.failures import DatabaseUnusable, away, told
from pyservice.storage.group_commit import Group, GroupLost
from pyservice.storage.sqlite_connections import Connections, Locked, connect
from pyservice.storage.sqlite_statements import MakeRow, row_maker, sqlite_statements
from pyservice.storage.statements import Prepared, Statements
from pyservice.storage.transactions import (
    Afterwards,
    Record,
    Result,
    Transaction,
    Values,
)

_READ: Final = "BEGIN DEFERRED"
_WRITE: Final = "BEGIN IMMEDIATE"
_log = get_logger("storage")
_LOCKED_TIMEOUT_S: Final = 10.0
"""How long a change waits for another process that writes."""
_LOCKED_PAUSE_S: Final = 0.05


class SqliteDatabase:
    """One file. Readers never wait; writers go one after the other and are synced together."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connections = Connections(path)
        self._statements = sqlite_statements()
        self._one_writer = asyncio.Lock()
        self._group: Group | None = None
        self.write_turns = 0
        # Its own: whatever else keeps threads busy, changes are committed.
        self._committer = ThreadPoolExecutor(1, "commit")

    @property
    def read_turns(self) -> int:
        return self._connections.turns

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return _Reading(self._connections, self._statements, _READ)

    def look(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return _Reading(self._connections, self._statements, None)

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        until = asyncio.get_running_loop().time() + _LOCKED_TIMEOUT_S
        async with self._one_writer:
            if self._group is not None and self._group.is_lost:
                # Those who were in it are told; who comes now was not.
                await self._commit_open()
            group = self._group
            if group is None:
                group = self._group = Group(await self._begun(until))
                # After all who wait for their turn by now: they are synced together, and nobody waits for company.
                group.work = asyncio.create_task(self._commit(group))
            tx = _SqliteTransaction(group.connection, self._statements, is_begun=True)
            try:
                with group.member():
                    yield tx
            except GroupLost as error:
                raise away() from error
            finally:
                self.write_turns += 1
            group.committed.add_done_callback(tx.call_afterwards)
        with told:
            await asyncio.shield(group.committed)

    async def _begun(self, until: float) -> sqlite3.Connection:
        """As soon as no other process writes. The loop goes on meanwhile. Raises what `told` makes of errors."""
        while True:
            try:
                return self._connections.begun(_WRITE)
            except Locked as error:
                if asyncio.get_running_loop().time() >= until:
                    _log.error(
                        "database away", error="another process writes", path=str(self._path)
                    )
                    raise away() from error
            await asyncio.sleep(_LOCKED_PAUSE_S)

    async def _commit(self, group: Group) -> None:
        async with self._one_writer:
            if self._group is group:
                await self._commit_open()

    async def _commit_open(self) -> None:
        """Commits the group that is open; the turn is the caller's."""
        group, self._group = self._group, None
        if group is not None:
            await await_despite_cancel(self._end(group))

    async def _end(self, group: Group) -> None:
        if await group.finish(self._committer):
            self._connections.give_back(group.connection)
        else:
            self._connections.give_up(group.connection)

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        def begun() -> Result:
            # Migrations want SQLAlchemy's own connection.
            engine = create_engine(
                "sqlite://",
                creator=lambda: connect(self._path, _LOCKED_TIMEOUT_S),
                poolclass=NullPool,
                hide_parameters=True,
            )
            event.listen(engine, "begin", _begin)
            with engine.begin() as connection:
                return work(connection)

        async with self._one_writer:
            await self._commit_open()
            with told:
                return await await_despite_cancel(asyncio.to_thread(begun))

    def check(self, connection: Connection) -> None:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous")
        }
        if found != {"journal_mode": "wal", "synchronous": 2}:
            raise DatabaseUnusable(
                f"{self._path}: this file system does not let SQLite keep its log ({found}): "
                "move data_dir to a local disk, or set database_url"
            )

    async def close(self) -> None:
        async with self._one_writer:
            await self._commit_open()
        # The last one that is closed writes its log back, and syncs.
        await asyncio.to_thread(self._connections.close)
        self._committer.shutdown()


def _begin(connection: Connection) -> None:
    """Python's module begins transactions on its own terms; we begin them."""
    connection.exec_driver_sql(_WRITE)


class _Reading:
    """A transaction that sees one state; without `begin` each statement is one."""

    __slots__ = ("_begin", "_connection", "_connections", "_statements")

    def __init__(self, connections: Connections, statements: Statements, begin: str | None) -> None:
        self._begin = begin
        self._connections = connections
        self._statements = statements

    async def __aenter__(self) -> Transaction:
        self._connection = self._connections.begun(self._begin)
        is_begun = self._begin is not None
        return _SqliteTransaction(self._connection, self._statements, is_begun=is_begun)

    async def __aexit__(self, *_: object) -> None:
        self._connections.give_back(self._connection)


class _SqliteTransaction(Afterwards):
    def __init__(
        self, connection: sqlite3.Connection, statements: Statements, *, is_begun: bool
    ) -> None:
        """`is_begun`: the connection has begun a transaction; else each statement is one."""
        super().__init__()
        self._given = connection
        self._statements = statements
        self._is_begun = is_begun

    @property
    def _connection(self) -> sqlite3.Connection:
        """For one statement. Raises GroupLost: with its transaction taken back, whatever its user made of the error
        that said so, a statement would be a transaction of its own, and kept.
        """
        if self._is_begun and not self._given.in_transaction:
            raise GroupLost("the transaction was taken back")
        return self._given

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        prepared = self._statements.prepared(statement, values)
        with told:
            cursor = self._connection.execute(prepared.text, prepared.one(values))
            found = cursor.fetchall()
        if not found:
            return found
        make = _maker(prepared, cursor)
        return [make(row) for row in found]

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        prepared = self._statements.prepared(statement, values)
        with told:
            cursor = self._connection.execute(prepared.text, prepared.one(values))
            found = cursor.fetchone()
            # What is still to come is not wanted, and would be in the way of a commit.
            cursor.close()
        if found is None:
            return None
        made: Record = _maker(prepared, cursor)(found)
        return made

    async def run(self, statement: Executable, values: Values = None) -> int:
        prepared = self._statements.prepared(statement, values)
        with told:
            if isinstance(values, list | tuple):
                self._connection.executemany(prepared.text, prepared.many(values))
                return len(values)
            return self._connection.execute(prepared.text, prepared.one(values)).rowcount


def _maker(prepared: Prepared, cursor: sqlite3.Cursor) -> MakeRow:
    """Makes the rows of a statement, whose columns are known once it has run."""
    if prepared.make_row is None:
        prepared.make_row = row_maker(prepared, (column[0] for column in cursor.description))
    make: MakeRow = prepared.make_row
    return make
