"""Retention of destroyed dynamic servers: a background job removes old and surplus records.

A server stays as long as its end is not reported, or it has a port lease or quarantined ports. The
run folder is removed first, so that no log stays without a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn

from pyservice.control.deletions import RemoveRun
from pyservice.control.lobby_records import LOBBY_RETENTION_MS
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import Unreachable
from pyservice.storage import servers
from pyservice.storage.database import DELETION_BATCH_ROWS, Database
from pyservice.storage.list_pages import PageBounds
from pyservice.timestamps import now_ms

DESTROYED_SERVERS_MAX: Final = 1_000
"""Maximum of kept destroyed servers of a namespace."""

_NAMESPACES_PER_QUERY: Final = 20
"""SQLite needs a few milliseconds for them on the event loop."""

_INTERVAL_S: Final = 60.0
_RETRIES_S: Final = (1.0, 60.0)


class ServerRetention:
    def __init__(
        self,
        database: Database,
        leased_servers: Callable[[], Awaitable[Sequence[str]]],
        remove_run: RemoveRun,
        clock_ms: Callable[[], int] = now_ms,
        destroyed_max: int = DESTROYED_SERVERS_MAX,
    ) -> None:
        """`leased_servers` returns the servers with a port lease, or raises Unreachable."""
        self._database = database
        self._leased_servers = leased_servers
        self._remove_run = remove_run
        self._now_ms = clock_ms
        self._destroyed_max = destroyed_max
        self.job = RetryingJob(
            "server_retention",
            "destroyed servers not removed",
            Unreachable,
            pauses_s=_RETRIES_S,
        )

    async def run(self) -> NoReturn:
        await self.job.repeat_forever(self.remove_expired, every_s=_INTERVAL_S)

    async def remove_expired(self) -> None:
        """Removes servers that were destroyed more than 7 days ago, and surplus ones of each
        namespace, oldest first.

        Raises Unreachable.
        """
        expired_ms = self._now_ms() - LOBBY_RETENTION_MS - 1
        cursor: str | None = None
        while True:
            async with self._database.read() as tx:
                page = await servers.ends_of_namespaces(
                    tx, self._destroyed_max, PageBounds(_NAMESPACES_PER_QUERY, cursor)
                )
            for row in page.rows:
                last_ms = max(expired_ms, row.surplus_ms or 0)
                if row.first_ms is not None and row.first_ms <= last_ms:
                    await self._remove_until(row.namespace_id, last_ms)
            cursor = page.cursor
            if cursor is None:
                return
            # Other tasks run between SQLite statements only if this task yields.
            await asyncio.sleep(0)

    async def _remove_until(self, namespace_id: str, last_ms: int) -> None:
        cursor: str | None = None
        while True:
            async with self._database.read() as tx:
                page = await servers.destroyed_page(
                    tx, namespace_id, last_ms, PageBounds(DELETION_BATCH_ROWS, cursor)
                )
            # Leases are read after the records, because a lease begins before the end of its server.
            leased = set(await self._leased_servers())
            unused = [row for row in page.rows if row.server_id not in leased]
            removable = [row for row in unused if await self._has_no_run(row.server_id)]
            await servers.remove_destroyed(self._database, removable)
            cursor = page.cursor
            if cursor is None:
                return

    async def _has_no_run(self, server_id: str) -> bool:
        """Removes the run folder of a server. Returns False if it must stay or the removal failed."""
        try:
            return await self._remove_run(server_id)
        except OSError as error:
            # The other servers do not wait for an unreadable folder.
            self.job.record_failure(error, id=server_id)
            return False
