"""Traffic, processor time and memory of lobbies and dynamic servers, and their sums by namespace.

Edge-guard counts traffic, and the control groups of the kernel count the rest. On a single machine both
are read every two seconds. The nodes of a cluster report them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyservice.control.metrics import family, labels
from pyservice.control.retrying_job import RetryingJob
from pyservice.edge_guard.admin_socket import Traffic, TrafficReading
from pyservice.pb.hosting.v1 import servers_pb2 as pb
from pyservice.runtime.control_groups import GroupUsage
from pyservice.storage import namespaces
from pyservice.storage.database import Database

NAMESPACES_MAX: Final = 1_000
OTHER: Final = "other"
"""Label of all further namespaces, and of owners without a record."""

_INTERVAL_S: Final = 2.0
_RETRIES_S: Final = (0.5, 5.0)
_OWNERS_PER_QUERY: Final = 500
_US_PER_S: Final = 1_000_000


_NO_TRAFFIC: Final = Traffic()
_UNKNOWN_USAGE: Final = GroupUsage()


class NodeReading(NamedTuple):
    traffic: TrafficReading | None
    """Counters of edge-guard. None: it does not respond in time."""
    usages: Mapping[str, GroupUsage]
    """Resources that each run has used. Each ended run is in one reading."""


ReadNodes = Callable[[], Awaitable[Mapping[str, NodeReading]]]
"""Reads what the runs of each node have used. A node that is silent is absent."""


@dataclass(slots=True)
class _Owner:
    traffic: Traffic | None = None
    usage: GroupUsage = _UNKNOWN_USAGE
    added_traffic: Traffic = _NO_TRAFFIC
    """Part of the traffic that the sums of the namespace contain."""
    added_time_us: int = 0
    added_memory_bytes: int = 0


@dataclass(slots=True)
class _Node:
    """State of a node after its last reading."""

    reading: NodeReading | None = None
    traffic: TrafficReading | None = None
    """The last counters of edge-guard."""

    @property
    def owner_ids(self) -> set[str]:
        """Returns the owners with traffic or with a run."""
        led = set() if self.traffic is None else set(self.traffic.by_owner)
        return led if self.reading is None else led | self.reading.usages.keys()


@dataclass(slots=True)
class _Namespace:
    traffic: Traffic = _NO_TRAFFIC
    cpu_time_us: int = 0
    memory_bytes: int = 0


class UsedResources(NamedTuple):
    """Resources that all game servers use. None: no control group counts them."""

    cores: float | None
    memory_bytes: int | None


_UNKNOWN_USE: Final = UsedResources(None, None)


@dataclass(slots=True)
class ResourceUsage:
    database: Database
    read_nodes: ReadNodes
    namespaces_max: int = NAMESPACES_MAX
    monotonic_s: Callable[[], float] = time.monotonic
    job: RetryingJob = field(
        default_factory=lambda: RetryingJob("usage", "usage not read", pauses_s=_RETRIES_S)
    )
    _owners: dict[str, _Owner] = field(default_factory=dict)
    _labels: dict[str, str] = field(default_factory=dict)
    """Namespaces of the owners with a record."""
    _namespaces: dict[str, _Namespace] = field(default_factory=dict)
    """Sums by namespace. They stay after the last lobby, because counters never decrease."""
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    """Owners that no reading has any more, until the sums have their last use."""
    _read_s: float | None = None
    """Time of the last reading."""
    used: UsedResources = _UNKNOWN_USE

    async def run(self) -> None:
        await self.job.repeat_forever(self.step, every_s=_INTERVAL_S)

    async def step(self) -> None:
        readings = await self.read_nodes()
        if (machine := readings.get("")) is not None:
            self._measure_use(machine.usages)
        counted = set[str]()
        for name in self._nodes.keys() - readings.keys():
            self._ended |= self._nodes.pop(name).owner_ids
        for name, reading in readings.items():
            node = self._nodes.setdefault(name, _Node())
            if reading is not node.reading:
                self._apply(node, reading)
                counted |= node.owner_ids
        await self._find_labels()
        for owner_id in counted:
            # The record of a lobby comes a moment after the lobby.
            if owner_id in self._labels:
                self._add(self._owners[owner_id], self._labels[owner_id])
        while self._ended:
            owner_id = self._ended.pop()
            owner = self._owners.pop(owner_id)
            owner.usage = owner.usage._replace(memory_bytes=None)
            self._add(owner, self._labels.pop(owner_id, OTHER))

    def of_owner(self, owner_id: str) -> pb.ResourceUsage | None:
        """Returns the usage of a running lobby or server. None: nothing is known about it."""
        owner = self._owners.get(owner_id)
        if owner is None:
            return None
        usage = pb.ResourceUsage()
        if owner.traffic is not None:
            usage.received_bytes, usage.sent_bytes = owner.traffic[:2]
            usage.received_packets, usage.sent_packets = owner.traffic[2:]
        if owner.usage.cpu_time_us is not None:
            usage.cpu_time_ms = owner.usage.cpu_time_us // 1000
        if owner.usage.memory_bytes is not None:
            usage.memory_bytes = owner.usage.memory_bytes
        return usage

    def render(self) -> bytes:
        """Returns the metrics of namespaces as text."""
        return "".join(self._lines()).encode()

    def _measure_use(self, usages: Mapping[str, GroupUsage]) -> None:
        read_s = self.monotonic_s()
        last_s, self._read_s = self._read_s, read_s
        is_counted, time_us = not usages, 0
        for owner_id, usage in usages.items():
            if usage.cpu_time_us is not None:
                owner = self._owners.get(owner_id)
                time_us += usage.cpu_time_us - (
                    0 if owner is None else owner.usage.cpu_time_us or 0
                )
                is_counted = True
        if not is_counted:
            self.used = _UNKNOWN_USE
            return
        # The first reading has times from before the start of the control plane.
        cores = None if last_s is None else time_us / _US_PER_S / (read_s - last_s)
        self.used = UsedResources(cores, sum(usage.memory_bytes or 0 for usage in usages.values()))

    def _apply(self, node: _Node, reading: NodeReading) -> None:
        before = node.owner_ids
        self._apply_usages(node, reading.usages)
        if reading.traffic is not None:
            self._apply_traffic(node, reading.traffic)
        node.reading = reading
        current = node.owner_ids
        for owner_id in current - reading.usages.keys():
            owner = self._owners[owner_id]
            owner.usage = owner.usage._replace(memory_bytes=None)
        self._ended |= before - current
        self._ended -= current

    def _apply_usages(self, node: _Node, usages: Mapping[str, GroupUsage]) -> None:
        for owner_id, usage in usages.items():
            owner = self._owners.setdefault(owner_id, _Owner())
            owner.usage = GroupUsage(
                owner.usage.cpu_time_us if usage.cpu_time_us is None else usage.cpu_time_us,
                usage.memory_bytes,
            )
            if node.reading is None:
                # An earlier control plane has counted this time.
                owner.added_time_us = usage.cpu_time_us or 0

    def _apply_traffic(self, node: _Node, reading: TrafficReading) -> None:
        last = node.traffic
        if last is not None and not reading.series:
            return
        node.traffic = reading
        before = last.by_owner if last and last.series == reading.series else {}
        for owner_id, traffic in reading.by_owner.items():
            owner = self._owners.setdefault(owner_id, _Owner())
            increase = traffic.minus(before.get(owner_id, _NO_TRAFFIC))
            owner.traffic = (owner.traffic or _NO_TRAFFIC).plus(increase)
            if last is None:
                owner.added_traffic = owner.traffic

    async def _find_labels(self) -> None:
        unknown = sorted(self._owners.keys() - self._labels.keys())
        for start in range(0, len(unknown), _OWNERS_PER_QUERY):
            async with self.database.read() as tx:
                self._labels |= await namespaces.labels_of_owners(
                    tx, unknown[start : start + _OWNERS_PER_QUERY]
                )

    def _add(self, owner: _Owner, label: str) -> None:
        namespace = self._namespace(label)
        if owner.traffic is not None:
            namespace.traffic = namespace.traffic.plus(owner.traffic.minus(owner.added_traffic))
            owner.added_traffic = owner.traffic
        if owner.usage.cpu_time_us is not None:
            namespace.cpu_time_us += owner.usage.cpu_time_us - owner.added_time_us
            owner.added_time_us = owner.usage.cpu_time_us
        memory_bytes = owner.usage.memory_bytes or 0
        namespace.memory_bytes += memory_bytes - owner.added_memory_bytes
        owner.added_memory_bytes = memory_bytes

    def _namespace(self, label: str) -> _Namespace:
        if label not in self._namespaces and len(self._namespaces) >= self.namespaces_max:
            label = OTHER
        return self._namespaces.setdefault(label, _Namespace())

    def _lines(self) -> Iterator[str]:
        rows = sorted(self._namespaces.items())
        yield from family(
            "hosting_namespace_traffic_bytes_total",
            "counter",
            "Bytes between game servers and players.",
            _both_ways((label, namespace.traffic[:2]) for label, namespace in rows),
        )
        yield from family(
            "hosting_namespace_traffic_packets_total",
            "counter",
            "Datagrams between game servers and players.",
            _both_ways((label, namespace.traffic[2:]) for label, namespace in rows),
        )
        yield from family(
            "hosting_namespace_server_cpu_seconds_total",
            "counter",
            "Processor time of game servers.",
            labels("namespace", {label: one.cpu_time_us / _US_PER_S for label, one in rows}),
        )
        yield from family(
            "hosting_namespace_server_memory_bytes",
            "gauge",
            "Memory of running game servers.",
            labels("namespace", {label: one.memory_bytes for label, one in rows}),
        )


def _both_ways(rows: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, int]:
    return {
        f'{{namespace="{label}",way="{way}"}}': value
        for label, values in rows
        for way, value in zip(("in", "out"), values, strict=True)
    }
