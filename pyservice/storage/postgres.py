"""Database of records in a PostgreSQL server, through asyncpg."""

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
from pyservice.storage.compiled_statements import (
    ListParameterCompiler,
    StatementCache,
)
from pyservice.storage.database import CommitCallbacks, Record, Result, Transaction, Values
from pyservice.storage.database_errors import (
    DatabaseUnusable,
    sqlstate,
    translate_database_errors,
)

# Statements ---------------------------------------------------------------------------------------


class _Compiler(ListParameterCompiler, PGCompiler_asyncpg):
    def in_list(self, binary: BinaryExpression[Any], several: BindParameter[Any], **kw: Any) -> str:
        return self._any(binary, several, "= ANY", **kw)

    def not_in_list(
        self, binary: BinaryExpression[Any], several: BindParameter[Any], **kw: Any
    ) -> str:
        return self._any(binary, several, "<> ALL", **kw)

    def _any(
        self, binary: BinaryExpression[Any], several: BindParameter[Any], operator: str, **kw: Any
    ) -> str:
        # The type has no column length, because a cast to it would truncate values and find wrong
        # rows.
        several.type = ARRAY(type(binary.left.type)())
        return f"{self.process(binary.left, **kw)} {operator} ({self.process(several, **kw)})"


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


async def connect(url: str, answer_timeout_s: float | None, **options: Any) -> Any:
    _, _, rest = url.partition("://")
    return await asyncpg.connect(
        f"postgresql://{rest}",
        timeout=ANSWER_TIMEOUT_S,
        command_timeout=answer_timeout_s,
        server_settings=_SETTINGS,
        **options,
    )


