"""Namespaces with unconfirmed changes, and the lanes of the feeder in which they wait.

Revocations have a lane of their own. In each lane, developer groups take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyservice.control.batching import Batcher
from pyservice.control.feed_messages import ComposeRequest
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import configuration_pb2

_COMPOSED_AT_ONCE: Final = 8
"""A message of 600 KiB takes 2 to 10 ms to compose."""

Message = configuration_pb2.NamespaceConfiguration


@dataclass(eq=False, slots=True)
class Confirmation:
    """Wait of a request until the data plane has applied its change of a namespace.

    `version_id` is the version that the request sets, or None. If the data plane refuses this
    version, the request fails.
    """

    version_id: str | None = None
    namespace_id: str = ""
    """Empty before the change is enqueued."""
    number: int = 0
    """Number of the change."""
    error: ServiceError | None = None
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_enqueued(self) -> bool:
        return bool(self.namespace_id)


@dataclass(slots=True)
class PendingNamespace:
    group_id: str
    since: float
    """First change, in seconds of the event loop's clock."""
    number: int = 0
    revocation_number: int = 0
    """Number of the last unconfirmed change that is a revocation, or 0."""
    retry_timer: asyncio.TimerHandle | None = None
    waiting: set[Confirmation] = field(default_factory=set)

    def end_waits(
        self, concerns: Callable[[Confirmation], bool], error: ServiceError | None = None
    ) -> None:
        for confirmation in [one for one in self.waiting if concerns(one)]:
            self.waiting.discard(confirmation)
            confirmation.error = error
            confirmation.has_ended.set()


class FeedLane:
    """Queue of namespaces that wait for one of the lane's senders, and composer of their messages.

    Each group has a line in order of arrival, and the lines take turns. A namespace is in its line
    at most once.
    """

    def __init__(
        self,
        compose: Callable[[Sequence[ComposeRequest]], Awaitable[Sequence[Message | None]]],
        *,
        senders: int,
        is_for_revocations: bool,
    ) -> None:
        self.senders = senders
        self.is_for_revocations = is_for_revocations
        self._messages = Batcher(
            compose,
            at_once=_COMPOSED_AT_ONCE,
            is_of_one=lambda error: not isinstance(error, ServiceError),
        )
        self._lines: dict[str, dict[str, None]] = {}
        """Waiting namespaces of each group. The first group has the next turn."""
        self._added = asyncio.Semaphore(0)

    def put(self, namespace_id: str, group_id: str) -> None:
        self._lines.setdefault(group_id, {})[namespace_id] = None
        self._added.release()

    def discard(self, namespace_id: str, group_id: str) -> bool:
        """Removes a namespace. Returns False if it does not wait in this lane."""
        line = self._lines.get(group_id, {})
        if namespace_id not in line:
            return False
        del line[namespace_id]
        if not line:
            del self._lines[group_id]
        return True

    async def get(self) -> str:
        """Waits for a namespace and removes it from the lane."""
        while True:
            await self._added.acquire()
            # A discarded namespace leaves its permit behind.
            if self._lines:
                return self._next()

    def _next(self) -> str:
        group_id = next(iter(self._lines))
        line = self._lines.pop(group_id)
        namespace_id = next(iter(line))
        del line[namespace_id]
        if line:
            self._lines[group_id] = line
        return namespace_id

    async def compose(self, request: ComposeRequest, group_id: str) -> Message | None:
        """Returns the message of a namespace, or None for a namespace without a record."""
        return await self._messages.add(request, group_id)
