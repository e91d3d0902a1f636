"""Deletion in two phases: a transaction marks a record, a background job removes what it leaves.

From the commit on, no request finds the record. The job goes on after a crash, and after an outage
of the data plane or of the object store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from pyservice.control.feeder import CONFIRM_TIMEOUT_S, DataPlaneUnavailable
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import facts_pb2, feed_pb2
from pyservice.storage import deletions, service_state
from pyservice.storage.database import Database, Record, Transaction

_INTERVAL_S: Final = 3_600.0
_RETRIES_S: Final = (1.0, 60.0)
_BATCH_ROWS: Final = 100
_NAMED_IDS: Final = 5
_FACTS_MAX: Final = 1_000
"""Unread facts that a removal looks through. It is repeated if there are more."""


class _Incomplete(Exception):
    pass


class UploadBusy(Exception):
    """A check of the upload is running, so that its objects cannot be removed yet."""


class Uploads(Protocol):
    """Each method raises UploadBusy."""

    async def remove(self, upload_id: str) -> None: ...
    async def remove_objects(self, upload_id: str) -> None: ...
    async def refuse_puts(self, upload_id: str) -> None: ...


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


async def require_no_players(
    tx: Transaction, namespace_ids: Sequence[str], *, is_forced: bool
) -> None:
    """Raises IN_USE if a namespace has live lobbies or servers and the deletion is not forced."""
    if is_forced:
        return
    live: dict[str, list[str]] = {"lobby": [], "server": []}
    for namespace_id in namespace_ids:
        live["lobby"] += await deletions.live_lobbies(tx, namespace_id)
        live["server"] += await deletions.live_servers(tx, namespace_id)
    require_unused(
        "Lobbies or servers are live. End them first, or set `force` to end them with the deletion.",
        **live,
    )


class RemovalClient(Protocol):
    async def read_facts(self, request: facts_pb2.ReadRequest) -> facts_pb2.ReadResponse: ...
    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse: ...


RemoveRun = Callable[[str], Awaitable[bool]]
"""Removes the folder of an ended run. Returns False if the run or its ports are still in use."""


class Deletions:
    """Background job that removes the remains of deleted records until nothing is left."""

    def __init__(
        self,
        database: Database,
        uploading: Uploads,
        client: RemovalClient,
        source_epoch: int,
        remove_run: RemoveRun,
    ) -> None:
        self._database = database
        self._uploading = uploading
        self._client = client
        self._source_epoch = source_epoch
        self._remove_run = remove_run
        self._due = asyncio.Event()
        self.job = RetryingJob(
            "deletions",
            "deleted records not removed",
            DataPlaneUnavailable,
            UploadBusy,
            _Incomplete,
            pauses_s=_RETRIES_S,
            sleep=self._sleep_until_due,
        )

    def start_removal(self) -> None:
        """Wakes the job. Call this method after the commit of a deletion."""
        self._due.set()

    async def refuse_puts(self, upload_ids: Iterable[str]) -> None:
        """Refuses PUTs to deleted uploads before their deletion is answered.

        If this fails or takes more than a second, the job does it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                for upload_id in upload_ids:
                    refusal = partial(self._uploading.refuse_puts, upload_id)
                    await self._try(refusal, upload_id=upload_id)

    async def run(self) -> None:
        await self.job.repeat_forever(self._remove_all, every_s=_INTERVAL_S)

    async def confirm(self, namespace_ids: Collection[str]) -> None:
        """Waits until the data plane has removed deleted namespaces.

        Raises CONTROL_PLANE_UNAVAILABLE after a second. The job then continues.
        """
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                async with self._database.read() as tx:
                    rows = await deletions.removals_of(tx, namespace_ids)
                await asyncio.gather(*(self._remove_from_data_plane(row) for row in rows))
        except (DataPlaneUnavailable, ServiceError, TimeoutError):
            raise ServiceError(
                "CONTROL_PLANE_UNAVAILABLE",
                "The deletion is stored and will take effect; the data plane has not confirmed it "
                "yet. Repeat the request with the same Idempotency-Key to wait for it.",
            ) from None

    async def _sleep_until_due(self, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._due.wait()

    async def _remove_all(self) -> None:
        self._due.clear()
        remaining = await self._remove_uploads() + await self._remove_remains()
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

    async def _remove_remains(self) -> int:
        after, remaining = "", 0
        while True:
            async with self._database.read() as tx:
                rows = await deletions.removals_after(tx, after, _BATCH_ROWS)
            for row in rows:
                remaining += not await self._try(partial(self._remove, row), id=row.subject_id)
            if len(rows) < _BATCH_ROWS:
                return remaining
            after = rows[-1].subject_id

    async def _try(self, removal: Callable[[], Awaitable[object]], **log_fields: str) -> bool:
        """Runs one removal. Returns False if it failed, so that others do not wait for it."""
        return await self.job.attempt(removal, **log_fields) is None

    async def _remove(self, row: Record) -> None:
        match row.kind:
            case "namespace":
                await self._remove_from_data_plane(row)
                await self._require_facts_read(row.subject_id)
                await self._remove_lobbies(row.subject_id)
            case "upload":
                await self._uploading.remove_objects(row.subject_id)
            case _:
                await self._remove_run_folder(row.subject_id)
        async with self._database.write() as tx:
            await deletions.finish_removal(tx, row.subject_id)

    async def _remove_from_data_plane(self, row: Record) -> None:
        """Removes a namespace from the data plane, which ends its lobbies. Can be repeated."""
        epoch, revision = self._source_epoch, row.revision
        while True:
            request = feed_pb2.RemoveRequest(
                namespace_id=row.subject_id, source_epoch=epoch, revision=revision
            )
            response = await self._client.remove(request)
            if not response.HasField("stale"):
                return
            # After the restore of a backup, the data plane can hold a later revision.
            held = response.stale.held
            epoch, revision = held.source_epoch, held.revision + 1

    async def _require_facts_read(self, namespace_id: str) -> None:
        """Raises an error if the namespace has facts that are not applied to the lobby records yet.

        A fact that is read later would add the record of a lobby again. The removal of the namespace
        from the data plane makes its last facts.
        """
        async with self._database.read() as tx:
            stream = await service_state.get_text(tx, service_state.FACTS_STREAM) or ""
            lsn = await service_state.get_int(tx, service_state.FACTS_LSN) or 0
        response = await self._client.read_facts(
            facts_pb2.ReadRequest(stream=stream, acknowledged_lsn=lsn, limit=_FACTS_MAX)
        )
        is_all = len(response.facts) < _FACTS_MAX
        if not is_all or any(fact.namespace_id == namespace_id for fact in response.facts):
            raise _Incomplete("the facts of its lobbies are not read yet")

    async def _remove_lobbies(self, namespace_id: str) -> None:
        while True:
            async with self._database.read() as tx:
                lobby_ids = await deletions.ended_lobbies(tx, namespace_id, _BATCH_ROWS)
                live = await deletions.live_lobbies(tx, namespace_id)
            for lobby_id in lobby_ids:
                await self._remove_run_folder(lobby_id)
            if lobby_ids:
                async with self._database.write() as tx:
                    await deletions.remove_lobbies(tx, lobby_ids)
            elif live:
                raise _Incomplete(f"the ends of {len(live)} lobbies are not recorded yet")
            else:
                return

    async def _remove_run_folder(self, run_id: str) -> None:
        if not await self._remove_run(run_id):
            raise _Incomplete(f"run {run_id} has not ended for a minute yet")
