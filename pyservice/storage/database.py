"""Transactions on the records, with the same statements for SQLite and PostgreSQL.

Owns connections, durability and what becomes of their errors. SQLite statements run where they are called: a statement
takes tens of microseconds, handing it to a thread and back takes hundreds. Only what syncs (commit) goes to a thread.
PostgreSQL is asked through asyncpg. Statements are the queries' modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine, Executable, Row, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger

Record = Row[Any]
"""A row; its columns are attributes."""

Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Result = TypeVar("Result")

_POOL_SIZE: Final = 16
_ANSWER_TIMEOUT_S: Final = 10.0
_FULL: Final = (sqlite3.SQLITE_FULL,)

_log = get_logger("storage")


class Conflict(Exception):
    """Something that may be there once is there already, or something that is needed is not there."""


class DatabaseUnusable(Exception):
    """The database cannot be used as it is; the message says what to do."""


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


class Database(Protocol):
    """What handlers hold. `read` sees one state; `write` commits at its end, durably, unless something was raised."""

    name: str

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    def write(self) -> contextlib.AbstractAsyncContextManager[Transaction]: ...
    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Work that wants a plain connection, in one transaction: migrations, checks."""
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
    """One file. Readers never wait; writers go one after the other."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine = _sqlite_engine(path)
        self._one_writer = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        with _told():
            connection = self._engine.connect()
        try:
            yield _SqliteTransaction(connection)
        finally:
            connection.close()

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        async with self._one_writer:
            with _told():
                connection = self._engine.connect().execution_options(sqlite_begin="IMMEDIATE")
            try:
                yield _SqliteTransaction(connection)
                with _told():
                    await _finish(asyncio.to_thread(connection.commit))
            finally:
                connection.close()

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        def begun() -> Result:
            with (
                self._engine.connect().execution_options(sqlite_begin="IMMEDIATE") as connection,
                connection.begin(),
            ):
                return work(connection)

        async with self._one_writer:
            with _told():
                return await _finish(asyncio.to_thread(begun))

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.dispose)


def _sqlite_engine(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"check_same_thread": False, "timeout": _ANSWER_TIMEOUT_S},
        pool_size=_POOL_SIZE,
        max_overflow=-1,
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
        connection.exec_driver_sql(f"BEGIN {mode}")

    return engine


class _SqliteTransaction:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        with _told():
            return self._connection.execute(statement, values).all()

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        with _told():
            return self._connection.execute(statement, values).first()

    async def run(self, statement: Executable, values: Values = None) -> int:
        with _told():
            return self._connection.execute(statement, values).rowcount


# PostgreSQL ---------------------------------------------------------------------------------------


class PostgresDatabase:
    """A server. Rows that change are locked by the statements that change them."""

    name = "postgresql"

    def __init__(self, url: str) -> None:
        self._engine: AsyncEngine = create_async_engine(
            make_url(url).set(drivername="postgresql+asyncpg"),
            pool_size=_POOL_SIZE,
            max_overflow=_POOL_SIZE,
            pool_timeout=_ANSWER_TIMEOUT_S,
            connect_args={
                "timeout": _ANSWER_TIMEOUT_S,
                "command_timeout": _ANSWER_TIMEOUT_S,
                "server_settings": {
                    "application_name": "pyservice",
                    "synchronous_commit": "on",
                    "timezone": "UTC",
                },
            },
        )

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        async with self._connected() as connection:
            yield _PostgresTransaction(connection)

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        async with self._connected() as connection:
            yield _PostgresTransaction(connection)
            with _told():
                await _finish(connection.commit())

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        async with self._connected() as connection:
            with _told():
                result = await connection.run_sync(work)
                await connection.commit()
                return result

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        with _told():
            connection = await self._engine.connect()
        try:
            yield connection
        finally:
            # A connection that broke may say so again when it is given back; that was told already.
            with contextlib.suppress(SQLAlchemyError, OSError):
                await _finish(connection.close())

    async def close(self) -> None:
        await self._engine.dispose()


class _PostgresTransaction:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        with _told():
            return (await self._connection.execute(statement, values)).all()

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        with _told():
            return (await self._connection.execute(statement, values)).first()

    async def run(self, statement: Executable, values: Values = None) -> int:
        with _told():
            return (await self._connection.execute(statement, values)).rowcount


# Errors -------------------------------------------------------------------------------------------


class _Told:
    """What a database says, in words that callers know."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            return
        if isinstance(error, IntegrityError):
            raise Conflict(str(error.orig)) from error
        if isinstance(error, PoolExhausted):
            raise ServiceError("OVERLOADED") from error
        if isinstance(error, DBAPIError) and _is_full(error):
            _log.error("database full", error=str(error.orig))
            raise ServiceError("STORAGE_FULL") from error
        if isinstance(error, DBAPIError | OSError | TimeoutError) or _is_of_driver(error):
            _log.error("database away", error=f"{type(error).__name__}: {error}".split("\n")[0])
            raise _away() from error


def _told() -> _Told:
    return _TOLD


_TOLD: Final = _Told()


def _away() -> ServiceError:
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE",
        "The database does not answer; games go on, changes have to wait. Try again.",
    )


def _is_full(error: DBAPIError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", None)
    # PostgreSQL: class 53 with 53100, disk_full.
    return code in _FULL or getattr(error.orig, "sqlstate", None) == "53100"


def _is_of_driver(error: BaseException) -> bool:
    """asyncpg raises some errors of connections as they are."""
    return type(error).__module__.startswith("asyncpg.")


async def _finish(work: Awaitable[Result]) -> Result:
    """Waits for work to its end, also when the caller is cancelled: a commit is done or not, never unknown."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
