"""Feeder that sends configuration changes to the data plane until each is acknowledged.

At the start and periodically, the feeder compares the data plane's configurations with the records.
It sends each configuration that differs, so a crash loses no change.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Final, Protocol

from pyservice.calls import Subject
from pyservice.control.audit_log import AuditLog
from pyservice.control.data_plane_memory import DataPlaneMemory
from pyservice.control.feed_comparison import ContentComparison, DataPlaneConfigurations
from pyservice.control.feed_lanes import Confirmation, FeedLane, PendingNamespace
from pyservice.control.feed_messages import (
    NOTHING_CREATED,
    NOTHING_SWITCHED,
    STORED,
    SWITCHED_BACK,
    ComposeRequest,
    FeedComposer,
    UnstoredNamespace,
    concerns_version,
    namespace_name,
    operator_reason,
    refusal_error,
)
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError, Unreachable
from pyservice.observability.logging import get_logger
from pyservice.observability.rays import note
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.pb.hosting.v1 import namespaces_pb2
from pyservice.schema.configuration_size import NAMESPACE_BYTES
from pyservice.storage import namespaces
from pyservice.storage.database import Database, Record

CONFIRM_TIMEOUT_S: Final = 1.0


def unconfirmed_error() -> ServiceError:
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE",
        "The change is stored and will take effect; the data plane has not confirmed it yet. "
        "Repeating the request is harmless and answers 200 after the confirmation.",
    )


_NO_ERROR: Final = (None, None)

_log = get_logger("feeder")

Message = configuration_pb2.NamespaceConfiguration


class RefusedConfigurations:
    """Refusals of configurations by the data plane. If a new version is refused, the namespace
    returns to its previous version.
    """

    def __init__(
        self,
        database: Database,
        configurations: DataPlaneConfigurations,
        on_switched_back: Callable[[str], None],
        audit: AuditLog,
    ) -> None:
        self._database = database
        self._configurations = configurations
        self._on_switched_back = on_switched_back
        self._audit = audit
        self._versions: dict[str, tuple[str, ServiceError]] = {}
        """Last refused version of each namespace, with its error. Removed when the version is accepted."""
        self._conflicting: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.count = 0

    def error_for(self, namespace_id: str, version_id: str | None) -> ServiceError | None:
        refused_version, error = self._versions.get(namespace_id, _NO_ERROR)
        return error if refused_version == version_id else None

    def clear_version_error(self, namespace_id: str, version_id: str) -> None:
        refused_version, _ = self._versions.get(namespace_id, _NO_ERROR)
        if refused_version == version_id:
            del self._versions[namespace_id]

    def record_accepted(self, message: Message) -> set[str]:
        """Records that the data plane accepted a message.

        Returns the namespaces that were refused because another namespace used one of their values,
        such as a domain. The accepted message may have released the value, so these namespaces are
        sent again.
        """
        self.reasons.pop(message.namespace_id, None)
        self.clear_version_error(message.namespace_id, message.current_version_id)
        conflicting, self._conflicting = self._conflicting, set()
        return conflicting

    def note(self, message: Message, reason: str) -> None:
        name = namespace_name(message)
        self.reasons[message.namespace_id] = f"{name}: {reason}"
        _log.error("configuration refused by the data plane", namespace=name, reason=reason)

    async def handle_refusal(
        self, message: Message, refusal: feed_pb2.Refused, pending: PendingNamespace, number: int
    ) -> bool:
        """Fails the requests that wait for a configuration that the data plane refused.

        If the data plane refused a new version, makes the previous version current again. Then
        returns True, because the namespace must be sent again.
        """
        namespace_id, version_id = message.namespace_id, message.current_version_id
        self.count += 1
        orphans = self._configurations.orphans
        self.note(message, operator_reason(refusal, orphans))
        running_version = self._configurations.version_id(namespace_id)
        if any(problem.held_by for problem in refusal.problems):
            self._conflicting.add(namespace_id)
        if running_version in ("", version_id) or not concerns_version(refusal):
            error = refusal_error(message, refusal, STORED, orphans)
            pending.end_waits(lambda confirmation: confirmation.number <= number, error)
            return False
        error = refusal_error(message, refusal, SWITCHED_BACK, orphans)
        if await self._switch_back(message, running_version, error.code):
            self._on_switched_back(message.game.game_id)
        self._versions[namespace_id] = version_id, error
        pending.end_waits(lambda confirmation: confirmation.version_id == version_id, error)
        return True

    async def _switch_back(self, message: Message, running: str, code: str) -> bool:
        """Makes the previous version of the namespace current again. Returns False, without a
        change, if the refused version is no longer current.
        """
        namespace_id, version_id = message.namespace_id, message.current_version_id
        async with self._database.write() as tx:
            newest = await namespaces.newest_history(tx, namespace_id, 2)
            entry = newest[0].entry_id if newest else ""
            before = newest[1].version_id if len(newest) > 1 else running
            existing = await namespaces.existing_versions(tx, (before, running))
            if before == version_id or before not in existing:
                before = running
            if before not in existing:
                return False
            if not await namespaces.restore_version(tx, namespace_id, version_id, before, entry):
                return False
            game = message.game
            subject = Subject(game.developer_group_id, game.game_id, namespace_id)
            request = namespaces_pb2.UpdateNamespaceVersionRequest(version_id=version_id)
            await self._audit.add_switch_back(tx, request, subject, code)
        return True


_SENDERS: Final = 48
_REVOCATION_SENDERS: Final = 16
_CHECK_TIMEOUT_S: Final = 0.3
"""Timeout of a check before a deployment. Problems that arrive later are reported after the deployment."""
_POLL_INTERVAL_S: Final = 0.4
_POLL_INTERVAL_MAX_S: Final = 5.0
_POLL_PAUSE_FACTOR: Final = 50
"""Pause after a poll, as a multiple of its duration."""
_RETRIES_S: Final = (0.05, 0.5)
_REFUSED_RETRY_S: Final = 10.0

_RECORDS_INTERVAL_S: Final = 30.0


class FeedClient(Protocol):
    """Client of the data plane's configuration feed.

    Its methods raise Unreachable, and ServiceError if the data plane cannot take changes.
    """

    async def apply(
        self, request: feed_pb2.ApplyRequest, *, is_revocation: bool
    ) -> feed_pb2.ApplyResponse: ...
    async def check(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse: ...
    async def held_configurations(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse: ...


class Feeder:
    def __init__(
        self,
        database: Database,
        composer: FeedComposer,
        client: FeedClient,
        on_switched_back: Callable[[str], None] = lambda game_id: None,
        audit: AuditLog | None = None,
    ) -> None:
        self._database = database
        self._composer = composer
        self._revocation_lane = FeedLane(
            self._compose, senders=_REVOCATION_SENDERS, is_for_revocations=True
        )
        self._configuration_lane = FeedLane(
            self._compose, senders=_SENDERS, is_for_revocations=False
        )
        self._client = client
        self._pending: dict[str, PendingNamespace] = {}
        self._configurations = DataPlaneConfigurations(composer.source_epoch)
        self.job = RetryingJob("feeder", "configuration not sent", Unreachable, pauses_s=_RETRIES_S)
        self._contents = ContentComparison(self._compose, self.enqueue, self.job)
        self._refused_configurations = RefusedConfigurations(
            database, self._configurations, on_switched_back, audit or AuditLog()
        )
        self._is_connected = asyncio.Event()
        self._is_resync_needed = asyncio.Event()
        self.acknowledged_count = 0

    @property
    def waiting(self) -> int:
        return len(self._pending)

    @property
    def lag_s(self) -> float:
        oldest = next(iter(self._pending.values()), None)
        return 0.0 if oldest is None else asyncio.get_running_loop().time() - oldest.since

    @property
    def is_connected(self) -> bool:
        return self._is_connected.is_set()

    @property
    def orphans(self) -> int:
        return len(self._configurations.orphans)

    @property
    def refusals(self) -> int:
        return self._refused_configurations.count

    @property
    def memory(self) -> DataPlaneMemory:
        return self._configurations.memory

    def refused_reasons(self) -> Mapping[str, str]:
        return self._refused_configurations.reasons

    def enqueue(
        self,
        namespace_id: str,
        group_id: str,
        confirmation: Confirmation | None = None,
        *,
        is_revocation: bool = False,
    ) -> None:
        """Sends a namespace's configuration in the background. Call this method after the change is
        committed.

        `group_id` is the developer group of the namespace's game. `confirmation` ends when the data
        plane has applied or refused the change. A revocation ends the validity of a token or
        domain. It does not wait for other changes.
        """
        pending = self._pending.get(namespace_id)
        is_new = pending is None
        if pending is None:
            pending = PendingNamespace(group_id, asyncio.get_running_loop().time())
            self._pending[namespace_id] = pending
        pending.number += 1
        if is_revocation:
            pending.revocation_number = pending.number
        if confirmation is not None:
            confirmation.namespace_id, confirmation.number = namespace_id, pending.number
            pending.waiting.add(confirmation)
        if pending.retry_timer is not None:
            self._retry_now(namespace_id)
        elif is_new or (is_revocation and self._configuration_lane.discard(namespace_id, group_id)):
            self._put(namespace_id)

    def _put(self, namespace_id: str) -> None:
        pending = self._pending[namespace_id]
        lane = self._revocation_lane if pending.revocation_number else self._configuration_lane
        lane.put(namespace_id, pending.group_id)

    async def confirm(
        self, confirmation: Confirmation, *, wait_s: float = CONFIRM_TIMEOUT_S
    ) -> None:
        """Waits until the data plane has applied the enqueued change of `confirmation`.

        Raises CONTROL_PLANE_UNAVAILABLE after `wait_s`, although the change remains stored. Raises
        VALIDATION_FAILED if the data plane refuses the configuration. If it refuses the version of
        the change, the previous version becomes current again.
        """
        namespace_id = confirmation.namespace_id
        began = perf_counter()
        try:
            async with asyncio.timeout(wait_s):
                await confirmation.has_ended.wait()
        except TimeoutError:
            raise unconfirmed_error() from None
        finally:
            note("feed wait", began)
            if namespace_id in self._pending:
                self._pending[namespace_id].waiting.discard(confirmation)
        error = confirmation.error or self._refused_configurations.error_for(
            namespace_id, confirmation.version_id
        )
        if error is not None:
            raise error

    async def enqueue_and_confirm(
        self, namespace_id: str, group_id: str, *, is_revocation: bool = False
    ) -> None:
        """Sends the namespace's configuration and waits as `confirm` does."""
        confirmation = Confirmation()
        self.enqueue(namespace_id, group_id, confirmation, is_revocation=is_revocation)
        await self.confirm(confirmation)

    async def confirm_revocations(self, of_groups: Iterable[tuple[str, str]]) -> None:
        """Waits until the data plane has the revocations of several namespaces, at the same time.

        Each pair has the id of a namespace and of its group. Raises an error of
        `enqueue_and_confirm` after all waits have ended.
        """
        confirmations = [
            self.enqueue_and_confirm(namespace_id, group_id, is_revocation=True)
            for namespace_id, group_id in of_groups
        ]
        for error in await asyncio.gather(*confirmations, return_exceptions=True):
            if error is not None:
                raise error

    async def check_version(self, namespace_id: str, group_id: str, version_id: str) -> None:
        """Raises VALIDATION_FAILED if the data plane would refuse the version.

        Skips the check if the data plane is unavailable or slow.
        """
        if not self._is_connected.is_set():
            return
        request = ComposeRequest(namespace_id, version_id)
        began = perf_counter()
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                message = await self._configuration_lane.compose(request, group_id)
                if message is None or not message.versions:
                    # The namespace or the version was deleted meanwhile. The change reports that.
                    return
                response = await self._client.check(feed_pb2.ApplyRequest(configuration=message))
        except (Unreachable, ServiceError, TimeoutError):
            return
        finally:
            note("feed check", began)
        if response.HasField("refused"):
            raise refusal_error(
                message, response.refused, NOTHING_SWITCHED, self._configurations.orphans
            )
        self._refused_configurations.clear_version_error(namespace_id, version_id)

    async def growth_of_new(self, new: UnstoredNamespace) -> int:
        """Returns the bytes that a new namespace would add to the memory of its group.

        Raises QUOTA_EXCEEDED if the data plane has no memory for them. If the data plane is
        unavailable or slow, the result is that of a version that another namespace runs.
        """
        if not self._is_connected.is_set():
            return NAMESPACE_BYTES
        began = perf_counter()
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                async with self._database.read() as tx:
                    message = await self._composer.compose_new(tx, new)
                if message is None:
                    # The version was deleted meanwhile. The change reports that.
                    return NAMESPACE_BYTES
                response = await self._client.check(feed_pb2.ApplyRequest(configuration=message))
        except (Unreachable, ServiceError, TimeoutError):
            return NAMESPACE_BYTES
        finally:
            note("feed check", began)
        if response.refused.HasField("quota"):
            raise refusal_error(
                message, response.refused, NOTHING_CREATED, self._configurations.orphans
            )
        return response.applied.growth_bytes or NAMESPACE_BYTES

    async def _compose(self, requests: Sequence[ComposeRequest]) -> list[Message | None]:
        async with self._database.read() as tx:
            return await self._composer.compose_all(tx, requests)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in (self._revocation_lane, self._configuration_lane):
                for _ in range(lane.senders):
                    group.create_task(self._send_all(lane))
            group.create_task(self._contents.run())
            while True:
                await self.job.retry_until_done(self._compare)
                await self._poll_until_disconnected()

    def mark_disconnected(self) -> None:
        self._is_connected.clear()
        self._is_resync_needed.set()

    def compare_again(self) -> None:
        self._is_resync_needed.set()

    async def _poll_until_disconnected(self) -> None:
        pause_s = _POLL_INTERVAL_S
        loop = asyncio.get_running_loop()
        records_s = loop.time() + _RECORDS_INTERVAL_S
        while not self._is_resync_needed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_resync_needed.wait()
                    break
            began_s = loop.time()
            if await self.job.attempt(self._poll_configurations) is not None:
                self.mark_disconnected()
            if loop.time() >= records_s:
                await self.job.attempt(self._compare_records)
                records_s = loop.time() + _RECORDS_INTERVAL_S
            pause_s = min(
                max(_POLL_INTERVAL_S, (loop.time() - began_s) * _POLL_PAUSE_FACTOR),
                _POLL_INTERVAL_MAX_S,
            )
        self._is_resync_needed.clear()

    async def _poll_configurations(self) -> None:
        self._configurations.begin_read()
        if self._configurations.has_lost_state(
            await self._client.held_configurations(feed_pb2.HeldRequest())
        ):
            self._is_resync_needed.set()

    async def _compare_records(self) -> None:
        async with self._database.read() as tx:
            rows = await namespaces.revisions(tx)
        for row in self._configurations.differing_rows(rows):
            if row.namespace_id not in self._pending:
                self.enqueue(row.namespace_id, row.group_id)
        self._update_orphans(rows)

    def _update_orphans(self, rows: Sequence[Record]) -> None:
        if self._configurations.update_orphans(rows) and self._configurations.orphans:
            _log.warning(
                "the data plane holds namespaces without a record: see `pyservice namespace orphans`",
                count=self.orphans,
                first=next(iter(self._configurations.orphans.values())).name,
            )

    async def _compare(self) -> None:
        self._configurations.begin_read()
        response = await self._client.held_configurations(feed_pb2.HeldRequest())
        async with self._database.read() as tx:
            rows = await namespaces.revisions(tx)
        self._is_connected.set()
        self._configurations.take(response)
        different = list(self._configurations.differing_rows(rows))
        for row in different:
            self.enqueue(row.namespace_id, row.group_id)
        different_ids = {row.namespace_id for row in different}
        self._contents.compare(self._configurations.unchanged_configurations(rows, different_ids))
        self._update_orphans(rows)

    async def _send_all(self, lane: FeedLane) -> None:
        backoff = self.job.new_backoff()
        while True:
            namespace_id = await lane.get()
            sending = functools.partial(self._send_as_it_is, lane, namespace_id)
            error = await self.job.attempt(sending, namespace_id=namespace_id)
            if error is None:
                backoff.reset()
            elif self.job.is_expected(error):
                if isinstance(error, Unreachable):
                    self.mark_disconnected()
                self._put(namespace_id)
                await asyncio.sleep(backoff.next_s())
            else:
                self._retry_later(namespace_id)

    async def _send_as_it_is(self, lane: FeedLane, namespace_id: str) -> None:
        pending = self._pending[namespace_id]
        number = pending.number
        if await self._send(lane, namespace_id, number):
            self._confirm(namespace_id, number)
        elif pending.number > number:
            self._put(namespace_id)
        else:
            self._retry_later(namespace_id)

    def _confirm(self, namespace_id: str, number: int) -> None:
        pending = self._pending[namespace_id]
        pending.end_waits(lambda confirmation: confirmation.number <= number)
        if pending.revocation_number <= number:
            pending.revocation_number = 0
        if pending.number > number:
            self._put(namespace_id)
        else:
            del self._pending[namespace_id]

    def _retry_later(self, namespace_id: str) -> None:
        """Sends the namespace's configuration again after 10 s. An operator may have removed the
        cause of the failure by then.
        """
        loop = asyncio.get_running_loop()
        pending = self._pending[namespace_id]
        pending.retry_timer = loop.call_later(_REFUSED_RETRY_S, self._retry_now, namespace_id)

    def _retry_now(self, namespace_id: str) -> None:
        pending = self._pending[namespace_id]
        if pending.retry_timer is not None:
            pending.retry_timer.cancel()
            pending.retry_timer = None
            self._put(namespace_id)

    async def _send(self, lane: FeedLane, namespace_id: str, number: int) -> bool:
        pending = self._pending[namespace_id]
        while True:
            addition = self.memory.last_addition(namespace_id)
            message = await lane.compose(ComposeRequest(namespace_id), pending.group_id)
            if message is None:
                self.memory.confirm(namespace_id, addition)
                return True
            request = feed_pb2.ApplyRequest(configuration=message)
            response = await self._client.apply(request, is_revocation=lane.is_for_revocations)
            match response.WhichOneof("outcome"):
                case "applied":
                    self.acknowledged_count += 1
                    for blocked_id in (
                        self._refused_configurations.record_accepted(message) & self._pending.keys()
                    ):
                        self._retry_now(blocked_id)
                    self._configurations.acknowledge(message, response.applied)
                    self.memory.confirm(namespace_id, addition)
                    return True
                case "stale":
                    if not await self._catch_up(message, response.stale.held):
                        return False
                case _:
                    if not await self._refused_configurations.handle_refusal(
                        message, response.refused, pending, number
                    ):
                        return False

    async def _catch_up(self, message: Message, configuration: feed_pb2.HeldConfiguration) -> bool:
        """Raises the stored revision above the data plane's revision, which is higher after a
        restore from a backup.

        Returns False if the data plane's configuration has a higher source epoch, so it comes from
        a newer database.
        """
        if configuration.source_epoch > message.source_epoch:
            self._refused_configurations.note(
                message, "the data plane holds the configuration of a newer database"
            )
            return False
        async with self._database.write() as tx:
            await namespaces.raise_revision(tx, message.namespace_id, configuration.revision)
        return True
