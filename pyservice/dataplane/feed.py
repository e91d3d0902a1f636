"""How configuration is taken: in order, whole or not at all, durable before it is acknowledged.

The handlers of `hosting.internal.v1.Feed`. What is refused is in `feed_rules`, files are in
`feed_files`, what is held is read through `namespaces`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from pyservice.dataplane.configuration import raw_id
from pyservice.dataplane.feed_files import FeedFiles, Kept, Order
from pyservice.dataplane.feed_rules import OperatorLimits, problems_of
from pyservice.dataplane.namespaces import Namespaces
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
        return await asyncio.shield(self._apply(request))

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

    async def check_only(self, request: pb.CheckRequest) -> pb.CheckResponse:
        """What `apply` would answer; nothing is changed."""
        answer = self.check(request.configuration)
        return pb.CheckResponse.FromString(answer.SerializeToString())

    def check(self, configuration: configuration_pb2.NamespaceConfiguration) -> pb.ApplyResponse:
        """What `apply` would answer to this change; nothing is changed or counted. The pair that
        is held is stale here: it would change nothing.
        """
        order = (configuration.source_epoch, configuration.revision)
        held = self._orders.get(configuration.namespace_id)
        if held is not None and order <= held:
            return pb.ApplyResponse(stale=_stale(configuration.namespace_id, held))
        problems = problems_of(configuration, self._limits, self._namespaces)
        if problems:
            return pb.ApplyResponse(refused=pb.Refused(problems=problems))
        return pb.ApplyResponse(applied=pb.Applied())

    async def _apply(self, request: pb.ApplyRequest) -> pb.ApplyResponse:
        configuration = request.configuration
        namespace_id = configuration.namespace_id
        order = (configuration.source_epoch, configuration.revision)
        async with self._one_at_a_time:
            if order == self._orders.get(namespace_id) and self._is_held(namespace_id):
                self._note_difference(request)
                answer = pb.ApplyResponse(applied=pb.Applied())
            else:
                answer = self.check(configuration)
                if answer.HasField("applied"):
                    await self._keep(Kept(namespace_id, order, configuration))
            self._count(answer.WhichOneof("outcome") or "refused")
            return answer

    async def _remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        async with self._one_at_a_time:
            order = (request.source_epoch, request.revision)
            held = self._orders.get(request.namespace_id)
            is_held = self._is_held(request.namespace_id)
            if held is not None and (order < held or (order == held and is_held)):
                self._count("stale")
                return pb.RemoveResponse(stale=_stale(request.namespace_id, held))
            if order != held:
                await self._keep(Kept(request.namespace_id, order, None))
            self._count("removed")
            return pb.RemoveResponse(removed=pb.Removed())

    async def _keep(self, kept: Kept) -> None:
        if kept.configuration is not None:
            # The caller's message is not ours to hold on to.
            copy = type(kept.configuration)()
            copy.CopyFrom(kept.configuration)
            kept = replace(kept, configuration=copy)
        try:
            await asyncio.to_thread(self._files.save, kept)
        except OSError as error:
            _log.error("configuration not kept", namespace_id=kept.namespace_id, error=str(error))
            raise ServiceError("STORAGE_FULL") from None
        self._take(kept)
        _log.info(
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

    def _note_difference(self, request: pb.ApplyRequest) -> None:
        """Whoever changes a namespace but not its revision ought to find out."""
        configuration = request.configuration
        if self._namespaces.configuration(raw_id(configuration.namespace_id)) != configuration:
            _log.warning(
                "configuration differs but its revision does not: raise the revision",
                namespace_id=configuration.namespace_id,
                revision=configuration.revision,
            )

    def _count(self, outcome: str) -> None:
        self._counters.count(outcome, self._now_s())


def _stale(namespace_id: str, held: Order) -> pb.Stale:
    return pb.Stale(
        held=pb.HeldConfiguration(namespace_id=namespace_id, source_epoch=held[0], revision=held[1])
    )
