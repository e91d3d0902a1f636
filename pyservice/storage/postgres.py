"""Implementation of `Database` for a PostgreSQL server, through asyncpg."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import (
    ARRAY,
    BinaryExpression,
    BindParameter,
    Connection,
    Executable,
    NullPool,
)
from sqlalchemy.dialects.postgresql.asyncpg import PGCompiler_asyncpg, PGDialect_asyncpg
from sqlalchemy.exc import SQLAlchemyError

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.errors import ServiceError
from pyservice.settings.database_url import database_location
from pyservice.storage.compiled_statements import ListParameterCompiler, StatementCache
from pyservice.storage.database import (
    CRASH_MARK_TABLE,
    OWNER_LOCK,
    CommitCallbacks,
    Record,
    Result,
    Transaction,
    Values,
)
from pyservice.storage.database_errors import (
    DatabaseErrorTranslation,
    DatabaseUnusable,
    database_unavailable,
    sqlstate,
    translate_database_errors,
)
from pyservice.storage.postgres_remedies import report_unusable_server

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

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
_LIMIT_STATEMENTS: Final = f"SET statement_timeout = '{ANSWER_TIMEOUT_S + 2:.0f}s'"
"""A server does not notice that the client of a waiting statement is gone. The limit is above that of the client,
so that the client reports the timeout.
"""
_CONNECTIONS_MAX: Final = 16
_PREPARED_STATEMENTS_MAX: Final = 400
_ROLL_BACK_S: Final = 2.0
_CLOSE_S: Final = 2.0
_APPLICATION: Final = "pyservice"
_SETTINGS: Final = {"application_name": _APPLICATION, "timezone": "UTC"}
_SET_DURABLE: Final = (
    # An operator may ask for more durability, but not for less.
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, "
)
_DURABLE_TRANSACTION: Final = f"{_SET_DURABLE} true)"
_DURABLE_SESSION: Final = f"{_SET_DURABLE} false)"


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


async def _limit_statements(connection: Any) -> None:
    await connection.execute(_LIMIT_STATEMENTS)


def _address(url: str) -> str:
    return f"postgresql://{url.partition('://')[2]}"


class PostgresConnections:
    def __init__(self, url: str, translate_errors: DatabaseErrorTranslation) -> None:
        self._translate_errors = translate_errors
        self.on_loss: Callable[[], NoReturn] = _unowned
        self._pool = asyncpg.create_pool(
            _address(url),
            min_size=0,
            max_size=_CONNECTIONS_MAX,
            connection_class=_Connection,
            init=_limit_statements,
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
        """Returns a connection on which the statements `begin` have run, if `begin` is set.

        Calls `on_loss` if the last of them finds no row. Raises OVERLOADED if no connection becomes
        free in time.
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
                command_tag = await connection.execute(begin)
            except BaseException as error:
                await self._discard(connection)
                if is_retry or not _is_lost(error):
                    if isinstance(error, asyncpg.FeatureNotSupportedError):
                        # A standby answers so to READ WRITE.
                        raise asyncpg.ReadOnlySQLTransactionError(str(error)) from error
                    raise
                is_retry = True
            else:
                if command_tag == "SELECT 0":
                    self.on_loss()
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
    connection = await asyncpg.connect(
        _address(url), timeout=ANSWER_TIMEOUT_S, server_settings=_SETTINGS
    )
    try:
        await connection.execute(_DURABLE_SESSION, timeout=ANSWER_TIMEOUT_S)
    except BaseException:
        connection.terminate()
        raise
    return connection


def _unowned() -> NoReturn:
    raise AssertionError("only a transaction of an owner reads its row")


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


# Database -----------------------------------------------------------------------------------------


