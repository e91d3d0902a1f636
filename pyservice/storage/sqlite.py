"""The records in one SQLite file. Statements run where they are called: one takes tens of microseconds, handing it to a
thread and back takes hundreds. Only what syncs (commit) goes to a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Executable, create_engine, event

from pyservice.finishing import finish
from pyservice.observability.logging import get_logger
from pyservice.storage.failures import DatabaseUnusable, away, told
from pyservice.storage.group_commit import Group, GroupLost
from pyservice.storage.transactions import (
    Afterwards,
    Record,
    Result,
    Transaction,
    Values,
)

_POOL_SIZE: Final = 16
_LOCKED_TIMEOUT_S: Final = 10.0
"""How long it waits for another process that writes."""
_log = get_logger("storage")


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
            await finish(group.finish(self._committer))

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        def begun() -> Result:
            with self._connect("IMMEDIATE") as connection, connection.begin():
                return work(connection)

        async with self._one_writer:
            await self._commit_open()
            with told:
                return await finish(asyncio.to_thread(begun))

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
        connect_args={"check_same_thread": False, "timeout": _LOCKED_TIMEOUT_S},
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


class _SqliteTransaction(Afterwards):
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
