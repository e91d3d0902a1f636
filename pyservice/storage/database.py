"""Transactions on the records, with the same statements for SQLite and PostgreSQL.

Owns connections, durability and what becomes of their errors. SQLite statements run where they are called: a statement
takes tens of microseconds, handing it to a thread and back takes hundreds. Only what syncs (commit) goes to a thread.
PostgreSQL is asked through asyncpg. Statements are the queries' modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine, Executable, NullPool, Row, create_engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from pyservice.observability.logging import get_logger
from pyservice.storage.failures import Conflict, DatabaseUnusable, away, told
from pyservice.storage.group_commit import Group, GroupLost

__all__ = [
    "Conflict",
    "Database",
    "DatabaseUnusable",
    "PostgresDatabase",
    "Record",
    "SqliteDatabase",
    "Transaction",
    "open_database",
]

Record = Row[Any]
"""A row; its columns are attributes."""

Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Result = TypeVar("Result")

_POOL_SIZE: Final = 16
_ANSWER_TIMEOUT_S: Final = 10.0
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
        """How many rows it concerned."""
        ...

    def afterwards(self, call: Callable[[], None]) -> None:
        """Calls it when the change was committed, or may have been: also when nobody waits for it any more."""
        ...


class Database(Protocol):
    """What handlers hold. `read` sees one state; `write` commits at its end, durably, unless something was raised."""

    name: str

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
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
    if url is None:
        return SqliteDatabase(folder / "records.db")
    try:
        parsed = make_url(url)
    except SQLAlchemyError:
        raise DatabaseUnusable("database_url is no URL, such as postgresql://host/name") from None
    if parsed.get_backend_name() != "postgresql":
        raise DatabaseUnusable(
            f"database_url names {parsed.get_backend_name()}: postgresql it is, or nothing"
        )
    return PostgresDatabase(url)


# SQLite -------------------------------------------------------------------------------------------


class SqliteDatabase:
    """One file. Readers never wait; writers go one after the other and are synced together."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that is open."""
        self._engine = _sqlite_engine(path)
        self._one_writer = asyncio.Lock()
        self._group: Group | None = None
        # Its own: whatever else keeps threads busy, changes are committed.
        self._committer = ThreadPoolExecutor(1, "commit")

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        connection = self._connect("DEFERRED")
        try:
            yield _SqliteTransaction(connection)
        finally:
            connection.close()

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        async with self._one_writer:
            group = self._group
            if group is None:
                group = self._group = Group(self._connect("IMMEDIATE"))
                # After all who wait for their turn by now: they are synced together, and nobody waits for company.
                group.work = asyncio.create_task(self._commit(group))
            tx = _SqliteTransaction(group.connection)
            try:
                with group.member():
                    yield tx
            except GroupLost as error:
                raise away() from error
            group.committed.add_done_callback(tx.call_afterwards)
        with told:
            await asyncio.shield(group.committed)

    async def _commit(self, group: Group) -> None:
        async with self._one_writer:
            if self._group is group:
                await self._commit_open()

    async def _commit_open(self) -> None:
        """Commits the group that is open; the turn is the caller's."""
        group, self._group = self._group, None
        if group is not None:
            await _finish(group.finish(self._committer))

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        def begun() -> Result:
            with self._connect("IMMEDIATE") as connection, connection.begin():
                return work(connection)

        async with self._one_writer:
            await self._commit_open()
            with told:
                return await _finish(asyncio.to_thread(begun))

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
        await asyncio.to_thread(self._engine.dispose)
        self._committer.shutdown()

    def _connect(self, begin: str) -> Connection:
        """A file that was removed or replaced could be written to as before, and nobody would ever find it again."""
        if self._file is not None and self._file != _identity(self._path):
            _log.error(
                "database file gone", path=str(self._path), remedy="stop, put it back, start"
            )
            raise away()
        with told:
            connection = self._engine.connect().execution_options(sqlite_begin=begin)
        self._file = self._file or _identity(self._path)
        return connection


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _sqlite_engine(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"check_same_thread": False, "timeout": _ANSWER_TIMEOUT_S},
        pool_size=_POOL_SIZE,
        max_overflow=-1,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        # Python's module begins transactions on its own terms; we begin them.
        connection.isolation_level = None
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "cache_size=-16384",
            "wal_autocheckpoint=4000",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get("sqlite_begin", "DEFERRED")
        # What SQLAlchemy would do around it is worth as much as a query.
        driver: Any = connection.connection.driver_connection
        driver.execute(f"BEGIN {mode}")

    return engine