_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""Start of a transaction with one snapshot. At the default level, each statement would see another
state.
"""
_WRITE: Final = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_DURABLE_TRANSACTION}"
_NAME_TRANSACTION: Final = (
    f"SELECT set_config('application_name', '{_APPLICATION} ' || pg_current_xact_id()::text, true)"
)
"""The server reports this setting to its client at once, and without another round trip."""
_OUTCOME: Final = "SELECT pg_xact_status($1::text::xid8)"
_FIND_MARK: Final = f"SELECT mark FROM {CRASH_MARK_TABLE} WHERE mark = $1"
_REMOVE_MARKS: Final = f"DELETE FROM {CRASH_MARK_TABLE}"
_ADD_MARK: Final = f"INSERT INTO {CRASH_MARK_TABLE} (mark) VALUES ($1)"
_END_SESSION: Final = "SELECT pg_terminate_backend($1)"
_OUTCOME_PAUSE_S: Final = 0.1


_REFUSED_COMMITS: Final = ("23", "40")
"""Classes of SQLSTATEs that a COMMIT fails with: a violated constraint, and a rollback."""


class CommitUnknown(Exception):
    """The connection broke during a commit, or the server warned that a standby may not have it."""


@contextlib.contextmanager
def _noted_warnings(connection: Any) -> Iterator[list[Any]]:
    """Collects the messages that the server sends with its answers, such as warnings of a COMMIT."""
    warnings: list[Any] = []

    def note(_connection: Any, message: Any) -> None:
        warnings.append(message)

    connection.add_log_listener(note)
    try:
        yield warnings
    finally:
        if not is_closed(connection):
            connection.remove_log_listener(note)


async def _commit_on_standby(connection: AsyncConnection) -> None:
    """Raises CONTROL_PLANE_UNAVAILABLE if a synchronous standby may lack the commit."""
    of_driver = (await connection.get_raw_connection()).driver_connection
    with _noted_warnings(of_driver) as warnings:
        await connection.commit()
    if warnings:
        raise ServiceError(
            "CONTROL_PLANE_UNAVAILABLE",
            f"The synchronous standby may lack the change ({warnings[0].message}). Repeat it when the standby is back.",
        )


class PostgresDatabase:
    name = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = url
        self.location = database_location(url)
        self._translate_errors = DatabaseErrorTranslation(self.location)
        self._connections = PostgresConnections(url, self._translate_errors)
        self._statements = postgres_statements()
        self._write = _WRITE
        self._owner_check: tuple[str, str] | None = None
        self._newest_commit = 0
        """Newest transaction id of a commit. A database that assigns it again is in an earlier state.

        Only of commits with changes: a server answers others before they are on disk, and assigns
        their ids again after a crash.
        """
        self._claim_id = ""
        self._crash_mark = ""
        """Content of `CRASH_MARK_TABLE` since the last crash of the server that was noticed."""

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
        return self._transaction(self._write)

    def fence(self, claim_id: str, position: int, on_loss: Callable[[], NoReturn]) -> None:
        """The check is a part of the transaction's first round trip."""
        # The second statement has a snapshot of its own, which follows the lock.
        lock = f"SELECT pg_advisory_xact_lock_shared({OWNER_LOCK})"
        read_claim = (
            f"SELECT 1 FROM service_owner WHERE claim_id = '{claim_id}' AND position >= {position}"
        )
        self._owner_check = lock, read_claim
        if self._claim_id != claim_id:
            self._claim_id = self._crash_mark = claim_id
        self._write = "; ".join((_WRITE, _NAME_TRANSACTION, lock, read_claim))
        self._connections.on_loss = on_loss

    @contextlib.asynccontextmanager
    async def _transaction(self, begin: str | None) -> AsyncIterator[_PostgresTransaction]:
        newest_commit, crash_mark = self._newest_commit, self._crash_mark
        connection = await self._connections.acquire(begin)
        if begin is None:
            tx: _PostgresTransaction = _AutocommitReads(
                connection, self._statements, self._connections
            )
        else:
            tx = _PostgresTransaction(connection, self._statements)
        try:
            if tx.transaction_id and int(tx.transaction_id) <= newest_commit:
                self._connections.on_loss()
            yield tx
            if begin is not None:
                with translate_database_errors:
                    await await_despite_cancel(self._commit(tx, crash_mark))
        except BaseException as error:
            await self._connections.give_up(tx.connection, error)
            raise
        await self._connections.give_back(tx.connection)

    async def _commit(self, tx: _PostgresTransaction, crash_mark: str) -> None:
        try:
            await tx.commit()
        except CommitUnknown as unknown:
            if not tx.transaction_id:
                raise (unknown.__cause__ or unknown) from None
            if not await self._has_committed(tx, crash_mark):
                raise database_unavailable() from unknown
        else:
            if tx.has_changed:
                self._newest_commit = max(self._newest_commit, int(tx.transaction_id or 0))
        finally:
            tx.run_commit_callbacks()

    async def _has_committed(self, tx: _PostgresTransaction, crash_mark: str) -> bool:
        """Returns whether a transaction with an unknown outcome surely took effect. Raises
        TimeoutError after 10 s.

        A later commit proves that this service still owns its database. It also proves that a
        synchronous standby has the earlier commit.
        """
        if not is_closed(tx.connection):
            tx.connection.terminate()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while True:
                with contextlib.suppress(ServiceError):
                    outcome = await self._outcome(tx, crash_mark)
                    if outcome != "in progress":
                        return outcome == "committed"
                await asyncio.sleep(_OUTCOME_PAUSE_S)

    async def _outcome(self, unknown: _PostgresTransaction, crash_mark: str) -> str:
        new_mark = ""
        async with self._transaction(self._write) as tx:
            connection = tx.connection
            await connection.execute("UPDATE service_owner SET renewed_ms = renewed_ms")
            if await connection.fetchval(_FIND_MARK, crash_mark) is None:
                # A crashed server assigns the ids of lost transactions again.
                outcome, new_mark = "unknown", str(uuid4())
                await connection.execute(_REMOVE_MARKS)
                await connection.execute(_ADD_MARK, new_mark)
            else:
                outcome = str(await connection.fetchval(_OUTCOME, unknown.transaction_id))
            if outcome == "in progress":
                # The session waits for the standby, or does not know yet that its client is gone.
                await connection.fetchval(_END_SESSION, unknown.session)
        self._crash_mark = new_mark or self._crash_mark
        return outcome

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
                await await_despite_cancel(_commit_on_standby(connection))
                return result
        finally:
            with contextlib.suppress(SQLAlchemyError, OSError):
                await await_despite_cancel(connection.close())

    def check(self, connection: Connection) -> None:
        if self._owner_check is not None:
            lock, read_claim = self._owner_check
            connection.exec_driver_sql(lock)
            if connection.exec_driver_sql(read_claim).first() is None:
                self._connections.on_loss()
        if connection.exec_driver_sql("SHOW fsync").scalar() != "on":
            raise DatabaseUnusable(
                "the PostgreSQL server has fsync off, a crash would lose confirmed changes: "
                "set fsync = on in its configuration"
            )

    async def close(self) -> None:
        await self._connections.close()


