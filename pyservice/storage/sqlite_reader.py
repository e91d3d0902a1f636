"""Reader of the SQLite records in a process that does not change them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Executable

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.storage.compiled_statements import StatementCache
from pyservice.storage.database import Record, Transaction, Values
from pyservice.storage.sqlite import (
    READ,
    SqliteConnections,
    SqliteTransaction,
    connect_to_read,
    sqlite_statements,
)

_Result = TypeVar("_Result")


class SqliteReader:
    """Reads in a thread, so that a slow disk or a large result does not block the event loop."""

    def __init__(self, path: Path) -> None:
        self._connections = SqliteConnections(path, connect_to_read)
        self._statements = sqlite_statements()
        # The connections and statements belong to this one thread.
        self._thread = ThreadPoolExecutor(1, "records-read")

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        connection = await _run(self._thread, lambda: self._connections.acquire(READ))
        try:
            yield _ThreadTransaction(connection, self._statements, self._thread)
        finally:
            await _run(self._thread, lambda: self._connections.give_back(connection))

    async def close(self) -> None:
        await _run(self._thread, self._connections.close)
        self._thread.shutdown()


async def _run(thread: Executor, act: Callable[[], _Result]) -> _Result:
    # A cancelled caller must not leave a connection behind that the thread still uses.
    loop = asyncio.get_running_loop()
    return await await_despite_cancel(loop.run_in_executor(thread, act))


class _ThreadTransaction(SqliteTransaction):
    def __init__(
        self, connection: sqlite3.Connection, statements: StatementCache, thread: Executor
    ) -> None:
        super().__init__(connection, statements, is_begun=True)
        self._thread = thread

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        return await _run(self._thread, lambda: self.fetch_all(statement, values))

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        return await _run(self._thread, lambda: self.fetch_first(statement, values))
