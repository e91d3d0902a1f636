"""Receiver of namespace configurations from the configuration feed.

Each configuration is applied atomically and in order of revisions. It is durable before it is
acknowledged. Implements `hosting.internal.v1.Feed`. Large messages and files are processed in
threads, so that player requests do not wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from pyservice.dataplane.feed_files import FeedFiles, FeedOrder, StoredNamespace
from pyservice.dataplane.feed_validation import (
    Finding,
    OperatorLimits,
    conflict_problems,
    own_problems,
)
from pyservice.dataplane.held_versions import Growth
from pyservice.dataplane.namespace_index import (
    NamespaceIndex,
    PreparedNamespace,
    content_digest,
    prepare_namespace,
    public_hosts,
)
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import FeedMetrics
from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from pyservice.schema.validation import require_valid

RETAINED_MAX: Final = 1_000
RETAINED_BYTES_MAX: Final = 1024 * 1024
"""Limit for the retained versions of a namespace. A token revocation must write all of them to
disk.
"""

HELD_BYTES_MAX: Final = 512 * 1024 * 1024
"""Default limit for the bytes of all configurations in memory. Equal versions count once."""

REMOVED_MAX: Final = 1_000
"""Number of files of removed namespaces that are kept after `REMOVED_AGE_S`. Files of namespaces from
a feed file do not count.
"""
REMOVED_AGE_S: Final = 60.0
"""Longest time that a message of the control plane can be on its way."""

LiveVersions = Callable[[bytes], Collection[bytes]]


class RetainedVersions(NamedTuple):
    versions: tuple[configuration_pb2.Version, ...] = ()
    is_any_dropped: bool = False
    """True if a retained version has lost its last lobby. The end of that lobby may not be durable
    yet.
    """


def retain_versions(
    configuration: configuration_pb2.NamespaceConfiguration,
    stored: configuration_pb2.NamespaceConfiguration | None,
    live_versions: LiveVersions,
    now_ms: int,
) -> RetainedVersions:
    """Returns the versions of `stored` to keep when `configuration` replaces it.

    These are the versions with lobbies, and the current version of `stored`, which can get new
    lobbies until the replacement. `now_ms` becomes the retirement time of the current version.
    """
    if stored is None:
        return RetainedVersions()
    stored_versions = {
        version.version_id: version for version in (*stored.retained_versions, *stored.versions)
    }
    for version in configuration.versions:
        stored_versions.pop(version.version_id, None)
    retained_ids = {stored.current_version_id} & stored_versions.keys()
    if retained_ids != stored_versions.keys():
        live = live_versions(raw_id(stored.namespace_id))
        retained_ids |= {version_id for version_id in stored_versions if raw_id(version_id) in live}
    versions = tuple(
        _as_retired(stored_versions[version_id], now_ms) for version_id in sorted(retained_ids)
    )
    return RetainedVersions(versions, len(retained_ids) < len(stored_versions))


def _as_retired(version: configuration_pb2.Version, now_ms: int) -> configuration_pb2.Version:
    retained = admission_rules_only(version)
    retained.retired_ts_ms = version.retired_ts_ms or now_ms
    return retained


def admission_rules_only(version: configuration_pb2.Version) -> configuration_pb2.Version:
    retained = configuration_pb2.Version(
        version_id=version.version_id, display_name=version.display_name
    )
    matchmaker = version.matchmaker
    if matchmaker.HasField("captcha"):
        retained.matchmaker.captcha.CopyFrom(matchmaker.captcha)
    for name, mode in matchmaker.game_modes.items():
        retained_mode = retained.matchmaker.game_modes[name]
        if mode.actions.join.HasField("verification"):
            retained_mode.actions.join.CopyFrom(mode.actions.join)
        if mode.HasField("max_drain_ms"):
            retained_mode.max_drain_ms = mode.max_drain_ms
    return retained


def retention_problems(
    retention: RetainedVersions, stored: configuration_pb2.NamespaceConfiguration | None
) -> Iterator[Finding]:
    """Yields a problem for too many retained versions, and for too many bytes of them.

    Checks nothing if `stored` already retains all these versions.
    """
    before = {version.version_id for version in stored.retained_versions} if stored else set()
    if {version.version_id for version in retention.versions} <= before:
        return
    path = ("current_version_id",)
    if len(retention.versions) > RETAINED_MAX:
        yield (
            path,
            f"cannot become current while lobbies of {len(retention.versions):,} other versions run, at most "
            f"{RETAINED_MAX:,}: end lobbies of older versions first",
        )
    size = sum(version.ByteSize() for version in retention.versions)
    if size > RETAINED_BYTES_MAX:
        yield (
            path,
            f"cannot become current while lobbies of {len(retention.versions):,} other versions run: captcha and "
            f"verification of these take {size:,} bytes, at most {RETAINED_BYTES_MAX:,} are kept; end lobbies of "
            "older versions first",
        )


_ON_LOOP_BYTES_MAX: Final = 16 * 1024
"""Size of a message that takes one to two milliseconds to validate. Larger messages are validated
in a thread.
"""
_VALID_DIGESTS_MAX: Final = 1_024
_ALL: Final = b""
"""Key of the growth of all groups together."""
_DURABLE_TIMEOUT_S: Final = 5.0

_log = get_logger("feed")


class LiveLobbies(Protocol):
    def live_versions(self, namespace: bytes) -> Collection[bytes]: ...
    async def wait_all_durable(self, deadline: float | None) -> None: ...


class NoLiveLobbies:
    def live_versions(self, namespace: bytes) -> Collection[bytes]:
        return ()

    async def wait_all_durable(self, deadline: float | None) -> None:
        return None


EndLobbies = Callable[[bytes], Awaitable[None]]


async def _no_lobbies(namespace_id: bytes) -> None: ...


class _Decision(NamedTuple):
    answer: pb.ApplyResponse
    order: FeedOrder = (0, 0)
    namespace: PreparedNamespace | None = None
    configuration: configuration_pb2.NamespaceConfiguration | None = None
    growth: Growth = Growth()
    is_any_dropped: bool = False


class ConfigurationFeed:
    def __init__(
        self,
        files: FeedFiles,
        namespaces: NamespaceIndex,
        limits: OperatorLimits,
        counters: FeedMetrics,
        now_s: Callable[[], float] = time.time,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._held_bytes_max = held_bytes_max
        self.group_bytes_max = limits.configuration_bytes
        """Limit of groups without a limit of their own. A reload of the settings replaces it."""
        self._files = files
        self._namespaces = namespaces
        self._limits = limits
        self._counters = counters
        self._now_s = now_s
        self._order_of: dict[str, FeedOrder] = {}
        self._removed_s: OrderedDict[str, float] = OrderedDict()
        """Times of removals by the control plane, oldest first. After a start, they count as old."""
        self._valid_digests: OrderedDict[str, bytes] = OrderedDict()
        self._held_response: pb.HeldResponse | None = None
        self.live_lobbies: LiveLobbies = NoLiveLobbies()
        """Source of the versions with lobbies. It must be set before the first message."""
        self.on_namespace_changed: Callable[[bytes], None] = lambda namespace_id: None
        self.end_lobbies: EndLobbies = _no_lobbies
        """Ends the lobbies of a removed namespace. It must be set before the first message."""
        self._lock = asyncio.Lock()

    def load(self) -> None:
        """Loads the stored configurations without validation."""
        for stored in self._files.load():
            if stored.configuration is None:
                self._forget(stored.namespace_id, stored.order, removed_s=0.0)
            else:
                namespace = prepare_namespace(stored.configuration, self._namespaces.held_versions)
                self._put(stored.order, namespace)

    async def apply(self, request: pb.ApplyRequest) -> pb.ApplyResponse:
        """Stores and applies a configuration if it is valid and newer than the stored one. Raises
        STORAGE_FULL, without a change.
        """
        # Shielded: a cancelled caller must not leave a half-written file.
        item = pb.ManyItem(configuration=request.configuration)
        return (await asyncio.shield(self._apply([item])))[0]

    async def apply_many(self, request: pb.ApplyManyRequest) -> pb.ApplyManyResponse:
        answers = await asyncio.shield(self._apply(request.items))
        return pb.ApplyManyResponse(answers=answers)

    async def remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        """Removes a namespace, and ends its lobbies. Stores the revision of the removal, so that an
        older message cannot restore the namespace.
        """
        require_valid(request)
        response = await asyncio.shield(self._remove(request))
        if response.HasField("removed"):
            await self.end_lobbies(raw_id(request.namespace_id))
        return response

    async def held_configurations(self, request: pb.HeldRequest) -> pb.HeldResponse:
        if self._held_response is None:
            self._held_response = pb.HeldResponse(
                configurations=(
                    pb.HeldConfiguration(
                        namespace_id=configuration.namespace_id,
                        source_epoch=configuration.source_epoch,
                        revision=configuration.revision,
                        current_version_id=configuration.current_version_id,
                        name=f"{configuration.game.name_id}/{configuration.name_id}",
                        content=self._namespaces.digest(raw_id(configuration.namespace_id)),
                    )
                    for configuration in self._namespaces
                ),
                group_bytes={
                    format_uuid(group): size
                    for group, size in self._namespaces.held_versions.group_bytes.items()
                },
                total_bytes=self._namespaces.held_versions.bytes_held,
                total_bytes_max=self._held_bytes_max,
            )
        return self._held_response

    async def check(
        self, configuration: configuration_pb2.NamespaceConfiguration
    ) -> pb.ApplyResponse:
        """Returns the response that `apply` would give to this configuration. Changes nothing.

        Unlike `apply`, always returns `stale` for the stored revision, even with equal content.
        """
        item = pb.ManyItem(configuration=configuration, is_check=True)
        return (await asyncio.shield(self._apply([item])))[0]

    async def prepare(
        self, configuration: configuration_pb2.NamespaceConfiguration
    ) -> PreparedNamespace | pb.Refused:
        """Returns a configuration as `apply` would put it into the index. Changes nothing.

        Returns the refusal that `apply` would give.
        """
        response = await self.check(configuration)
        if response.HasField("refused"):
            return response.refused
        prepare = partial(prepare_namespace, configuration, self._namespaces.held_versions)
        async with self._lock:
            # The lock makes the index read-only, so a thread may read it.
            if configuration.ByteSize() <= _ON_LOOP_BYTES_MAX:
                return prepare()
            return await asyncio.shield(asyncio.to_thread(prepare))

    def has_namespace(self, namespace_id: bytes) -> bool:
        return self._namespaces.is_known(namespace_id)

    async def _apply(self, items: Sequence[pb.ManyItem]) -> list[pb.ApplyResponse]:
        answers: list[pb.ApplyResponse] = []
        async with self._lock:
            # The lock makes the index read-only, so a thread may read it.
            size = sum(map(self._size, items))
            while len(answers) < len(items):
                remaining = items[len(answers) :]
                if size <= _ON_LOOP_BYTES_MAX:
                    decisions = self._decide_some(remaining)
                else:
                    decisions = await asyncio.to_thread(self._decide_some, remaining)
                await self._store_all(decisions)
                for decision in decisions:
                    if decision.namespace is not None:
                        decision.answer.applied.CopyFrom(self._applied(decision.namespace))
                    answers.append(decision.answer)
        for item, response in zip(items, answers, strict=True):
            if not item.is_check:
                self._count(response.WhichOneof("outcome") or "refused")
        return answers

    def _applied(self, namespace: PreparedNamespace) -> pb.Applied:
        held, group = self._namespaces.held_versions, namespace.resolved.group
        return pb.Applied(
            group_bytes=held.bytes_of(group) if group else 0, total_bytes=held.bytes_held
        )

    def _size(self, item: pb.ManyItem) -> int:
        return item.ByteSize() + self._namespaces.size(item.configuration.namespace_id)

    def _decide_some(self, items: Sequence[pb.ManyItem]) -> list[_Decision]:
        decisions: list[_Decision] = []
        claimed_names: set[Hashable] = set()
        growth: Counter[bytes | None] = Counter()
        for item in items:
            claims = _claims(item.configuration)
            if not claimed_names.isdisjoint(claims):
                break
            decision = self._decide(item, growth)
            if decision.answer.refused.HasField("quota") and decisions:
                # The item may need less when the ones before it are applied.
                break
            decisions.append(decision)
            if decision.namespace is not None:
                growth[decision.namespace.resolved.group] += decision.growth.group
                growth[_ALL] += decision.growth.total
            if decision.namespace is not None:
                claimed_names |= claims
                # Names that the item releases become free only after it is applied.
                raw = raw_id(item.configuration.namespace_id)
                stored = self._namespaces.header(raw)
                if stored is not None:
                    claimed_names |= _claims(stored) | self._namespaces.service_token_hashes(raw)
        return decisions

    def _decide(self, item: pb.ManyItem, pending: Mapping[bytes | None, int]) -> _Decision:
        """Decides whether a configuration is applied, stale or refused. A repeated message counts
        as applied.

        Different content with the stored revision is stale: only the sender knows which is newer.
        """
        configuration = item.configuration
        namespace_id, order = configuration.namespace_id, _order(configuration)
        content = content_digest(configuration)
        stored_order = self._order_of.get(namespace_id)
        is_repeated = order == stored_order and content == self._namespaces.digest(
            raw_id(namespace_id)
        )
        if is_repeated and not item.is_check:
            return _Decision(pb.ApplyResponse(applied=pb.Applied()))
        if stored_order is not None and order <= stored_order:
            return _Decision(pb.ApplyResponse(stale=_stale(namespace_id, stored_order)))
        problems = self._problems(configuration, content)
        retention = RetainedVersions()
        stored: configuration_pb2.NamespaceConfiguration | None = None
        is_same_version = False
        if not problems:
            stored = self._namespaces.configuration(raw_id(namespace_id))
            is_same_version = (
                stored is not None and stored.current_version_id == configuration.current_version_id
            )
            retention = retain_versions(
                configuration, stored, self.live_lobbies.live_versions, int(self._now_s() * 1000)
            )
            problems += (
                pb.Problem(path=path, reason=reason)
                for path, reason in retention_problems(retention, stored)
            )
        if problems:
            return _Decision(pb.ApplyResponse(refused=pb.Refused(problems=problems)))
        complete = _with_retained(configuration, retention)
        namespace = prepare_namespace(complete, self._namespaces.held_versions)
        growth = self._namespaces.growth(namespace)
        if stored is None or (not is_same_version and growth.versions > 0):
            refusal = self._quota_refusal(namespace, growth, pending)
            if refusal is not None:
                return _Decision(refusal)
        if item.is_check:
            added = max(growth.group, 0)
            return _Decision(pb.ApplyResponse(applied=pb.Applied(growth_bytes=added)))
        response = pb.ApplyResponse(applied=pb.Applied())
        return _Decision(response, order, namespace, complete, growth, retention.is_any_dropped)

    def _quota_refusal(
        self, namespace: PreparedNamespace, growth: Growth, pending: Mapping[bytes | None, int]
    ) -> pb.ApplyResponse | None:
        held, group = self._namespaces.held_versions, namespace.resolved.group
        if group is not None:
            limits = namespace.header.matchmaker
            limit = self.group_bytes_max
            if limits.HasField("group_configuration_bytes_max"):
                limit = limits.group_configuration_bytes_max
            use = held.bytes_of(group) + pending.get(group, 0)
            if growth.group > 0 and use + growth.group > limit:
                return _quota_refusal("configuration_bytes", limit, use)
        use = held.bytes_held + pending.get(_ALL, 0)
        if growth.total > 0 and use + growth.total > self._held_bytes_max:
            return _quota_refusal("data_plane_configuration_bytes", self._held_bytes_max, use)
        return None

    def _problems(
        self, configuration: configuration_pb2.NamespaceConfiguration, content: bytes
    ) -> list[pb.Problem]:
        namespace_id = configuration.namespace_id
        problems = []
        if self._valid_digests.get(namespace_id) != content:
            problems = own_problems(configuration, self._limits, self._namespaces)
        if not problems:
            self._valid_digests[namespace_id] = content
            self._valid_digests.move_to_end(namespace_id)
            if len(self._valid_digests) > _VALID_DIGESTS_MAX:
                self._valid_digests.popitem(last=False)
        return problems + conflict_problems(configuration, self._namespaces)

    async def _remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        async with self._lock:
            order = (request.source_epoch, request.revision)
            stored_order = self._order_of.get(request.namespace_id)
            is_held = self._is_held(request.namespace_id)
            if stored_order is not None and (
                order < stored_order or (order == stored_order and is_held)
            ):
                self._count("stale")
                return pb.RemoveResponse(stale=_stale(request.namespace_id, stored_order))
            if order != stored_order:
                await self._save([StoredNamespace(request.namespace_id, order, None)])
                self._forget(request.namespace_id, order, self._now_s())
                await self._remove_old_tombstones()
            self._count("removed")
            return pb.RemoveResponse(removed=pb.Removed())

    async def _remove_old_tombstones(self) -> None:
        """Removes tombstones that no message can need any more, so that their number is bounded.

        A feed file can name an old namespace at any time, so tombstones of feed files are kept.
        """
        oldest = islice(self._removed_s.items(), max(0, len(self._removed_s) - REMOVED_MAX))
        until_s = self._now_s() - REMOVED_AGE_S
        # After a crash, the lobbies that have not ended end only if the tombstone exists.
        old_ids = [
            namespace_id
            for namespace_id, removed_s in oldest
            if removed_s <= until_s and not self.live_lobbies.live_versions(raw_id(namespace_id))
        ]
        if not old_ids:
            return
        try:
            await self.live_lobbies.wait_all_durable(
                asyncio.get_running_loop().time() + _DURABLE_TIMEOUT_S
            )
            await asyncio.to_thread(self._files.remove, old_ids)
        except (ServiceError, OSError) as error:
            _log.warning("old removals not forgotten", error=str(error))
            return
        for namespace_id in old_ids:
            del self._removed_s[namespace_id], self._order_of[namespace_id]
            self._namespaces.forget_removed(raw_id(namespace_id))

    async def _store_all(self, decisions: Sequence[_Decision]) -> None:
        accepted = [
            (decision.order, decision.namespace, decision.configuration)
            for decision in decisions
            if decision.namespace is not None
        ]
        if not accepted:
            return
        if any(decision.is_any_dropped for decision in decisions):
            # After a crash, a recovered lobby must find the rules of its version.
            await self.live_lobbies.wait_all_durable(
                asyncio.get_running_loop().time() + _DURABLE_TIMEOUT_S
            )
        await self._save(
            StoredNamespace(namespace.header.namespace_id, order, configuration)
            for order, namespace, configuration in accepted
        )
        for order, namespace, _ in accepted:
            self._put(order, namespace)

    async def _save(self, stored: Iterable[StoredNamespace]) -> None:
        namespaces = list(stored)
        try:
            await asyncio.to_thread(self._files.save, namespaces)
        except OSError as error:
            names = [namespace.namespace_id for namespace in namespaces]
            _log.error("configuration not stored", namespace_ids=names, error=str(error))
            raise ServiceError("STORAGE_FULL") from None
        for namespace in namespaces:
            _log.debug(
                "configuration removed"
                if namespace.configuration is None
                else "configuration applied",
                namespace_id=namespace.namespace_id,
                source_epoch=namespace.order[0],
                revision=namespace.order[1],
            )

    def _put(self, order: FeedOrder, namespace: PreparedNamespace) -> None:
        self._order_of[namespace.header.namespace_id] = order
        self._removed_s.pop(namespace.header.namespace_id, None)
        self._namespaces.put_namespace(namespace)
        self._on_change(namespace.header.namespace_id)

    def _forget(self, namespace_id: str, order: FeedOrder, removed_s: float) -> None:
        self._order_of[namespace_id] = order
        self._removed_s.pop(namespace_id, None)
        epoch, _ = order
        if epoch:
            self._removed_s[namespace_id] = removed_s
        self._namespaces.remove(raw_id(namespace_id))
        self._on_change(namespace_id)

    def _on_change(self, namespace_id: str) -> None:
        self._held_response = None
        self.on_namespace_changed(raw_id(namespace_id))
        self._counters.namespaces = len(self._namespaces)

    def _is_held(self, namespace_id: str) -> bool:
        return self._namespaces.is_known(raw_id(namespace_id))

    def _count(self, outcome: str) -> None:
        self._counters.count(outcome, self._now_s())


def _quota_refusal(name: str, limit: int, use: int) -> pb.ApplyResponse:
    quota = pb.QuotaUse(quota=name, limit=limit, use=use)
    reason = f"needs more than the {limit:,} bytes of {name}, of which {use:,} are in use"
    problem = pb.Problem(path=["current_version_id"], reason=reason)
    return pb.ApplyResponse(refused=pb.Refused(problems=[problem], quota=quota))


def _order(configuration: configuration_pb2.NamespaceConfiguration) -> FeedOrder:
    return configuration.source_epoch, configuration.revision


def _with_retained(
    configuration: configuration_pb2.NamespaceConfiguration, retention: RetainedVersions
) -> configuration_pb2.NamespaceConfiguration:
    copy = configuration_pb2.NamespaceConfiguration()
    copy.CopyFrom(configuration)
    del copy.retained_versions[:]
    copy.retained_versions.extend(retention.versions)
    return copy


def _claims(configuration: configuration_pb2.NamespaceConfiguration) -> set[Hashable]:
    return {
        configuration.namespace_id,
        (configuration.game.name_id, configuration.name_id),
        *public_hosts(configuration),
        *(token.sha256 for token in configuration.environment_tokens),
    }


def _stale(namespace_id: str, stored_order: FeedOrder) -> pb.Stale:
    return pb.Stale(
        held=pb.HeldConfiguration(
            namespace_id=namespace_id, source_epoch=stored_order[0], revision=stored_order[1]
        )
    )