class _PostgresTransaction(CommitCallbacks):
    def __init__(self, connection: Any, statements: StatementCache) -> None:
        super().__init__()
        self.connection = connection
        self._statements = statements
        # The pool forgets a connection that breaks.
        self.session: int = connection.get_server_pid()
        name: str = connection.get_settings().application_name
        self.transaction_id = name.partition(" ")[2]
        """Id in the database. Empty for a transaction without an owner."""
        self.has_changed = False
        """Whether a single statement has surely changed a row."""

    async def commit(self) -> None:
        """Raises CommitUnknown if the connection breaks, or if a standby may not have the commit."""
        try:
            with _noted_warnings(self.connection) as warnings:
                command_tag = await self.connection.execute("COMMIT")
        except Exception as error:
            if sqlstate(error)[:2] in _REFUSED_COMMITS:
                raise
            raise CommitUnknown(str(error)) from error
        if command_tag != "COMMIT":
            # PostgreSQL answers a COMMIT with ROLLBACK after a failed statement.
            raise RuntimeError(f"a statement failed, so nothing was committed: {command_tag}")
        if warnings:
            raise CommitUnknown(str(warnings[0]))

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        compiled = self._statements.compile(statement, values)
        with translate_database_errors:
            rows = await self._fetch(compiled.text, compiled.argument_values(values))
        self.has_changed |= statement.is_dml and bool(rows)
        return rows

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
        last = command_tag.rpartition(" ")[2]
        count = int(last) if last.isdigit() else 0
        self.has_changed |= statement.is_dml and count > 0
        return count


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
