"""Database of records in a SQLite file, with group commit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import time
from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson
from sqlalchemy import (
    BinaryExpression,
    BindParameter,
    Boolean,
    Connection,
    Executable,
    LargeBinary,
    NullPool,
    create_engine,
    event,
)
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.types import UserDefinedType

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.observability.logging import get_logger
from pyservice.storage.compiled_statements import (
    CompiledStatement,
    ListParameterCompiler,
    StatementCache,
)
from pyservice.storage.database import CommitCallbacks, Record, Result, Transaction, Values
from pyservice.storage.database_errors import (
    DatabaseUnusable,
    TransactionRolledBack,
    database_unavailable,
    translate_database_errors,
)

# Statements ---------------------------------------------------------------------------------------


_BYTES_OF_HEX: Final = "bytes_of_hex"
"""SQL function that decodes hex, because JSON has no bytes."""

_MakeRow = Callable[[Sequence[Any]], Any]


class _TextList(UserDefinedType[Any]):
    """List of texts or integers that is passed to SQLite as JSON.

    Texts with NUL are omitted: SQLite's JSON ends a text at NUL, and no column contains NUL.
    """

    cache_ok = True

    @staticmethod
    def send(values: Iterable[Any]) -> str:
        return orjson.dumps(
            [value for value in values if not isinstance(value, str) or "\0" not in value]
        ).decode()


class _BytesList(UserDefinedType[Any]):
    cache_ok = True

    @staticmethod
    def send(values: Iterable[bytes]) -> str:
        return orjson.dumps([value.hex() for value in values]).decode()


class _Compiler(ListParameterCompiler, SQLiteCompiler):
    def in_list(
        self, binary: BinaryExpression[Any], parameter: BindParameter[Any], **kw: Any
    ) -> str:
        return self._in_json(binary, parameter, "IN", **kw)

    def not_in_list(
        self, binary: BinaryExpression[Any], parameter: BindParameter[Any], **kw: Any
    ) -> str:
        return self._in_json(binary, parameter, "NOT IN", **kw)

    def _in_json(
        self, binary: BinaryExpression[Any], parameter: BindParameter[Any], operator: str, **kw: Any
    ) -> str:
        is_bytes = isinstance(binary.left.type, LargeBinary)
        parameter.type = _BytesList() if is_bytes else _TextList()
        value = f"{_BYTES_OF_HEX}(value)" if is_bytes else "value"
        array = self.process(parameter, **kw)
        column = self.process(binary.left, **kw)
        return f"{column} {operator} (SELECT {value} FROM json_each({array}))"


class _Dialect(SQLiteDialect_pysqlite):
    statement_compiler = _Compiler
    supports_statement_cache = True


def sqlite_statements() -> StatementCache:
    return StatementCache(_Dialect(paramstyle="qmark"))


@lru_cache(1000)
def _row_type(names: tuple[str, ...]) -> Any:
    """Returns a row type with these columns.

    The type is cached, because its creation takes longer than ten statements.
    """
    row_type = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    row: Any = row_type
    row._mapping = property(row._asdict)
    return row


def row_maker(compiled: CompiledStatement, names: Iterable[str]) -> _MakeRow:
    """Returns a function that creates a row from the values that SQLite returned.

    Integers of boolean columns become booleans.
    """
    make: _MakeRow = _row_type(tuple(names))._make
    booleans = [
        number
        for number, column in enumerate(compiled.compiled._result_columns)
        if isinstance(column.type, Boolean)
    ]
    if not booleans:
        return make

    def with_booleans(values: Sequence[Any]) -> Any:
        converted = list(values)
        for number in booleans:
            if converted[number] is not None:
                converted[number] = bool(converted[number])
        return make(converted)

    return with_booleans


# Connections --------------------------------------------------------------------------------------


_IDLE_MAX: Final = 16
_MODE: Final = 0o600
_STATEMENT_LOCKED_S: Final = 0.05
"""Maximum blocking wait for another process. Writers retry without blocking (`DatabaseLocked`)."""
_STATEMENTS_PREPARED: Final = 400
_PRIMARY_CODE: Final = 0xFF
_LOCKED_POLL_S: Final = 0.005
_PRAGMAS: Final = (
    "synchronous=FULL",
    "foreign_keys=ON",
    # ON overwrites deleted secrets. FAST would leave them in free pages.
    "secure_delete=ON",
    "cache_size=-16384",
    "wal_autocheckpoint=4000",
    # A log beyond this size would keep deleted content forever.
    f"journal_size_limit={16 << 20}",
)


class DatabaseLocked(Exception):
    pass


def connect(path: Path, locked_s: float = _STATEMENT_LOCKED_S) -> sqlite3.Connection:
    _keep_private(path)
    connection = sqlite3.connect(
        path,
        timeout=locked_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS_PREPARED,
    )
    try:
        _enable_wal(connection, time.monotonic() + locked_s)
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.create_function(_BYTES_OF_HEX, 1, bytes.fromhex, deterministic=True)
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_private(path: Path) -> None:
    """Makes the database files accessible only to their owner, because they contain secrets."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
        return
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with contextlib.suppress(OSError):
            if stat.S_IMODE(file.stat().st_mode) != _MODE:
                file.chmod(_MODE)