class PostgresConnections:
    """Connection pool. A broken connection is never reused."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._turns = asyncio.Semaphore(_CONNECTIONS_MAX)
        self._idle: list[Any] = []
        self._is_closed = False
        self.in_use = 0
        self.finished_transactions = 0

    async def begun(self, begin: str | None) -> Any:
        """Returns a connection, after running `begin` on it if given. Raises OVERLOADED if none
        becomes free in time.
        """
        await self._turn()
        self.in_use += 1
        try:
            with translate_database_errors:
                return await self._begun(begin)
        except BaseException:
            self._leave()
            raise

    async def _turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()
            return
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise ServiceError("OVERLOADED") from None

    async def _begun(self, begin: str | None) -> Any:
        while self._idle:
            # The last used connection is taken first, so that surplus connections stay idle.
            connection = self._idle.pop()
            if connection.is_closed():
                continue
            if begin is None:
                return connection
            try:
                await connection.execute(begin)
            except BaseException as error:
                self._terminate(connection, error)
                if not _is_lost(error):
                    raise
            else:
                return connection
        connection = await self._new()
        try:
            if begin is not None:
                await connection.execute(begin)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def another(self, lost: Any) -> Any:
        """Replaces a lost connection by a new one. Other idle connections can be lost too."""
        lost.terminate()
        return await self._new()

    async def _new(self) -> Any:
        return await connect(
            self._url,
            ANSWER_TIMEOUT_S,
            record_class=Row,
            statement_cache_size=_PREPARED_STATEMENTS_MAX,
            max_cached_statement_lifetime=0,
        )

    def _leave(self) -> None:
        self.in_use -= 1
        self._turns.release()

    def give_back(self, connection: Any) -> None:
        if self._is_closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self.finished_transactions += 1
            self._idle.append(connection)
        self._leave()

    async def give_up(self, connection: Any, error: BaseException) -> None:
        await await_despite_cancel(self._give_up(connection, error))

    async def _give_up(self, connection: Any, error: BaseException) -> None:
        try:
            if _is_hung(error) or connection.is_closed():
                self._terminate(connection, error)
            elif connection.is_in_transaction():
                await connection.execute("ROLLBACK", timeout=_ROLL_BACK_S)
        except Exception:  # noqa: BLE001 — the server rolls back after any error
            connection.terminate()
        finally:
            self.give_back(connection)

    def _terminate(self, connection: Any, error: BaseException) -> None:
        """Closes the connection. After a timeout, also closes idle connections, because each would
        time out too.
        """
        connection.terminate()
        while _is_hung(error) and self._idle:
            self._idle.pop().terminate()

    async def close(self) -> None:
        """Closes the pool. A connection in use is closed when its transaction ends."""
        self._is_closed = True
        while self._idle:
            with contextlib.suppress(Exception):
                await self._idle.pop().close(timeout=_CLOSE_S)


def _is_lost(error: BaseException) -> bool:
    return isinstance(
        error, OSError | asyncpg.PostgresError | asyncpg.InterfaceError
    ) and not isinstance(error, TimeoutError)


def _is_hung(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)


# Errors with a remedy -----------------------------------------------------------------------------


_NO_DATABASE: Final = "3D000"
_WHO: Final = "correct user and password in database_url, or whom the server lets in (pg_hba.conf)"
_TABLES: Final = (
    "let the user of database_url make tables there "
    "(as owner of the database, or GRANT CREATE ON SCHEMA public)"
)
_REMEDIES: Final = {"28000": _WHO, "28P01": _WHO, "42501": _TABLES}
"""SQLSTATEs invalid_authorization_specification, invalid_password and insufficient_privilege."""


@contextlib.contextmanager
def report_unusable_server(url: str) -> Iterator[None]:
    """Raises DatabaseUnusable for server errors that need an operator."""
    try:
        yield
    except Exception as error:
        remedy = _remedy(sqlstate(error), url)
        if remedy is None:
            raise
        said = str(getattr(error, "orig", error)).split("\n")[0]
        raise DatabaseUnusable(f"the PostgreSQL server says: {said}: {remedy}") from error


def _remedy(state: str, url: str) -> str | None:
    if state != _NO_DATABASE:
        return _REMEDIES.get(state)
    command = shlex.join(["createdb", *filter(None, [make_url(url).database])])
    return f"make it ({command}), or correct database_url"


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
        self._connections = PostgresConnections(url)
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
        connection = await self._connections.begun(begin)
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
        self._connections.give_back(tx.connection)

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        # Migrations need an SQLAlchemy connection. Most starts only check the revision.
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: connect(self._url, None),
            poolclass=NullPool,
            hide_parameters=True,
        )
        with translate_database_errors, report_unusable_server(self._url):
            connection = await engine.connect()
        try:
            with translate_database_errors, report_unusable_server(self._url):
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
                    f"the PostgreSQL server has {name} off, a crash would lose what was answered: "
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
            said = await self.connection.execute("COMMIT")
        finally:
            self.run_commit_callbacks()
        if said != "COMMIT":
            # PostgreSQL answers a COMMIT with ROLLBACK after a failed statement.
            raise RuntimeError(f"a statement had failed, nothing was committed: {said}")

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        compiled = self._statements.compiled(statement, values)
        with translate_database_errors:
            return await self._fetch(compiled.text, compiled.argument_values(values))

    async def _fetch(self, text: str, values: Sequence[Any]) -> Sequence[Record]:
        rows: Sequence[Record] = await self.connection.fetch(text, *values)
        return rows

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        rows = await self.all(statement, values)
        return rows[0] if rows else None

    async def run(self, statement: Executable, values: Values = None) -> int:
        compiled = self._statements.compiled(statement, values)
        if isinstance(values, list | tuple):
            with translate_database_errors:
                await self.connection.executemany(
                    compiled.text, compiled.argument_value_lists(values)
                )
            return len(values)
        with translate_database_errors:
            said: str = await self.connection.execute(
                compiled.text, *compiled.argument_values(values)
            )
        # Examples of the command tag: INSERT 0 1, UPDATE 3, CREATE TABLE.
        count = said.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0


class _AutocommitReads(_PostgresTransaction):
    """Reading statements, each in its own transaction.

    If a statement's connection is lost, the statement is retried once on a new connection, but not
    after a timeout.
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
            if isinstance(error, TimeoutError) or not self.connection.is_closed():
                raise
        self.connection = await self._connections.another(self.connection)
        return await super()._fetch(text, values)
