"""Reports of nodes about the use and the sockets of their game servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple

from pyservice.control.resource_usage import NodeReading
from pyservice.edge_guard.admin_socket import Traffic, TrafficReading
from pyservice.pb.hosting.internal.v1 import node_usage_pb2 as pb
from pyservice.runtime.control_groups import GroupUsage
from pyservice.runtime.listeners import Listener

SILENT_AFTER_S: Final = 90.0
"""Age of a report after which it counts no more: three intervals of a node without game servers."""


class _Report(NamedTuple):
    received_s: float
    """Time by the monotonic clock."""
    reading: NodeReading
    sockets: Mapping[str, pb.OpenSockets]
    """Sockets of the runs that have been read."""


class NodeUsages:
    def __init__(
        self,
        node_of: Callable[[str], str | None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`node_of` returns the node on which a run is, or None if there is no such run."""
        self._node_of = node_of
        self._monotonic_s = monotonic_s
        self._reports: dict[str, _Report] = {}

    def report(self, request: pb.ReportUsageRequest) -> None:
        """Replaces the last report of a node. The caller has checked the name of the node."""
        runs = [run for run in request.runs if self._node_of(run.run_id) == request.node]
        by_owner = {run.run_id: _traffic(run.traffic) for run in runs if run.HasField("traffic")}
        usages = {run.run_id: _group_usage(run) for run in runs}
        # Without a series, edge-guard has not answered. Its last counters stay.
        traffic = TrafficReading(request.series, by_owner) if request.series else None
        sockets = {run.run_id: run.sockets for run in runs if run.HasField("sockets")}
        self._reports[request.node] = _Report(
            self._monotonic_s(), NodeReading(traffic, usages), sockets
        )

    def listeners(self, run_id: str, since_s: float) -> Sequence[Listener] | None:
        """Returns the sockets of a run, or None if its node has not reported them since then."""
        report = self._reports.get(self._node_of(run_id) or "")
        if report is None or report.received_s < since_s or run_id not in report.sockets:
            return None
        return [
            Listener("UDP" if one.is_udp else "TCP", ip_address(one.address), one.port)
            for one in report.sockets[run_id].sockets
        ]

    def readings(self) -> Mapping[str, NodeReading]:
        """Returns the last report of each node that has reported in time."""
        oldest_s = self._monotonic_s() - SILENT_AFTER_S
        self._reports = {
            node: report for node, report in self._reports.items() if report.received_s >= oldest_s
        }
        return {node: report.reading for node, report in self._reports.items()}


def _traffic(traffic: pb.PlayerTraffic) -> Traffic:
    return Traffic(*(getattr(traffic, name) for name in Traffic._fields))


def _group_usage(run: pb.RunUsage) -> GroupUsage:
    return GroupUsage(
        run.cpu_time_us if run.HasField("cpu_time_us") else None,
        run.memory_bytes if run.HasField("memory_bytes") else None,
    )
