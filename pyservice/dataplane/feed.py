"""How configuration is taken: in order, whole or not at all, durable before it is acknowledged.

The handlers of `hosting.internal.v1.Feed`. What is refused is in `feed_rules`, files are in
`feed_files`, what is held is read through `namespaces`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from pyservice.dataplane.configuration import raw_id
from pyservice.dataplane.feed_files import FeedFiles, Kept, Order
from pyservice.dataplane.feed_rules import OperatorLimits, problems_of
from pyservice.dataplane.namespaces import Namespaces, public_hosts
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from pyservice.schema.validation import validate

_log = get_logger("feed")


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
        self._one_at_a_time = asyncio.Lock()

    def load(self) -> None:
        """Takes what an earlier run acknowledged. Raises FeedFileError.

        It was checked then; what the operator changed since does not take it away.
        """
        for kept in self._files.load():
            self._take(kept)

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
        return pb.HeldResponse(
            configurations=[
                pb.HeldConfiguration(
                    namespace_id=configuration.namespace_id,
                    source_epoch=configuration.source_epoch,
                    revision=configuration.revision,
                    current_version_id=configuration.current_version_id,
                )
                for configuration in self._namespaces
            ]
        )

    def check(self, configuration: configuration_pb2.NamespaceConfiguration) -> pb.ApplyResponse:
        """What `apply` would answer to this change; nothing is changed or counted. The pair that
        is held is stale here: it would change nothing.
        """
        held = self._orders.get(configuration.namespace_id)
        if held is not None and _order(configuration) <= held:
            return pb.ApplyResponse(stale=_stale(configuration.namespace_id, held))
        problems = problems_of(configuration, self._limits, self._namespaces)
        if problems:
            return pb.ApplyResponse(refused=pb.Refused(problems=problems))
        return pb.ApplyResponse(applied=pb.Applied())

    async def _apply(self, items: Iterable[pb.ManyItem]) -> list[pb.ApplyResponse]:
        answers: list[pb.ApplyResponse] = []
        kept: list[Kept] = []
        claimed: set[Hashable] = set()
        async with self._one_at_a_time:
            for item in items:
                claims = _claims(item.configuration)
                if kept and not claimed.isdisjoint(claims):
                    # It is to be judged with what is before it in place.
                    await self._keep(kept)
                    kept, claimed = [], set()
                answer = self._judge(item)
                answers.append(answer)
                if answer.HasField("applied") and not item.is_check:
                    order = _order(item.configuration)
                    if order != self._orders.get(item.configuration.namespace_id):
                        kept.append(
                            Kept(item.configuration.namespace_id, order, item.configuration)
                        )
                        claimed |= claims
            if kept:
                await self._keep(kept)
        for item, answer in zip(items, answers, strict=True):
            if not item.is_check:
                self._count(answer.WhichOneof("outcome") or "refused")
        return answers

    def _judge(self, item: pb.ManyItem) -> pb.ApplyResponse:
        """What becomes of it; the pair that is held already is as good as taken."""
        configuration = item.configuration
        namespace_id = configuration.namespace_id
        is_same = _order(configuration) == self._orders.get(namespace_id)
        if is_same and self._is_held(namespace_id) and not item.is_check:
            self._note_difference(configuration)
            return pb.ApplyResponse(applied=pb.Applied())
        return self.check(configuration)

    async def _remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        async with self._one_at_a_time:
            order = (request.source_epoch, request.revision)
            held = self._orders.get(request.namespace_id)
            is_held = self._is_held(request.namespace_id)
            if held is not None and (order < held or (order == held and is_held)):
                self._count("stale")
                return pb.RemoveResponse(stale=_stale(request.namespace_id, held))
            if order != held:
                await self._keep([Kept(request.namespace_id, order, None)])
            self._count("removed")
            return pb.RemoveResponse(removed=pb.Removed())

    async def _keep(self, several: Sequence[Kept]) -> None:
        # The caller's messages are not ours to hold on to.
        several = [replace(kept, configuration=_copy(kept.configuration)) for kept in several]
        try:
            await asyncio.to_thread(self._files.save, several)
        except OSError as error:
            names = [kept.namespace_id for kept in several]
            _log.error("configuration not kept", namespace_ids=names, error=str(error))
            raise ServiceError("STORAGE_FULL") from None
        for kept in several:
            self._take(kept)
            _log.debug(
                "configuration removed" if kept.configuration is None else "configuration taken",
                namespace_id=kept.namespace_id,
                source_epoch=kept.order[0],
                revision=kept.order[1],
            )

    def _take(self, kept: Kept) -> None:
        self._orders[kept.namespace_id] = kept.order
        if kept.configuration is None:
            self._namespaces.remove(raw_id(kept.namespace_id))
        else:
            self._namespaces.put(kept.configuration)
        self._counters.namespaces = len(self._namespaces)

    def _is_held(self, namespace_id: str) -> bool:
        return self._namespaces.is_known(raw_id(namespace_id))

    def _note_difference(self, configuration: configuration_pb2.NamespaceConfiguration) -> None:
        """Whoever changes a namespace but not its revision ought to find out. A control plane raises it with each
        change; what it says differs with the time too: what is over is left out.
        """
        if configuration.source_epoch:
            return
        if self._namespaces.configuration(raw_id(configuration.namespace_id)) != configuration:
            _log.warning(
                "configuration differs but its revision does not: raise the revision",
                namespace_id=configuration.namespace_id,
                revision=configuration.revision,
            )

    def _count(self, outcome: str) -> None:
        self._counters.count(outcome, self._now_s())


def _order(configuration: configuration_pb2.NamespaceConfiguration) -> Order:
    return configuration.source_epoch, configuration.revision


def _copy(
    configuration: configuration_pb2.NamespaceConfiguration | None,
) -> configuration_pb2.NamespaceConfiguration | None:
    if configuration is None:
        return None
    copy = type(configuration)()
    copy.CopyFrom(configuration)
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
