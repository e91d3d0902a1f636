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
from pyservice.control.data_plane_memory import DataPlaneMemory
from pyservice.control.feed_messages import ComposeRequest, namespace_name
from pyservice.control.retrying_job import RetryingJob
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.schema.message_digest import message_digest
from pyservice.storage.database import Record

ConfigurationByNamespace = Mapping[str, feed_pb2.HeldConfiguration]


class DataPlaneConfigurations:
    def __init__(self, source_epoch: int) -> None:
        self._epoch = source_epoch
        self._configurations: dict[str, feed_pb2.HeldConfiguration] = {}
        self._acknowledged: dict[str, feed_pb2.HeldConfiguration] = {}
        """Acknowledged messages since the last read began. The response of that read may be older."""
        self.orphans: dict[str, feed_pb2.HeldConfiguration] = {}
        self.memory = DataPlaneMemory()

    def begin_read(self) -> None:
        """Marks the start of a read of the data plane's configurations.

        Messages that the data plane acknowledges after this call take precedence over the result of
        the read.
        """
        self._acknowledged = {}
        self.memory.begin_read()

    def take(self, response: feed_pb2.HeldResponse) -> None:
        self.memory.take(response)
        self._configurations = {
            configuration.namespace_id: configuration for configuration in response.configurations
        } | self._acknowledged

    def acknowledge(
        self, message: configuration_pb2.NamespaceConfiguration, applied: feed_pb2.Applied
    ) -> None:
        self.memory.acknowledge(message.game.developer_group_id, applied)
        configuration = self._configurations[message.namespace_id] = feed_pb2.HeldConfiguration(
            namespace_id=message.namespace_id,
            source_epoch=message.source_epoch,
            revision=message.revision,
            current_version_id=message.current_version_id,
            name=namespace_name(message),
        )
        self._acknowledged[message.namespace_id] = configuration

    def version_id(self, namespace_id: str) -> str:
        configuration = self._configurations.get(namespace_id)
        return configuration.current_version_id if configuration else ""

    def has_lost_state(self, response: feed_pb2.HeldResponse) -> bool:
        self.memory.take(response)
        order_of = {
            configuration.namespace_id: order_key(configuration)
            for configuration in response.configurations
        }
        return any(
            order_key(configuration) > order_of.get(name, (0, 0))
            for name, configuration in self._configurations.items()
            if name not in self._acknowledged
        )

    def differing_rows(self, rows: Sequence[Record]) -> Iterator[Record]:
        for row in rows:
            configuration = self._configurations.get(row.namespace_id)
            if configuration is None or order_key(configuration) != (self._epoch, row.revision):
                yield row

    def unchanged_configurations(
        self, rows: Sequence[Record], different: Collection[str]
    ) -> list[feed_pb2.HeldConfiguration]:
        return [
            self._configurations[row.namespace_id]
            for row in rows
            if row.namespace_id not in different and row.namespace_id not in self._acknowledged
        ]

    def update_orphans(self, rows: Sequence[Record]) -> bool:
        """Updates `orphans`, and returns True if the set of orphaned namespaces changed.

        Read `rows`, the namespace records, after the data plane's configurations. Otherwise a new
        namespace could look orphaned.
        """
        orphans = find_orphans(self._configurations, rows)
        is_news = orphans.keys() != self.orphans.keys()
        self.orphans = orphans
        return is_news


def find_orphans(
    configurations: ConfigurationByNamespace, rows: Sequence[Record]
) -> dict[str, feed_pb2.HeldConfiguration]:
    """Returns the configurations without a namespace record, except configurations from a feed file
    (`--feed`).
    """
    namespace_ids = {row.namespace_id for row in rows}
    return {
        name: configuration
        for name, configuration in configurations.items()
        if configuration.source_epoch and name not in namespace_ids
    }


def order_key(configuration: feed_pb2.HeldConfiguration) -> tuple[int, int]:
    return configuration.source_epoch, configuration.revision


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
        self, compose: Compose, on_difference: Callable[[str, str], None], job: RetryingJob
    ) -> None:
        """`on_difference` gets the id of a namespace and the id of its developer group."""
        # This batcher is separate from the feeder's, so that messages do not wait for comparisons.
        self._messages = Batcher(compose, is_of_one=lambda error: not job.is_expected(error))
        self._on_difference = on_difference
        self._job = job
        self._remaining: dict[str, HeldConfiguration] = {}
        self._retry_later: dict[str, HeldConfiguration] = {}
        self._logged: set[str] = set()
        self._has_remaining = asyncio.Event()

    def compare(self, configurations: Iterable[HeldConfiguration]) -> None:
        self._remaining = {
            configuration.namespace_id: configuration for configuration in configurations
        }
        self._retry_later = {}
        self._has_remaining.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = self._job.new_backoff()
        while True:
            await self._wait_for_any()
            began_s = loop.time()
            if await self._job.attempt(self._compare_some) is not None:
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            await asyncio.sleep((loop.time() - began_s) * _REST)

    async def _wait_for_any(self) -> None:
        try:
            async with asyncio.timeout(_AGAIN_S if self._retry_later else None):
                await self._has_remaining.wait()
        except TimeoutError:
            self.compare(self._retry_later.values())

    async def _compare_some(self) -> None:
        remaining = self._remaining
        batch = list(islice(remaining.values(), _AT_ONCE))
        compositions = (
            self._messages.add(ComposeRequest(configuration.namespace_id))
            for configuration in batch
        )
        messages = await asyncio.gather(*compositions, return_exceptions=True)
        errors: dict[str, Exception] = {}
        for configuration, message in zip(batch, messages, strict=True):
            if isinstance(message, BaseException):
                errors[configuration.namespace_id] = self._of_one(message)
                self._retry_later[configuration.namespace_id] = configuration
            elif message is not None and await _has_other_content(message, configuration):
                self._on_difference(message.namespace_id, message.game.developer_group_id)
            remaining.pop(configuration.namespace_id, None)
        self._report(errors, {configuration.namespace_id for configuration in batch})
        if not self._remaining:
            self._has_remaining.clear()

    def _of_one(self, error: BaseException) -> Exception:
        if not isinstance(error, Exception) or self._job.is_expected(error):
            raise error
        return error

    def _report(self, errors: Mapping[str, Exception], compared: Set[str]) -> None:
        """Logs one traceback for all namespaces with a new comparison error. More tracebacks would
        block the event loop.
        """
        unlogged = [name for name in errors if name not in self._logged]
        self._logged -= compared
        self._logged |= errors.keys()
        if unlogged:
            self._job.record_failure(errors[unlogged[0]], namespace_ids=unlogged)


async def _has_other_content(message: Message, configuration: HeldConfiguration) -> bool:
    if (message.source_epoch, message.revision) != (
        configuration.source_epoch,
        configuration.revision,
    ):
        return False
    if message.ByteSize() <= _ON_LOOP_BYTES_MAX:
        return message_digest(message) != configuration.content
    return await asyncio.to_thread(message_digest, message) != configuration.content
