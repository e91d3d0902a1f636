"""How configuration is taken: in order, whole or not at all, durable before it is acknowledged.

The handlers of `hosting.internal.v1.Feed`. What is refused is in `feed_rules`, what is kept of earlier
versions in `retained`, files are in `feed_files`, what is held is read through `namespaces`. What takes
time is done in a thread, beside the calls of players: large messages, and files.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from pyservice.dataplane.configuration import raw_id
from pyservice.dataplane.feed_files import FeedFiles, Kept, Order
from pyservice.dataplane.feed_rules import OperatorLimits, claim_problems, own_problems
from pyservice.dataplane.namespaces import (
    Namespaces,
    Prepared,
    content_of,
    prepare,
    public_hosts,
)
from pyservice.dataplane.retained import Retention, problems_of_retention, retain
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from pyservice.schema.validation import validate

_ON_LOOP_BYTES_MAX: Final = 16 * 1024
"""Judging and resolving it takes the loop a millisecond or two."""
_FOUND_GOOD_MAX: Final = 1_024
_SETTLE_S: Final = 5.0
"""Who feeds comes again when the journal takes longer."""

_log = get_logger("feed")


class Lobbies(Protocol):
    """The engine, as far as configuration needs it. Asked from any thread."""

    def live_versions(self, namespace: bytes) -> Collection[bytes]: ...
    async def all_settled(self, deadline: float | None) -> None: ...


class NoLobbies:
    """Before there is an engine, and where there is none."""

    def live_versions(self, namespace: bytes) -> Collection[bytes]:
        return ()

    async def all_settled(self, deadline: float | None) -> None:
        return None


class _Judged(NamedTuple):
    """What becomes of an item. `prepared` None: nothing is to be taken."""

    answer: pb.ApplyResponse
    order: Order = (0, 0)
    prepared: Prepared | None = None
    is_any_dropped: bool = False


class Counters(Protocol):
    """What is counted."""

    namespaces: int

    def count(self, outcome: str, now_s: float) -> None: ...


class Feed:
    """Takes and removes namespaces. One message at a time."""

    def __init__(
        self,
        files: FeedFiles,
        namespaces: Namespaces,
        limits: OperatorLimits,
        counters: Counters,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._namespaces = namespaces
        self._limits = limits
        self._counters = counters
        self._now_s = now_s
        self._orders: dict[str, Order] = {}
        self._found_good: OrderedDict[str, bytes] = OrderedDict()
        """By namespace the digest of the last message that keeps all rules of its own."""
        self._held: pb.HeldResponse | None = None
        """The answer of `held`, as long as nothing changes."""
        self.lobbies: Lobbies = NoLobbies()
        """Set before anything is taken."""
        self.heard: Callable[[bytes], None] = lambda namespace_id: None
        """Called with each namespace that was taken or removed."""
        self._one_at_a_time = asyncio.Lock()

    def load(self) -> None:
        """Takes what an earlier run acknowledged. Raises FeedFileError.

        It was checked then; what the operator changed since does not take it away.
        """
        for kept in self._files.load():
            if kept.configuration is None:
                self._forget(kept.namespace_id, kept.order)
            else:
                self._take(kept.order, prepare(kept.configuration))

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
        if self._held is None:
            self._held = pb.HeldResponse(
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
        return self._held

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
        async with self._one_at_a_time:
            # Nobody else changes what is held, so a thread may look at it.
            size = sum(map(self._size, items))
            while len(answers) < len(items):
                rest = items[len(answers) :]
                if size <= _ON_LOOP_BYTES_MAX:
                    several = self._judge_some(rest)
                else:
                    several = await asyncio.to_thread(self._judge_some, rest)
                await self._keep(several)
                answers += (judged.answer for judged in several)
        for item, answer in zip(items, answers, strict=True):
            if not item.is_check:
                self._count(answer.WhichOneof("outcome") or "refused")
        return answers

    def _size(self, item: pb.ManyItem) -> int:
        """Bytes to go through: what comes, and what is held of it."""
        return item.ByteSize() + self._namespaces.size(item.configuration.namespace_id)

    def _judge_some(self, items: Sequence[pb.ManyItem]) -> list[_Judged]:
        """The first, and those after it up to one that has to be judged with what is before it in place."""
        several: list[_Judged] = []
        claimed: set[Hashable] = set()
        for item in items:
            claims = _claims(item.configuration)
            if not claimed.isdisjoint(claims):
                break
            judged = self._judge(item)
            several.append(judged)
            if judged.prepared is not None:
                claimed |= claims
                # What it gives up is free when it is taken, and not before.
                held = self._namespaces.configuration(raw_id(item.configuration.namespace_id))
                if held is not None:
                    claimed |= _claims(held)
        return several

    def _judge(self, item: pb.ManyItem) -> _Judged:
        """What becomes of it; what is held already is as good as taken. The pair that is held with another content is
        stale: which of two changes of one number is the later one, only their source can say, by a greater number.
        """
        configuration = item.configuration
        namespace_id, order = configuration.namespace_id, _order(configuration)
        content = content_of(configuration)
        last = self._orders.get(namespace_id)
        is_repeated = order == last and content == self._namespaces.content(raw_id(namespace_id))
        if is_repeated and not item.is_check:
            return _Judged(pb.ApplyResponse(applied=pb.Applied()))
        if last is not None and order <= last:
            return _Judged(pb.ApplyResponse(stale=_stale(namespace_id, last)))
        problems = self._problems(configuration, content)
        retention = Retention()
        if not problems:
            held = self._namespaces.configuration(raw_id(namespace_id))
            retention = retain(
                configuration, held, self.lobbies.live_versions, int(self._now_s() * 1000)
            )
            problems += (
                pb.Problem(path=path, reason=reason)
                for path, reason in problems_of_retention(retention, held)
            )
        if problems:
            return _Judged(pb.ApplyResponse(refused=pb.Refused(problems=problems)))
        applied = pb.ApplyResponse(applied=pb.Applied())
        if item.is_check:
            return _Judged(applied)
        prepared = prepare(_kept(configuration, retention))
        return _Judged(applied, order, prepared, retention.is_any_dropped)

    def _problems(
        self, configuration: configuration_pb2.NamespaceConfiguration, content: bytes
    ) -> list[pb.Problem]:
        """A change is looked at before it comes: the same message is not judged twice."""
        namespace_id = configuration.namespace_id
        problems = []
        if self._found_good.get(namespace_id) != content:
            problems = own_problems(configuration, self._limits, self._namespaces)
        if not problems:
            self._found_good[namespace_id] = content
            self._found_good.move_to_end(namespace_id)
            if len(self._found_good) > _FOUND_GOOD_MAX:
                self._found_good.popitem(last=False)
        return problems + claim_problems(configuration, self._namespaces)

    async def _remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        async with self._one_at_a_time:
            order = (request.source_epoch, request.revision)
            held = self._orders.get(request.namespace_id)
            is_held = self._is_held(request.namespace_id)
            if held is not None and (order < held or (order == held and is_held)):
                self._count("stale")
                return pb.RemoveResponse(stale=_stale(request.namespace_id, held))
            if order != held:
                await self._save([Kept(request.namespace_id, order, None)])
                self._forget(request.namespace_id, order)
            self._count("removed")
            return pb.RemoveResponse(removed=pb.Removed())

    async def _keep(self, several: Sequence[_Judged]) -> None:
        """Takes what is to be taken, when it is durable."""
        taken = [(one.order, one.prepared) for one in several if one.prepared is not None]
        if not taken:
            return
        if any(one.is_any_dropped for one in several):
            # A lobby that comes back after a crash finds its rules.
            await self.lobbies.all_settled(asyncio.get_running_loop().time() + _SETTLE_S)
        await self._save(
            Kept(prepared.configuration.namespace_id, order, prepared.configuration)
            for order, prepared in taken
        )
        for order, prepared in taken:
            self._take(order, prepared)

    async def _save(self, kept: Iterable[Kept]) -> None:
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

    def _take(self, order: Order, prepared: Prepared) -> None:
        self._orders[prepared.configuration.namespace_id] = order
        self._namespaces.take(prepared)
        self._changed(prepared.configuration.namespace_id)

    def _forget(self, namespace_id: str, order: Order) -> None:
        self._orders[namespace_id] = order
        self._namespaces.remove(raw_id(namespace_id))
        self._changed(namespace_id)

    def _changed(self, namespace_id: str) -> None:
        self._held = None
        self.heard(raw_id(namespace_id))
        self._counters.namespaces = len(self._namespaces)

    def _is_held(self, namespace_id: str) -> bool:
        return self._namespaces.is_known(raw_id(namespace_id))

    def _count(self, outcome: str) -> None:
        self._counters.count(outcome, self._now_s())


def _order(configuration: configuration_pb2.NamespaceConfiguration) -> Order:
    return configuration.source_epoch, configuration.revision


def _kept(
    configuration: configuration_pb2.NamespaceConfiguration, retention: Retention
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


def _stale(namespace_id: str, held: Order) -> pb.Stale:
    return pb.Stale(
        held=pb.HeldConfiguration(namespace_id=namespace_id, source_epoch=held[0], revision=held[1])
    )
