"""Whether the database reads and takes changes, in words for whoever runs the service.

Asks as long as `run` runs, whether or not anybody else does: a database that nobody uses may be away as well. Who is
answered what meanwhile is the callers' matter.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pyservice.control.changes import now_ms
from pyservice.control.going_on import GoingOn
from pyservice.errors import ServiceError
from pyservice.storage import numbers
from pyservice.storage.database import Database, DatabaseUnusable

_LOOK_S: Final = 1.0
_WRITE_S: Final = 10.0
"""It is written to so often as long as it is well: each time is a sync."""
_PATIENCE_S: Final = 2.0


class DatabaseWatch:
    """Looks at one database."""

    def __init__(
        self, database: Database, look_s: float = _LOOK_S, write_s: float = _WRITE_S
    ) -> None:
        """Reads every `look_s`, writes every `write_s`, or with each look while something is wrong."""
        self._database = database
        self._look_s = look_s
        self._write_s = write_s
        self._next_write_s = 0.0
        self.going = GoingOn(
            "database",
            "database looked at",
            TimeoutError,
            DatabaseUnusable,
            pauses_s=(look_s, look_s),
        )
        self.problem = ""
        """Empty: nothing is wrong."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        """Once."""
        error = await self.going.attempt(self._read)
        if error is not None:
            self.problem = _said(error, "does not answer")
            return
        loop = asyncio.get_running_loop()
        if not self.problem and loop.time() < self._next_write_s:
            return
        error = await self.going.attempt(self._write)
        self._next_write_s = loop.time() + self._write_s
        self.problem = "" if error is None else _said(error, "is read and takes no changes")

    async def _read(self) -> None:
        async with asyncio.timeout(_PATIENCE_S), self._database.read() as tx:
            await numbers.get(tx, numbers.SOURCE_EPOCH)

    async def _write(self) -> None:
        async with asyncio.timeout(_PATIENCE_S), self._database.write() as tx:
            await numbers.put(tx, numbers.WRITTEN_MS, now_ms())


def _said(error: Exception, what: str) -> str:
    if isinstance(error, DatabaseUnusable):
        return str(error)
    if isinstance(error, ServiceError) and error.code == "STORAGE_FULL":
        return "its disk is full: it is read and takes no changes"
    return f"{what}: see the log"
