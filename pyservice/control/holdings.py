"""What the data plane said that it holds, against what the records have: what differs, what is missing, and what no
record has. Pure; who asks and when is `feeder`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pyservice.control.feed_refusals import name_of
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.storage.database import Record

Held = Mapping[str, feed_pb2.HeldConfiguration]


class Holdings:
    """By namespace."""

    def __init__(self, source_epoch: int) -> None:
        """`source_epoch`: of these records."""
        self._epoch = source_epoch
        self._held: dict[str, feed_pb2.HeldConfiguration] = {}
        self._news: dict[str, feed_pb2.HeldConfiguration] = {}
        """What was acknowledged since it was asked: the answer may be older."""
        self.orphans: dict[str, feed_pb2.HeldConfiguration] = {}
        """Held, and of no record, when it was looked last."""

    def asking(self) -> None:
        """It is about to be asked what it holds; the next answer is to this."""
        self._news = {}

    def take(self, answer: feed_pb2.HeldResponse) -> None:
        """All that it holds."""
        self._held = {one.namespace_id: one for one in answer.configurations} | self._news

    def acknowledged(self, message: configuration_pb2.NamespaceConfiguration) -> None:
        """It holds this one."""
        held = self._held[message.namespace_id] = feed_pb2.HeldConfiguration(
            namespace_id=message.namespace_id,
            source_epoch=message.source_epoch,
            revision=message.revision,
            current_version_id=message.current_version_id,
            name=name_of(message),
        )
        self._news[message.namespace_id] = held

    def version_id(self, namespace_id: str) -> str:
        """The version that the namespace runs, empty when it is not held."""
        held = self._held.get(namespace_id)
        return held.current_version_id if held else ""

    def is_lacking(self, answer: feed_pb2.HeldResponse) -> bool:
        """Whether it does not hold any more what it said."""
        held = {one.namespace_id: order_of(one) for one in answer.configurations}
        return any(
            order_of(said) > held.get(name, (0, 0))
            for name, said in self._held.items()
            if name not in self._news
        )

    def differing(self, rows: Sequence[Record]) -> Iterator[str]:
        """Ids of the namespaces of the records that it holds otherwise. `rows`: all, with their revisions."""
        for row in rows:
            held = self._held.get(row.namespace_id)
            if held is None or order_of(held) != (self._epoch, row.revision):
                yield row.namespace_id

    def told_of(
        self, rows: Sequence[Record], different: Collection[str]
    ) -> list[feed_pb2.HeldConfiguration]:
        """What it said of the other namespaces of these records."""
        return [
            self._held[row.namespace_id]
            for row in rows
            if row.namespace_id not in different and row.namespace_id not in self._news
        ]

    def note_orphans(self, rows: Sequence[Record]) -> bool:
        """Which are of no record; whether there are others than before. `rows` are younger than what is held."""
        orphans = orphans_of(self._held, rows)
        is_news = orphans.keys() != self.orphans.keys()
        self.orphans = orphans
        return is_news


def orphans_of(held: Held, rows: Sequence[Record]) -> dict[str, feed_pb2.HeldConfiguration]:
    """What a static file feeds has no record and needs none."""
    known = {row.namespace_id for row in rows}
    return {name: one for name, one in held.items() if one.source_epoch and name not in known}


def order_of(held: feed_pb2.HeldConfiguration) -> tuple[int, int]:
    """Of two, the greater one wins."""
    return held.source_epoch, held.revision
