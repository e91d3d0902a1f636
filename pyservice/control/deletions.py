"""Deletion in two phases: a transaction marks a record, a background job removes what it leaves.

From the commit on, no request finds the record. The job goes on after a crash, and after an outage
of the data plane or of the object store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from pyservice.control.retrying_job import RetryingJob
from pyservice.control.uploads import UploadBusy, UploadLifecycle
from pyservice.errors import ServiceError
from pyservice.storage import deletions
from pyservice.storage.database import Database

_INTERVAL_S: Final = 3_600.0
_RETRIES_S: Final = (1.0, 60.0)
_BATCH_ROWS: Final = 100
_NAMED_IDS: Final = 5


class _Incomplete(Exception):
    pass


def require_unused(detail: str, **users: Sequence[str]) -> None:
    """Raises IN_USE if a record has users. `users` has the ids of each kind, such as `version`.

    The metadata has the number of users of each kind, and a few of their ids.
    """
    metadata = {}
    for kind, ids in users.items():
        if ids:
            metadata[f"{kind}_count"] = str(len(ids))
            metadata[f"{kind}_ids"] = ",".join(ids[:_NAMED_IDS])
    if metadata:
        raise ServiceError("IN_USE", detail, metadata=metadata)


class Deletions:
    """Background job that removes the contents of deleted records until nothing is left."""

    def __init__(self, database: Database, uploading: UploadLifecycle) -> None:
        self._database = database
        self._uploading = uploading
        self._due = asyncio.Event()
        self.job = RetryingJob(
            "deletions",
            "deleted records not removed",
            UploadBusy,
            _Incomplete,
            pauses_s=_RETRIES_S,
            is_worth_a_warning=True,
            sleep=self._sleep_until_due,
        )

    def start_removal(self) -> None:
        """Wakes the job. Call this method after the commit that marked a record."""
        self._due.set()

    async def run(self) -> None:
        await self.job.repeat_forever(self._remove_all, every_s=_INTERVAL_S)

    async def _sleep_until_due(self, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._due.wait()

    async def _remove_all(self) -> None:
        self._due.clear()
        remaining = await self._remove_uploads()
        if remaining:
            raise _Incomplete(f"{remaining} deleted records remain and are retried")

    async def _remove_uploads(self) -> int:
        after, remaining = "", 0
        while True:
            async with self._database.read() as tx:
                upload_ids = await deletions.abandoned_uploads(tx, after, _BATCH_ROWS)
            for upload_id in upload_ids:
                removal = partial(self._uploading.remove, upload_id)
                remaining += not await self._try(removal, upload_id=upload_id)
            if len(upload_ids) < _BATCH_ROWS:
                return remaining
            after = upload_ids[-1]

    async def _try(self, removal: Callable[[], Awaitable[object]], **log_fields: str) -> bool:
        """Runs one removal. Returns False if it failed, so that others do not wait for it."""
        return await self.job.attempt(removal, **log_fields) is None
