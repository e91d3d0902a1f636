"""Implementation of `Database` for a PostgreSQL server, through asyncpg."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import (
    ARRAY,
    BinaryExpression,
    BindParameter,
    Connection,
    Executable,
    NullPool,
    make_url,
)
from sqlalchemy.dialects.postgresql.asyncpg import PGCompiler_asyncpg, PGDialect_asyncpg
from sqlalchemy.exc import SQLAlchemyError

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.errors import ServiceError
from pyservice.settings.database_url import database_location
from pyservice.storage.compiled_statements import (
    ListParameterCompiler,
    StatementCache,
)
from pyservice.storage.database import CommitCallbacks, Record, Result, Transaction, Values
from pyservice.storage.database_errors import (
    DatabaseErrorTranslation,
    DatabaseUnusable,
    sqlstate,
    translate_database_errors,
)

# Statements ---------------------------------------------------------------------------------------


class _Compiler(ListParameterCompiler, PGCompiler_asyncpg):
    def in_list(
        self, binary: BinaryExpression[Any], parameter: BindParameter[Any], **kw: Any
    ) -> str:
        return self._any(binary, parameter, "= ANY", **kw)

    def not_in_list(
        self, binary: BinaryExpression[Any], parameter: BindParameter[Any], **kw: Any
    ) -> str:
        return self._any(binary, parameter, "<> ALL", **kw)

    def _any(
        self, binary: BinaryExpression[Any], parameter: BindParameter[Any], operator: str, **kw: Any
    ) -> str:
        # The type has no column length, because a cast to it would truncate values and find wrong
        # rows.
        parameter.type = ARRAY(type(binary.left.type)())
        return f"{self.process(binary.left, **kw)} {operator} ({self.process(parameter, **kw)})"


class _Dialect(PGDialect_asyncpg):
    statement_compiler = _Compiler
    supports_statement_cache = True


def postgres_statements() -> StatementCache:
    return StatementCache(_Dialect())  # type: ignore[no-untyped-call]


# Connections --------------------------------------------------------------------------------------


ANSWER_TIMEOUT_S: Final = 10.0
_CONNECTIONS_MAX: Final = 16
_PREPARED_STATEMENTS_MAX: Final = 400
_ROLL_BACK_S: Final = 2.0
_CLOSE_S: Final = 2.0
_SETTINGS: Final = {
    "application_name": "pyservice",
    "synchronous_commit": "on",
    "timezone": "UTC",
}


class Row(asyncpg.Record):  # type: ignore[misc]
    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def _mapping(self) -> dict[str, Any]:
        return dict(self.items())


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    def get_reset_query(self) -> str:
        """Returns an empty query, because no statement of the service leaves state in its session."""
        return ""

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 — asyncpg calls it so
        """Closes the connection without an error if the server is already gone.

        asyncpg's pool closes replaced connections in tasks and does not await them.
        """
        with contextlib.suppress(OSError):
            await super().close(timeout=timeout)


def _address(url: str) -> str:
    return f"postgresql://{url.partition('://')[2]}"


class PostgresConnections:
    def __init__(self, url: str, translate_errors: DatabaseErrorTranslation) -> None:
        self._translate_errors = translate_errors
        self._pool = asyncpg.create_pool(
            _address(url),
            min_size=0,
            max_size=_CONNECTIONS_MAX,
            connection_class=_Connection,
            record_class=Row,
            timeout=ANSWER_TIMEOUT_S,
            command_timeout=ANSWER_TIMEOUT_S,
            statement_cache_size=_PREPARED_STATEMENTS_MAX,
            max_cached_statement_lifetime=0,
            server_settings=_SETTINGS,
        )
        self.in_use = 0
        self.finished_transactions = 0

    async def acquire(self, begin: str | None) -> Any:
        """Returns a connection on which the statement `begin` has run, if `begin` is set.

        Raises OVERLOADED if no connection becomes free in time.
        """
        is_full = self.in_use >= _CONNECTIONS_MAX
        self.in_use += 1
        try:
            with self._translate_errors:
                return await self._acquire(begin)
        except BaseException as error:
            self.in_use -= 1
            if is_full and _is_hung(error):
                raise ServiceError("OVERLOADED") from None
            raise

    async def _acquire(self, begin: str | None) -> Any:
        await self._pool
        is_retry = False
        while True:
            connection = await self._pool.acquire(timeout=ANSWER_TIMEOUT_S)
            if begin is None:
                return connection
            try:
                await connection.execute(begin)
            except BaseException as error:
                await self._discard(connection)
                if is_retry or not _is_lost(error):
                    raise
                is_retry = True
            else:
                return connection

    async def replace_lost(self, lost: Any) -> Any:
        await self._discard(lost)
        return await self._pool.acquire(timeout=ANSWER_TIMEOUT_S)

    async def _discard(self, connection: Any) -> None:
        """Closes a failed connection. The pool then replaces all others, which may also have
        failed.
        """
        if not is_closed(connection):
            connection.terminate()
        await self._pool.expire_connections()
        await self._release(connection)

    async def _release(self, connection: Any) -> None:
        try:
            await self._pool.release(connection)
        except asyncpg.InternalClientError:
            # The server closed the connection meanwhile, so the pool already has it.
            if not is_closed(connection):
                raise

    async def give_back(self, connection: Any) -> None:
        self.in_use -= 1
        self.finished_transactions += 1
        await await_despite_cancel(self._release(connection))

    async def give_up(self, connection: Any, error: BaseException) -> None:
        self.in_use -= 1
        await await_despite_cancel(self._give_up(connection, error))

    async def _give_up(self, connection: Any, error: BaseException) -> None:
        if not (_is_hung(error) or is_closed(connection)) and connection.is_in_transaction():
            try:
                await connection.execute("ROLLBACK", timeout=_ROLL_BACK_S)
            except Exception as failed:  # noqa: BLE001 — the server rolls back after any error
                error = failed
        if _is_hung(error) or is_closed(connection):
            await self._discard(connection)
        else:
            await self._release(connection)

    async def close(self) -> None:
        """Closes all connections. Waits a short time for transactions in progress."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await (await self._pool).close()


