"""Periodic health check of the database by a read and a write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage import service_state
from pyservice.storage.database import Database, DatabaseUnusable
from pyservice.storage.database_errors import DatabaseReadOnly

_POLL_INTERVAL_S: Final = 1.0
_WRITE_INTERVAL_S: Final = 10.0
"""Interval of write checks in seconds. Each write costs a sync."""
_TURN_TIMEOUT_S: Final = 2.0
"""Timeout of a check while no other operation completes. A busy database completes some operations in this time."""

_log = get_logger("control")


class DatabaseHealthCheck:
    def __init__(
        self,
        database: Database,
        renew: Callable[[], Awaitable[None]],
        poll_s: float = _POLL_INTERVAL_S,
        write_s: float = _WRITE_INTERVAL_S,
    ) -> None:
        """`renew` writes to the database."""
        self._database = database
        self._renew = renew
        self._poll_s = poll_s
        self._write_s = write_s
        self._next_write_s = 0.0
        self.job = RetryingJob(
            "database",
            "database check failed",
            TimeoutError,
            DatabaseUnusable,
            pauses_s=(poll_s, poll_s),
        )
        self.problem = ""

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(self._poll_s)

    async def check(self) -> None:
        """Checks a read and, when due, a write of the database. Each takes at most 2 s, unless
        other operations keep the database busy.
        """
        loop, database = asyncio.get_running_loop(), self._database
        problem = await self._problem(
            self._read, lambda: database.finished_reads, "does not answer: see the log"
        )
        if not problem and (self.problem or loop.time() >= self._next_write_s):
            problem = await self._problem(
                self._renew,
                lambda: database.finished_writes,
                "accepts reads but no changes: see the log",
            )
            self._next_write_s = loop.time() + self._write_s
        self._report(problem)

    def _report(self, problem: str) -> None:
        before, self.problem = self.problem, problem
        if problem == before:
            return
        if problem:
            _log.warning("database unhealthy", problem=problem)
        else:
            _log.info("database healthy again")

    async def _problem(
        self, step: Callable[[], Awaitable[None]], finished: Callable[[], int], otherwise: str
    ) -> str:
        error = await self.job.attempt(lambda: _with_progress(step, finished))
        if error is None:
            return ""
        if isinstance(error, DatabaseUnusable):
            return str(error)
        match error:
            case ServiceError(code="OVERLOADED"):
                return ""
            case ServiceError(code="STORAGE_FULL"):
                otherwise = "has a full disk: it accepts reads but no changes"
            case DatabaseReadOnly():
                otherwise = "is read-only: promote it, or correct database_url"
        return f"{self._database.location} {otherwise}"

    async def _read(self) -> None:
        async with self._database.read() as tx:
            await service_state.get_int(tx, service_state.SOURCE_EPOCH)


async def _with_progress(step: Callable[[], Awaitable[None]], finished: Callable[[], int]) -> None:
    """Awaits `step`. Raises TimeoutError if `finished`, a count of database operations, does not
    rise for 2 s.
    """
    working = asyncio.ensure_future(step())
    try:
        last_count = None
        while not working.done():
            if last_count == (now := finished()):
                raise TimeoutError
            last_count = now
            await asyncio.wait({working}, timeout=_TURN_TIMEOUT_S)
        await working
    finally:
        working.cancel()
        await asyncio.wait({working})
        # Mark the error as retrieved.
        _ = working.cancelled() or working.exception()
