"""Deletion in two phases: a transaction marks a record, a background job removes what it leaves.

From the commit on, no request finds the record. The job goes on after a crash, and after an outage
of the data plane or of the object store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from pyservice.concurrency.single_flight import SingleFlight
from pyservice.control.feed_comparison import order_key
from pyservice.control.feeder import CONFIRM_TIMEOUT_S
from pyservice.control.lobby_records import Row, apply_facts, read_unapplied_facts
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError, Unreachable
from pyservice.pb.hosting.internal.v1 import facts_pb2, feed_pb2
from pyservice.storage import deletions, namespaces
from pyservice.storage.database import Database, Record, Transaction

_INTERVAL_S: Final = 3_600.0
_RETRIES_S: Final = (1.0, 5.0)
"""The folder of a server stays for a minute, and the job is incomplete until then. Other removals
must not wait so long.
"""
_BATCH_ROWS: Final = 100
_NAMED_IDS: Final = 5
_FACTS_MAX: Final = 1_000
"""Unread facts that a deletion looks through. It is repeated if there are more."""


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


class UnrecordedLobby(NamedTuple):
    """A live lobby of the data plane that the lobby records may not have yet."""

    lobby_id: str
    namespace_id: str
    version_id: str


@dataclass(frozen=True, slots=True)
class DataPlaneUse:
    """Configurations and lobbies of the data plane when it was asked."""

    source_epoch: int
    configurations: Mapping[str, feed_pb2.HeldConfiguration]
    lobbies: Sequence[UnrecordedLobby]

    def is_current(self, row: Record) -> bool:
        """Returns True if the data plane has the last change of a namespace record."""
        configuration = self.configurations.get(row.namespace_id)
        return configuration is not None and order_key(configuration) == (
            self.source_epoch,
            row.revision,
        )


async def require_version_unused(
    tx: Transaction, game_id: str, version_id: str, use: DataPlaneUse
) -> None:
    """Raises IN_USE if a namespace or a live lobby runs the version, in the records or in the data
    plane.

    If the data plane does not have the last change of a namespace, it may still run any version
    that the namespace had.
    """
    running = {
        *await deletions.namespaces_of_version(tx, version_id),
        *(
            namespace_id
            for namespace_id, configuration in use.configurations.items()
            if configuration.current_version_id == version_id
        ),
    }
    changed = [
        row.namespace_id for row in await namespaces.of_game(tx, game_id) if not use.is_current(row)
    ]
    if changed:
        running.update(await deletions.namespaces_that_ran(tx, changed, version_id))
    lobbies = {
        *await deletions.lobbies_of_version(tx, version_id),
        *(lobby.lobby_id for lobby in use.lobbies if lobby.version_id == version_id),
    }
    require_unused(
        "A namespace or a lobby runs this version. Set another version, and wait for the end of the "
        "lobbies.",
        namespace=sorted(running),
        lobby=sorted(lobbies),
    )


async def require_no_players(
    tx: Transaction, namespace_ids: Collection[str], unrecorded: Iterable[UnrecordedLobby]
) -> None:
    """Raises IN_USE if a namespace has live lobbies or servers. `unrecorded` has lobbies of any
    namespace.
    """
    lobbies = {lobby.lobby_id for lobby in unrecorded if lobby.namespace_id in namespace_ids}
    servers: list[str] = []
    for namespace_id in namespace_ids:
        lobbies.update(await deletions.live_lobbies(tx, namespace_id))
        servers += await deletions.live_servers(tx, namespace_id)
    require_unused(
        "Lobbies or servers are live. End them first, or set `force` to end them with the deletion.",
        lobby=sorted(lobbies),
        server=servers,
    )


@contextlib.asynccontextmanager
async def _answer_of_data_plane() -> AsyncIterator[None]:
    """Raises CONTROL_PLANE_UNAVAILABLE if the data plane does not answer within a second."""
    try:
        async with asyncio.timeout(CONFIRM_TIMEOUT_S):
            yield
    except (Unreachable, ServiceError, TimeoutError, _Incomplete):
        raise ServiceError(
            "CONTROL_PLANE_UNAVAILABLE",
            "The data plane has not said what it runs, so nothing was deleted; try again.",
        ) from None


class RemovalClient(Protocol):
    async def held_configurations(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse: ...
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
        # A response has all namespaces, so concurrent requests share it. An old one is harmless:
        # `DataPlaneUse.is_current` compares it with the records.
        self._held: SingleFlight[None, feed_pb2.HeldResponse] = SingleFlight()
        self._due = asyncio.Event()
        self.job = RetryingJob(
            "deletions",
            "deleted records not removed",
            Unreachable,
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

    async def data_plane_use(self) -> DataPlaneUse:
        """Asks the data plane what it runs. Raises CONTROL_PLANE_UNAVAILABLE after a second."""
        async with _answer_of_data_plane():
            response = await self._held.run(
                None, lambda: self._client.held_configurations(feed_pb2.HeldRequest())
            )
            # Read after the configurations, so that no lobby of an earlier version starts later.
            lobbies = await self._unrecorded_lobbies()
        configurations = {
            configuration.namespace_id: configuration for configuration in response.configurations
        }
        return DataPlaneUse(self._source_epoch, configurations, lobbies)

    async def unrecorded_lobbies(self) -> list[UnrecordedLobby]:
        """Asks the data plane for live lobbies. Raises CONTROL_PLANE_UNAVAILABLE after a second."""
        async with _answer_of_data_plane():
            return await self._unrecorded_lobbies()

    async def _unrecorded_lobbies(self) -> list[UnrecordedLobby]:
        rows: dict[str, Row] = {}
        apply_facts(rows, await self._unread_facts())
        return [
            UnrecordedLobby(lobby_id, row["namespace_id"], row["version_id"])
            for lobby_id, row in rows.items()
            if row["stop_ms"] is None
        ]

    async def confirm(self, namespace_ids: Collection[str]) -> None:
        """Waits until the data plane has removed deleted namespaces.

        Raises CONTROL_PLANE_UNAVAILABLE after a second. The job then continues.
        """
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                async with self._database.read() as tx:
                    rows = await deletions.removals_of(tx, namespace_ids)
                await asyncio.gather(*(self._remove_from_data_plane(row) for row in rows))
        except (Unreachable, ServiceError, TimeoutError):
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
        if any(fact.namespace_id == namespace_id for fact in await self._unread_facts()):
            raise _Incomplete("the facts of its lobbies are not read yet")

    async def _unread_facts(self) -> Sequence[facts_pb2.Fact]:
        """Returns the facts that are not applied to the lobby records yet. Raises _Incomplete if
        there are too many.
        """
        facts = await read_unapplied_facts(self._database, self._client, _FACTS_MAX)
        if len(facts) >= _FACTS_MAX:
            raise _Incomplete("the facts of lobbies are not read yet")
        return facts

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