async def connect_for_migrations(url: str) -> Any:
    """Returns a connection without a time limit for its statements."""
    return await asyncpg.connect(_address(url), timeout=ANSWER_TIMEOUT_S, server_settings=_SETTINGS)


def is_closed(connection: Any) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:  # the pool took back a connection that it knows is closed
        return True


def _is_lost(error: BaseException) -> bool:
    return isinstance(
        error, OSError | asyncpg.PostgresError | asyncpg.InterfaceError
    ) and not isinstance(error, TimeoutError)


def _is_hung(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)


# Errors with a remedy -----------------------------------------------------------------------------


_NO_DATABASE: Final = "3D000"
_LOGIN: Final = "correct user and password in database_url, or the rules in pg_hba.conf"
_TABLES: Final = (
    "let the user of database_url create tables there "
    "(as owner of the database, or GRANT CREATE ON SCHEMA public)"
)
_REMEDIES: Final = {"28000": _LOGIN, "28P01": _LOGIN, "42501": _TABLES}
"""SQLSTATEs invalid_authorization_specification, invalid_password and insufficient_privilege."""


@contextlib.contextmanager
def report_unusable_server(url: str) -> Iterator[None]:
    """Context manager that raises DatabaseUnusable for server errors that an operator must fix."""
    try:
        yield
    except Exception as error:
        remedy = _remedy(sqlstate(error), url)
        if remedy is None:
            raise
        message = str(getattr(error, "orig", error)).split("\n")[0]
        raise DatabaseUnusable(f"the PostgreSQL server says: {message}: {remedy}") from error


def _remedy(state: str, url: str) -> str | None:
    if state != _NO_DATABASE:
        return _REMEDIES.get(state)
    command = shlex.join(["createdb", *filter(None, [make_url(url).database])])
    return f"create it ({command}), or correct database_url"


# Database -----------------------------------------------------------------------------------------