def _enable_wal(connection: sqlite3.Connection, until_s: float) -> None:
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            is_locked = error.sqlite_errorcode & _PRIMARY_CODE == sqlite3.SQLITE_BUSY
            if not is_locked or time.monotonic() >= until_s:
                raise
            time.sleep(_LOCKED_POLL_S)
        else:
            return


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Connects to an existing database without the right to change it."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=_STATEMENT_LOCKED_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS_PREPARED,
    )
    connection.create_function(_BYTES_OF_HEX, 1, bytes.fromhex, deterministic=True)
    return connection


class SqliteConnections:
    """Connection pool for one database file. `acquire` fails if the file was removed or replaced."""

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection] = connect) -> None:
        self._path = path
        self._connect = connect
        self._file: tuple[int, int] | None = None
        self._idle: list[sqlite3.Connection] = []
        self.in_use = 0
        self.finished_transactions = 0

    def acquire(self, begin: str | None) -> sqlite3.Connection:
        # SQLite would keep writing to a removed or replaced file, and the data would be lost.
        if self._file is not None and self._file != _identity(self._path):
            _log.error(
                "database file missing or replaced",
                path=str(self._path),
                remedy="stop the service, restore the file, start the service",
            )
            raise database_unavailable()
        with translate_database_errors:
            connection = self._idle.pop() if self._idle else self._connect(self._path)
            try:
                if begin is not None:
                    connection.execute(begin)
            except sqlite3.OperationalError as error:
                connection.close()
                if error.sqlite_errorcode & _PRIMARY_CODE == sqlite3.SQLITE_BUSY:
                    raise DatabaseLocked from None
                raise
            except BaseException:
                connection.close()
                raise
        self._file = self._file or _identity(self._path)
        self.in_use += 1
        return connection

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Rolls back uncommitted changes and returns the connection to the pool."""
        self.in_use -= 1
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            connection.close()
            return
        self.finished_transactions += 1
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def give_up(self, connection: sqlite3.Connection) -> None:
        """Closes a connection with a transaction in an unknown state."""
        self.in_use -= 1
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Group commit -------------------------------------------------------------------------------------


class CommitGroup:
    """Group of changes that one commit syncs to disk. Each change has its own savepoint.

    The future `committed` has the result for all changes.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A cancelled member does not retrieve the exception.
        self.committed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.work: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def member(self) -> Iterator[None]:
        self._require_open()
        self.connection.execute("SAVEPOINT member")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK TO member")
                self.connection.execute("RELEASE member")
            raise
        self._require_open()
        self.connection.execute("RELEASE member")

    @property
    def is_lost(self) -> bool:
        return not self.connection.in_transaction

    def _require_open(self) -> None:
        if self.is_lost:
            raise TransactionRolledBack("the transaction was rolled back")

    async def finish(self, committer: Executor) -> bool:
        """Commits in a thread, because the commit waits for the disk. Returns whether it succeeded."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(committer, self._finish)
        except Exception as error:  # noqa: BLE001 — `translate_database_errors` raises it to all members
            self.committed.set_exception(error)
            return False
        self.committed.set_result(None)
        return True

    def _finish(self) -> None:
        self._require_open()
        self.connection.execute("COMMIT")


# Database -----------------------------------------------------------------------------------------


READ: Final = "BEGIN DEFERRED"
_WRITE: Final = "BEGIN IMMEDIATE"
_log = get_logger("storage")
_LOCKED_TIMEOUT_S: Final = 10.0
_LOCKED_PAUSE_S: Final = 0.05


class SqliteDatabase:
    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.location = path.name
        self._connections = SqliteConnections(path)
        self._statements = sqlite_statements()
        self._one_writer = asyncio.Lock()
        self._group: CommitGroup | None = None
        self.finished_writes = 0
        # A dedicated thread, so that other work does not delay commits.
        self._committer = ThreadPoolExecutor(1, "commit")

    @property
    def finished_reads(self) -> int:
        return self._connections.finished_transactions

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return _ReadTransaction(self._connections, self._statements, READ)

    def query(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return _ReadTransaction(self._connections, self._statements, None)

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        until = asyncio.get_running_loop().time() + _LOCKED_TIMEOUT_S
        async with self._one_writer:
            if self._group is not None and self._group.is_lost:
                # A new writer must not join a group that failed.
                await self._commit_open()
            group = self._group
            if group is None:
                group = self._group = CommitGroup(await self._acquire_writer(until))
                # The commit runs after all writers that wait now, so that they share one sync.
                group.work = asyncio.create_task(self._commit(group))
            tx = SqliteTransaction(group.connection, self._statements, is_begun=True)
            try:
                with group.member():
                    yield tx
            except TransactionRolledBack as error:
                raise database_unavailable() from error
            finally:
                self.finished_writes += 1
            group.committed.add_done_callback(tx.run_commit_callbacks)
        with translate_database_errors:
            await asyncio.shield(group.committed)

    async def _acquire_writer(self, until: float) -> sqlite3.Connection:
        while True:
            try:
                return self._connections.acquire(_WRITE)
            except DatabaseLocked as error:
                if asyncio.get_running_loop().time() >= until:
                    _log.error(
                        "database unavailable",
                        error="another process writes",
                        path=str(self._path),
                    )
                    raise database_unavailable() from error
            await asyncio.sleep(_LOCKED_PAUSE_S)

    async def _commit(self, group: CommitGroup) -> None:
        async with self._one_writer:
            if self._group is group:
                await self._commit_open()

    async def _commit_open(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await await_despite_cancel(self._end(group))

    async def _end(self, group: CommitGroup) -> None:
        if await group.finish(self._committer):
            self._connections.give_back(group.connection)
        else:
            self._connections.give_up(group.connection)

    def fence(self, claim_id: str, position: int, on_loss: Callable[[], NoReturn]) -> None:
        pass

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        def run() -> Result:
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
            with translate_database_errors:
                return await await_despite_cancel(asyncio.to_thread(run))

    def check(self, connection: Connection) -> None:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous")
        }
        if pragmas != {"journal_mode": "wal", "synchronous": 2}:
            raise DatabaseUnusable(
                f"{self._path}: this file system does not support the write-ahead log of SQLite ({pragmas}): "
                "move data_dir to a local disk, or set database_url"
            )

    async def close(self) -> None:
        async with self._one_writer:
            await self._commit_open()
        await asyncio.to_thread(self._connections.close)
        self._committer.shutdown()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(_WRITE)


class _ReadTransaction:
    """Read transaction on one snapshot. Without `begin`, each statement is its own transaction."""

    __slots__ = ("_begin", "_connection", "_connections", "_statements")

    def __init__(
        self, connections: SqliteConnections, statements: StatementCache, begin: str | None
    ) -> None:
        self._begin = begin
        self._connections = connections
        self._statements = statements

    async def __aenter__(self) -> Transaction:
        self._connection = self._connections.acquire(self._begin)
        is_begun = self._begin is not None
        return SqliteTransaction(self._connection, self._statements, is_begun=is_begun)

    async def __aexit__(self, *_: object) -> None:
        self._connections.give_back(self._connection)


class SqliteTransaction(CommitCallbacks):
    def __init__(
        self, connection: sqlite3.Connection, statements: StatementCache, *, is_begun: bool
    ) -> None:
        super().__init__()
        self._raw_connection = connection
        self._statements = statements
        self._is_begun = is_begun

    @property
    def _connection(self) -> sqlite3.Connection:
        """Returns the connection of the transaction.

        Raises TransactionRolledBack if SQLite rolled the transaction back. Without this check, a
        later statement would commit in a transaction of its own.
        """
        if self._is_begun and not self._raw_connection.in_transaction:
            raise TransactionRolledBack("the transaction was rolled back")
        return self._raw_connection

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        return self.fetch_all(statement, values)

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        return self.fetch_first(statement, values)

    def fetch_all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        compiled = self._statements.compile(statement, values)
        with translate_database_errors:
            cursor = self._connection.execute(compiled.text, compiled.argument_values(values))
            rows = cursor.fetchall()
        if not rows:
            return rows
        make = _maker(compiled, cursor)
        return [make(row) for row in rows]

    def fetch_first(self, statement: Executable, values: Values = None) -> Record | None:
        compiled = self._statements.compile(statement, values)
        with translate_database_errors:
            cursor = self._connection.execute(compiled.text, compiled.argument_values(values))
            row = cursor.fetchone()
            cursor.close()
        if row is None:
            return None
        record: Record = _maker(compiled, cursor)(row)
        return record

    async def run(self, statement: Executable, values: Values = None) -> int:
        compiled = self._statements.compile(statement, values)
        with translate_database_errors:
            if isinstance(values, list | tuple):
                self._connection.executemany(compiled.text, compiled.argument_value_lists(values))
                return len(values)
            return self._connection.execute(
                compiled.text, compiled.argument_values(values)
            ).rowcount


def _maker(compiled: CompiledStatement, cursor: sqlite3.Cursor) -> _MakeRow:
    if compiled.make_row is None:
        compiled.make_row = row_maker(compiled, (column[0] for column in cursor.description))
    make: _MakeRow = compiled.make_row
    return make