class _Afterwards:
    """Calls that wait for the commit."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def afterwards(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def call_afterwards(self, _: object = None) -> None:
        for call in self._calls:
            call()


class _SqliteTransaction(_Afterwards):
    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        with told:
            return self._connection.execute(statement, values).all()

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        with told:
            return self._connection.execute(statement, values).first()

    async def run(self, statement: Executable, values: Values = None) -> int:
        with told:
            return self._connection.execute(statement, values).rowcount


# PostgreSQL ---------------------------------------------------------------------------------------


class PostgresDatabase:
    """A server. Rows that change are locked by the statements that change them."""

    name = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine = _postgres_engine(
            url, _ANSWER_TIMEOUT_S, pool_size=_POOL_SIZE, max_overflow=_POOL_SIZE
        )
        # The default would show each statement another state.
        self._reading = self._engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        async with _connected(self._reading) as connection:
            yield _PostgresTransaction(connection)

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        async with _connected(self._engine) as connection:
            tx = _PostgresTransaction(connection)
            yield tx
            with told:
                await _finish(tx.commit())

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        engine = _postgres_engine(self._url, None, poolclass=NullPool)
        async with _connected(engine) as connection:
            with told:
                result = await connection.run_sync(work)
                await _finish(connection.commit())
                return result

    def check(self, connection: Connection) -> None:
        for name in ("fsync", "synchronous_commit"):
            if connection.exec_driver_sql(f"SHOW {name}").scalar() != "on":
                raise DatabaseUnusable(
                    f"the PostgreSQL server has {name} off, a crash would lose what was answered: "
                    f"set {name} = on in its configuration"
                )

    async def close(self) -> None:
        await self._engine.dispose()


def _postgres_engine(url: str, answer_timeout_s: float | None, **pool: Any) -> AsyncEngine:
    parsed = make_url(url).set(drivername="postgresql+asyncpg")
    if "sslmode" in parsed.query:
        # The word of every other client; the driver's is another.
        mode = parsed.query["sslmode"]
        parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    if "poolclass" not in pool:
        pool["pool_timeout"] = _ANSWER_TIMEOUT_S
    return create_async_engine(
        parsed,
        connect_args={
            "timeout": _ANSWER_TIMEOUT_S,
            "command_timeout": answer_timeout_s,
            "server_settings": {
                "application_name": "pyservice",
                "synchronous_commit": "on",
                "timezone": "UTC",
            },
        },
        hide_parameters=True,
        **pool,
    )


@contextlib.asynccontextmanager
async def _connected(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    with told:
        connection = await engine.connect()
    try:
        yield connection
    finally:
        # A connection that broke may say so again when it is given back; that was told already.
        with contextlib.suppress(SQLAlchemyError, OSError):
            await _finish(connection.close())


class _PostgresTransaction(_Afterwards):
    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__()
        self._connection = connection

    async def commit(self) -> None:
        """A connection that is lost now leaves it open whether it was committed."""
        try:
            await self._connection.commit()
        finally:
            self.call_afterwards()

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        with told:
            return (await self._connection.execute(statement, values)).all()

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        with told:
            return (await self._connection.execute(statement, values)).first()

    async def run(self, statement: Executable, values: Values = None) -> int:
        with told:
            return (await self._connection.execute(statement, values)).rowcount


async def _finish(work: Awaitable[Result]) -> Result:
    """Waits for work to its end, also when the caller is cancelled, however often: a commit is done or not, and nobody
    touches its connection meanwhile.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()