_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""Start of a transaction with one snapshot. At the default level, each statement would see another
state.
"""
_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


class PostgresDatabase:
    name = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = url
        self.location = database_location(url)
        self._translate_errors = DatabaseErrorTranslation(self.location)
        self._connections = PostgresConnections(url, self._translate_errors)
        self._statements = postgres_statements()

    @property
    def finished_reads(self) -> int:
        return self._connections.finished_transactions

    @property
    def finished_writes(self) -> int:
        return self._connections.finished_transactions

    def read(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return self._transaction(_READ)

    def query(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return self._transaction(None)

    def write(self) -> contextlib.AbstractAsyncContextManager[Transaction]:
        return self._transaction(_WRITE)

    @contextlib.asynccontextmanager
    async def _transaction(self, begin: str | None) -> AsyncIterator[Transaction]:
        connection = await self._connections.acquire(begin)
        if begin is None:
            tx: _PostgresTransaction = _AutocommitReads(
                connection, self._statements, self._connections
            )
        else:
            tx = _PostgresTransaction(connection, self._statements)
        try:
            yield tx
            if begin is not None:
                with translate_database_errors:
                    await await_despite_cancel(tx.commit())
        except BaseException as error:
            await self._connections.give_up(tx.connection, error)
            raise
        await self._connections.give_back(tx.connection)

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        # Migrations need an SQLAlchemy connection. Most starts only check the revision.
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: connect_for_migrations(self._url),
            poolclass=NullPool,
            hide_parameters=True,
        )
        with self._translate_errors, report_unusable_server(self._url):
            connection = await engine.connect()
        try:
            with self._translate_errors, report_unusable_server(self._url):
                result = await connection.run_sync(work)
                await await_despite_cancel(connection.commit())
                return result
        finally:
            with contextlib.suppress(SQLAlchemyError, OSError):
                await await_despite_cancel(connection.close())

    def check(self, connection: Connection) -> None:
        for name in ("fsync", "synchronous_commit"):
            if connection.exec_driver_sql(f"SHOW {name}").scalar() != "on":
                raise DatabaseUnusable(
                    f"the PostgreSQL server has {name} off, a crash would lose confirmed changes: "
                    f"set {name} = on in its configuration"
                )

    async def close(self) -> None:
        await self._connections.close()


class _PostgresTransaction(CommitCallbacks):
    def __init__(self, connection: Any, statements: StatementCache) -> None:
        super().__init__()
        self.connection = connection
        self._statements = statements

    async def commit(self) -> None:
        """Commits. If the connection is lost here, it is unknown whether the commit took effect."""
        try:
            command_tag = await self.connection.execute("COMMIT")
        finally:
            self.run_commit_callbacks()
        if command_tag != "COMMIT":
            # PostgreSQL answers a COMMIT with ROLLBACK after a failed statement.
            raise RuntimeError(f"a statement failed, so nothing was committed: {command_tag}")

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        compiled = self._statements.compile(statement, values)
        with translate_database_errors:
            return await self._fetch(compiled.text, compiled.argument_values(values))

    async def _fetch(self, text: str, values: Sequence[Any]) -> Sequence[Record]:
        rows: Sequence[Record] = await self.connection.fetch(text, *values)
        return rows

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        rows = await self.all(statement, values)
        return rows[0] if rows else None

    async def run(self, statement: Executable, values: Values = None) -> int:
        compiled = self._statements.compile(statement, values)
        if isinstance(values, list | tuple):
            with translate_database_errors:
                await self.connection.executemany(
                    compiled.text, compiled.argument_value_lists(values)
                )
            return len(values)
        with translate_database_errors:
            command_tag: str = await self.connection.execute(
                compiled.text, *compiled.argument_values(values)
            )
        # Examples of the command tag: INSERT 0 1, UPDATE 3, CREATE TABLE.
        count = command_tag.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0


class _AutocommitReads(_PostgresTransaction):
    """Runs reading statements, each in its own transaction.

    If the connection is lost, retries a statement once on a new connection, but not after a
    timeout.
    """

    def __init__(
        self, connection: Any, statements: StatementCache, connections: PostgresConnections
    ) -> None:
        super().__init__(connection, statements)
        self._connections = connections

    async def _fetch(self, text: str, values: Sequence[Any]) -> Sequence[Record]:
        try:
            return await super()._fetch(text, values)
        except Exception as error:
            if isinstance(error, TimeoutError) or not is_closed(self.connection):
                raise
        self.connection = await self._connections.replace_lost(self.connection)
        return await super()._fetch(text, values)
