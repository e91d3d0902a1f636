"""Changes of a SQLite file that are synced together: one transaction, each change in a savepoint of its own.

Owns what becomes of the others when one is taken back. Whose turn it is, and when the group ends, is the database's.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Executor


class GroupLost(Exception):
    """SQLite took the whole transaction back (no space, an error of the disk): nothing of the group is kept."""


class Group:
    """Changes until their commit. `committed` is done when they are durable; its error is everybody's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """`connection` has begun a transaction."""
        self.connection = connection
        self.committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Members that went away do not ask what became of it.
        self.committed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.work: asyncio.Task[None] | None = None
        """Ends the group."""

    @contextlib.contextmanager
    def member(self) -> Iterator[None]:
        """One change: all of it is in the group, or nothing when it raises."""
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
        """Whether SQLite took it back before its end."""
        return not self.connection.in_transaction

    def _require_open(self) -> None:
        if self.is_lost:
            raise GroupLost("the transaction was taken back")

    async def finish(self, committer: Executor) -> bool:
        """Commits, in a thread because it syncs, and tells the members; whether it was committed."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(committer, self._finish)
        except Exception as error:  # noqa: BLE001 — it is told to everybody who waits for it
            self.committed.set_exception(error)
            return False
        self.committed.set_result(None)
        return True

    def _finish(self) -> None:
        self._require_open()
        self.connection.execute("COMMIT")
