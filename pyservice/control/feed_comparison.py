"""Comparison of the configurations in the data plane with the control plane's records."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from itertools import islice
from typing import Final

from pyservice.control.batching import Batcher
from pyservice.control.feed_messages import ComposeRequest, namespace_name
from pyservice.control.retrying_job import RetryingJob
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.schema.message_digest import message_digest
from pyservice.storage.database import Record

HeldByNamespace = Mapping[str, feed_pb2.HeldConfiguration]


class HeldConfigurations:
    def __init__(self, source_epoch: int) -> None:
        self._epoch = source_epoch
        self._held: dict[str, feed_pb2.HeldConfiguration] = {}
        self._news: dict[str, feed_pb2.HeldConfiguration] = {}
        """Acknowledged messages since the last read began. The response of that read may be older."""
        self.orphans: dict[str, feed_pb2.HeldConfiguration] = {}

    def begin_read(self) -> None:
        """Marks the start of a read of the data plane's configurations.

        Messages that the data plane acknowledges after this call override the response to the read.
        """
        self._news = {}

    def take(self, answer: feed_pb2.HeldResponse) -> None:
        self._held = {one.namespace_id: one for one in answer.configurations} | self._news

    def acknowledged(self, message: configuration_pb2.NamespaceConfiguration) -> None:
        held = self._held[message.namespace_id] = feed_pb2.HeldConfiguration(
            namespace_id=message.namespace_id,
            source_epoch=message.source_epoch,
            revision=message.revision,
            current_version_id=message.current_version_id,
            name=namespace_name(message),
        )
        self._news[message.namespace_id] = held

    def version_id(self, namespace_id: str) -> str:
        held = self._held.get(namespace_id)
        return held.current_version_id if held else ""

    def has_lost_state(self, answer: feed_pb2.HeldResponse) -> bool:
        held = {one.namespace_id: order_key(one) for one in answer.configurations}
        return any(
            order_key(known) > held.get(name, (0, 0))
            for name, known in self._held.items()
            if name not in self._news
        )

    def differing_ids(self, rows: Sequence[Record]) -> Iterator[str]:
        for row in rows:
            held = self._held.get(row.namespace_id)
            if held is None or order_key(held) != (self._epoch, row.revision):
                yield row.namespace_id

    def reported_for(
        self, rows: Sequence[Record], different: Collection[str]
    ) -> list[feed_pb2.HeldConfiguration]:
        return [
            self._held[row.namespace_id]
            for row in rows
            if row.namespace_id not in different and row.namespace_id not in self._news
        ]

    def update_orphans(self, rows: Sequence[Record]) -> bool:
        """Updates `orphans`, and returns True if the set of orphaned namespaces changed.

        `rows` are the namespace records, read after the data plane's configurations. Otherwise a
        new namespace could look orphaned.
        """
        orphans = find_orphans(self._held, rows)
        is_news = orphans.keys() != self.orphans.keys()
        self.orphans = orphans
        return is_news


def find_orphans(
    held: HeldByNamespace, rows: Sequence[Record]
) -> dict[str, feed_pb2.HeldConfiguration]:
    """Returns the data plane's configurations of namespaces without a record, except those from a
    feed file (`--feed`).
    """
    known = {row.namespace_id for row in rows}
    return {name: one for name, one in held.items() if one.source_epoch and name not in known}


def order_key(held: feed_pb2.HeldConfiguration) -> tuple[int, int]:
    return held.source_epoch, held.revision


_AT_ONCE: Final = 16
_ON_LOOP_BYTES_MAX: Final = 16 * 1024
"""Larger messages are hashed in a thread."""
_REST: Final = 4
"""Pause after each comparison step, as a multiple of the step's duration."""
_AGAIN_S: Final = 30.0

Message = configuration_pb2.NamespaceConfiguration
HeldConfiguration = feed_pb2.HeldConfiguration
Compose = Callable[[Sequence[ComposeRequest]], Awaitable[Sequence[Message | None]]]


class ContentComparison:
    """Compares the contents of configurations that have the same revision on both planes.

    The contents can differ after a restore from a backup, because revisions are then used again.
    """

    def __init__(
        self, compose: Compose, differs: Callable[[str], None], going: RetryingJob
    ) -> None:
        # This batcher is separate from the feeder's, so that messages do not wait for comparisons.
        self._messages = Batcher(compose, is_of_one=lambda error: not going.is_expected(error))
        self._differs = differs
        self._going = going
        self._left: dict[str, HeldConfiguration] = {}
        self._retry_later: dict[str, HeldConfiguration] = {}
        self._logged: set[str] = set()
        self._is_any = asyncio.Event()

    def compare(self, held: Iterable[HeldConfiguration]) -> None:
        self._left = {one.namespace_id: one for one in held}
        self._retry_later = {}
        self._is_any.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        pauses = self._going.new_backoff()
        while True:
            await self._until_any()
            began_s = loop.time()
            if await self._going.attempt(self._some) is not None:
                await pauses.wait()
                continue
            pauses.reset()
            await asyncio.sleep((loop.time() - began_s) * _REST)

    async def _until_any(self) -> None:
        try:
            async with asyncio.timeout(_AGAIN_S if self._retry_later else None):
                await self._is_any.wait()
        except TimeoutError:
            self.compare(self._retry_later.values())

    async def _some(self) -> None:
        left = self._left
        some = list(islice(left.values(), _AT_ONCE))
        composing = (self._messages.add(ComposeRequest(one.namespace_id)) for one in some)
        composed = await asyncio.gather(*composing, return_exceptions=True)
        broken: dict[str, Exception] = {}
        for held, found in zip(some, composed, strict=True):
            if isinstance(found, BaseException):
                broken[held.namespace_id] = self._of_one(found)
                self._retry_later[held.namespace_id] = held
            elif found is not None and await _is_other(found, held):
                self._differs(held.namespace_id)
            left.pop(held.namespace_id, None)
        self._report(broken, {one.namespace_id for one in some})
        if not self._left:
            self._is_any.clear()

    def _of_one(self, error: BaseException) -> Exception:
        if not isinstance(error, Exception) or self._going.is_expected(error):
            raise error
        return error

    def _report(self, broken: Mapping[str, Exception], looked_at: Set[str]) -> None:
        """Logs one traceback for all namespaces that newly failed. Logging each traceback would
        block the event loop.
        """
        unlogged = [name for name in broken if name not in self._logged]
        self._logged -= looked_at
        self._logged |= broken.keys()
        if unlogged:
            self._going.record_failure(broken[unlogged[0]], namespace_ids=unlogged)


async def _is_other(message: Message, held: HeldConfiguration) -> bool:
    if (message.source_epoch, message.revision) != (held.source_epoch, held.revision):
        return False
    if message.ByteSize() <= _ON_LOOP_BYTES_MAX:
        return message_digest(message) != held.content
    return await asyncio.to_thread(message_digest, message) != held.content
