"""How configuration is taken: in order, whole or not at all, durable before it is acknowledged.

The handlers of `hosting.internal.v1.Feed`. What is refused is in `feed_rules`, what is kept of earlier
versions in `retained`, files are in `feed_files`, what is held is read through `namespaces`. What takes
time is done in a thread, beside the calls of players: large messages, and files.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from pyservice.dataplane.feed_files import FeedFiles, FeedOrder, StoredNamespace
from pyservice.dataplane.feed_validation import (
    Finding,
    OperatorLimits,
    conflict_problems,
    own_problems,
)
from pyservice.dataplane.namespace_index import (
    NamespaceIndex,
    PreparedNamespace,
    content_digest,
    prepare_namespace,
    public_hosts,
)
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from pyservice.schema.validation import validate

RETAINED_MAX: Final = 1_000
RETAINED_BYTES_MAX: Final = 1024 * 1024
"""Of one namespace, in sum: a token that is revoked has to get to the disk with all of it."""

LiveVersions = Callable[[bytes], Collection[bytes]]
"""Versions of the lobbies of a namespace that have not ended."""


class RetainedVersions(NamedTuple):
    """What a namespace keeps when it takes a configuration."""

    versions: tuple[configuration_pb2.Version, ...] = ()
    is_any_dropped: bool = False
    """A version that was kept has no lobby any more. The end of its last one may not be durable yet."""


def retain_versions(
    configuration: configuration_pb2.NamespaceConfiguration,
    held: configuration_pb2.NamespaceConfiguration | None,
    live_versions: LiveVersions,
    now_ms: int,
) -> RetainedVersions:
    """Of the versions that are held and not in what comes: those with a lobby, and the one that runs now, of which
    lobbies are made until the other is in its place. One that is retired now is since `now_ms`.
    """
    if held is None:
        return RetainedVersions()
    known = {one.version_id: one for one in (*held.retained_versions, *held.versions)}
    for version in configuration.versions:
        known.pop(version.version_id, None)
    needed = {held.current_version_id} & known.keys()
    if needed != known.keys():
        live = live_versions(raw_id(held.namespace_id))
        needed |= {version_id for version_id in known if raw_id(version_id) in live}
    versions = tuple(_retired(known[version_id], now_ms) for version_id in sorted(needed))
    return RetainedVersions(versions, len(needed) < len(known))


def _retired(version: configuration_pb2.Version, now_ms: int) -> configuration_pb2.Version:
    kept = admission_rules_only(version)
    kept.retired_ts_ms = version.retired_ts_ms or now_ms
    return kept


def admission_rules_only(version: configuration_pb2.Version) -> configuration_pb2.Version:
    """A version without all that only new lobbies need. Modes that ask nothing stay: they ask nothing."""
    kept = configuration_pb2.Version(
        version_id=version.version_id, display_name=version.display_name
    )
    matchmaker = version.matchmaker
    if matchmaker.HasField("captcha"):
        kept.matchmaker.captcha.CopyFrom(matchmaker.captcha)
    for name, mode in matchmaker.game_modes.items():
        reduced = kept.matchmaker.game_modes[name]
        if mode.actions.join.HasField("verification"):
            reduced.actions.join.CopyFrom(mode.actions.join)
        if mode.HasField("max_drain_ms"):
            reduced.max_drain_ms = mode.max_drain_ms
    return kept


def retention_problems(
    retention: RetainedVersions, held: configuration_pb2.NamespaceConfiguration | None
) -> Iterator[Finding]:
    """What stands against a change that keeps more than before; one that keeps no more always goes."""
    before = {one.version_id for one in held.retained_versions} if held else set()
    if {one.version_id for one in retention.versions} <= before:
        return
    path = ("current_version_id",)
    if len(retention.versions) > RETAINED_MAX:
        yield (
            path,
            f"cannot be switched to while lobbies of {len(retention.versions):,} other versions run, at most "
            f"{RETAINED_MAX:,}: end lobbies of older versions first",
        )
    size = sum(one.ByteSize() for one in retention.versions)
    if size > RETAINED_BYTES_MAX:
        yield (
            path,
            f"cannot be switched to while lobbies of {len(retention.versions):,} other versions run: captcha and "
            f"verification of these take {size:,} bytes, at most {RETAINED_BYTES_MAX:,} are kept; end lobbies of "
            "older versions first",
        )


_ON_LOOP_BYTES_MAX: Final = 16 * 1024
"""Judging and resolving it takes the loop a millisecond or two."""
_VALID_DIGESTS_MAX: Final = 1_024
_DURABLE_TIMEOUT_S: Final = 5.0
"""Who feeds comes again when the journal takes longer."""

_log = get_logger("feed")


class LiveLobbies(Protocol):
    """The engine, as far as configuration needs it. Asked from any thread."""

    def live_versions(self, namespace: bytes) -> Collection[bytes]: ...
    async def wait_all_durable(self, deadline: float | None) -> None: ...


class NoLiveLobbies:
    """Before there is an engine, and where there is none."""

    def live_versions(self, namespace: bytes) -> Collection[bytes]:
        return ()

    async def wait_all_durable(self, deadline: float | None) -> None:
        return None


class _Decision(NamedTuple):
    """What becomes of an item. `prepared` None: nothing is to be taken."""

    answer: pb.ApplyResponse
    order: FeedOrder = (0, 0)
    prepared: PreparedNamespace | None = None
    is_any_dropped: bool = False


class FeedCounters(Protocol):
    """What is counted."""

    namespaces: int

    def count(self, outcome: str, now_s: float) -> None: ...


class ConfigurationFeed:
    """Takes and removes namespaces. One message at a time."""

    def __init__(
        self,
        files: FeedFiles,
        namespaces: NamespaceIndex,
        limits: OperatorLimits,
        counters: FeedCounters,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._namespaces = namespaces
        self._limits = limits
        self._counters = counters
        self._now_s = now_s
        self._orders: dict[str, FeedOrder] = {}
        self._valid_digests: OrderedDict[str, bytes] = OrderedDict()
        """By namespace the digest of the last message that keeps all rules of its own."""
        self._held_response: pb.HeldResponse | None = None
        """The answer of `held`, as long as nothing changes."""
        self.live_lobbies: LiveLobbies = NoLiveLobbies()
        """Set before anything is taken."""
        self.on_namespace_changed: Callable[[bytes], None] = lambda namespace_id: None
        """Called with each namespace that was taken or removed."""
        self._lock = asyncio.Lock()

    def load(self) -> None:
        """Takes what an earlier run acknowledged. Raises FeedFileError.

        It was checked then; what the operator changed since does not take it away.
        """
        for kept in self._files.load():
            if kept.configuration is None:
                self._forget(kept.namespace_id, kept.order)
            else:
                self._take(kept.order, prepare_namespace(kept.configuration))

    async def apply(self, request: pb.ApplyRequest) -> pb.ApplyResponse:
        """Takes one namespace. Raises STORAGE_FULL when it cannot be kept; nothing changed then."""
        # A caller that goes away must not leave a file half replaced beside the next message.
        item = pb.ManyItem(configuration=request.configuration)
        return (await asyncio.shield(self._apply([item])))[0]

    async def apply_many(self, request: pb.ApplyManyRequest) -> pb.ApplyManyResponse:
        """Takes many, synced together. Raises STORAGE_FULL when some cannot be kept; those are as they were."""
        answers = await asyncio.shield(self._apply(request.items))
        return pb.ApplyManyResponse(answers=answers)

    async def remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        """Removes one namespace and remembers when: a late message does not bring it back."""
        problems = validate(request)
        if problems:
            raise ServiceError("BODY_INVALID", errors=problems)
        return await asyncio.shield(self._remove(request))

    async def held(self, request: pb.HeldRequest) -> pb.HeldResponse:
        """What is held."""
        if self._held_response is None:
            self._held_response = pb.HeldResponse(
                configurations=(
                    pb.HeldConfiguration(
                        namespace_id=configuration.namespace_id,
                        source_epoch=configuration.source_epoch,
                        revision=configuration.revision,
                        current_version_id=configuration.current_version_id,
                        name=f"{configuration.game.name_id}/{configuration.name_id}",
                        content=self._namespaces.content(raw_id(configuration.namespace_id)),
                    )
                    for configuration in self._namespaces
                )
            )
        return self._held_response

    async def check(
        self, configuration: configuration_pb2.NamespaceConfiguration
    ) -> pb.ApplyResponse:
        """What `apply` would answer to this change; nothing is changed or counted. The pair that
        is held is stale here: it would change nothing.
        """
        item = pb.ManyItem(configuration=configuration, is_check=True)
        return (await asyncio.shield(self._apply([item])))[0]

    async def _apply(self, items: Sequence[pb.ManyItem]) -> list[pb.ApplyResponse]:
        answers: list[pb.ApplyResponse] = []
        async with self._lock:
            # Nobody else changes what is held, so a thread may look at it.
            size = sum(map(self._size, items))
            while len(answers) < len(items):
                rest = items[len(answers) :]
                if size <= _ON_LOOP_BYTES_MAX:
                    several = self._decide_some(rest)
                else:
                    several = await asyncio.to_thread(self._decide_some, rest)
                await self._store_all(several)
                answers += (judged.answer for judged in several)
        for item, answer in zip(items, answers, strict=True):
            if not item.is_check:
                self._count(answer.WhichOneof("outcome") or "refused")
        return answers

    def _size(self, item: pb.ManyItem) -> int:
        """Bytes to go through: what comes, and what is held of it."""
        return item.ByteSize() + self._namespaces.size(item.configuration.namespace_id)

    def _decide_some(self, items: Sequence[pb.ManyItem]) -> list[_Decision]:
        """The first, and those after it up to one that has to be judged with what is before it in place."""
        several: list[_Decision] = []
        claimed: set[Hashable] = set()
        for item in items:
            claims = _claims(item.configuration)
            if not claimed.isdisjoint(claims):
                break
            judged = self._decide(item)
            several.append(judged)
            if judged.prepared is not None:
                claimed |= claims
                # What it gives up is free when it is taken, and not before.
                held = self._namespaces.configuration(raw_id(item.configuration.namespace_id))
                if held is not None:
                    claimed |= _claims(held)
        return several

    def _decide(self, item: pb.ManyItem) -> _Decision:
        """What becomes of it; what is held already is as good as taken. The pair that is held with another content is
        stale: which of two changes of one number is the later one, only their source can say, by a greater number.
        """
        configuration = item.configuration
        namespace_id, order = configuration.namespace_id, _order(configuration)
        content = content_digest(configuration)
        last = self._orders.get(namespace_id)
        is_repeated = order == last and content == self._namespaces.content(raw_id(namespace_id))
        if is_repeated and not item.is_check:
            return _Decision(pb.ApplyResponse(applied=pb.Applied()))
        if last is not None and order <= last:
            return _Decision(pb.ApplyResponse(stale=_stale(namespace_id, last)))
        problems = self._problems(configuration, content)
        retention = RetainedVersions()
        if not problems:
            held = self._namespaces.configuration(raw_id(namespace_id))
            retention = retain_versions(
                configuration, held, self.live_lobbies.live_versions, int(self._now_s() * 1000)
            )
            problems += (
                pb.Problem(path=path, reason=reason)
                for path, reason in retention_problems(retention, held)
            )
        if problems:
            return _Decision(pb.ApplyResponse(refused=pb.Refused(problems=problems)))
        applied = pb.ApplyResponse(applied=pb.Applied())
        if item.is_check:
            return _Decision(applied)
        prepared = prepare_namespace(_with_retained(configuration, retention))
        return _Decision(applied, order, prepared, retention.is_any_dropped)

    def _problems(
        self, configuration: configuration_pb2.NamespaceConfiguration, content: bytes
    ) -> list[pb.Problem]:
        """A change is looked at before it comes: the same message is not judged twice."""
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
            held = self._orders.get(request.namespace_id)
            is_held = self._is_held(request.namespace_id)
            if held is not None and (order < held or (order == held and is_held)):
                self._count("stale")
                return pb.RemoveResponse(stale=_stale(request.namespace_id, held))
            if order != held:
                await self._save([StoredNamespace(request.namespace_id, order, None)])
                self._forget(request.namespace_id, order)
            self._count("removed")
            return pb.RemoveResponse(removed=pb.Removed())

    async def _store_all(self, several: Sequence[_Decision]) -> None:
        """Takes what is to be taken, when it is durable."""
        taken = [(one.order, one.prepared) for one in several if one.prepared is not None]
        if not taken:
            return
        if any(one.is_any_dropped for one in several):
            # A lobby that comes back after a crash finds its rules.
            await self.live_lobbies.wait_all_durable(
                asyncio.get_running_loop().time() + _DURABLE_TIMEOUT_S
            )
        await self._save(
            StoredNamespace(prepared.configuration.namespace_id, order, prepared.configuration)
            for order, prepared in taken
        )
        for order, prepared in taken:
            self._take(order, prepared)

    async def _save(self, kept: Iterable[StoredNamespace]) -> None:
        several = list(kept)
        try:
            await asyncio.to_thread(self._files.save, several)
        except OSError as error:
            names = [one.namespace_id for one in several]
            _log.error("configuration not kept", namespace_ids=names, error=str(error))
            raise ServiceError("STORAGE_FULL") from None
        for one in several:
            _log.debug(
                "configuration removed" if one.configuration is None else "configuration taken",
                namespace_id=one.namespace_id,
                source_epoch=one.order[0],
                revision=one.order[1],
            )

    def _take(self, order: FeedOrder, prepared: PreparedNamespace) -> None:
        self._orders[prepared.configuration.namespace_id] = order
        self._namespaces.take(prepared)
        self._changed(prepared.configuration.namespace_id)

    def _forget(self, namespace_id: str, order: FeedOrder) -> None:
        self._orders[namespace_id] = order
        self._namespaces.remove(raw_id(namespace_id))
        self._changed(namespace_id)

    def _changed(self, namespace_id: str) -> None:
        self._held_response = None
        self.on_namespace_changed(raw_id(namespace_id))
        self._counters.namespaces = len(self._namespaces)

    def _is_held(self, namespace_id: str) -> bool:
        return self._namespaces.is_known(raw_id(namespace_id))

    def _count(self, outcome: str) -> None:
        self._counters.count(outcome, self._now_s())


def _order(configuration: configuration_pb2.NamespaceConfiguration) -> FeedOrder:
    return configuration.source_epoch, configuration.revision


def _with_retained(
    configuration: configuration_pb2.NamespaceConfiguration, retention: RetainedVersions
) -> configuration_pb2.NamespaceConfiguration:
    """A copy, with what is retained: the caller's message is not ours to hold on to."""
    copy = configuration_pb2.NamespaceConfiguration()
    copy.CopyFrom(configuration)
    del copy.retained_versions[:]
    copy.retained_versions.extend(retention.versions)
    return copy


def _claims(configuration: configuration_pb2.NamespaceConfiguration) -> set[Hashable]:
    """What no other namespace may have."""
    return {
        configuration.namespace_id,
        (configuration.game.name_id, configuration.name_id),
        *public_hosts(configuration),
        *(token.sha256 for token in configuration.environment_tokens),
    }


def _stale(namespace_id: str, held: FeedOrder) -> pb.Stale:
    return pb.Stale(
        held=pb.HeldConfiguration(namespace_id=namespace_id, source_epoch=held[0], revision=held[1])
    )
