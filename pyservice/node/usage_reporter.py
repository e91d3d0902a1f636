"""Reports to the service what the game servers on a node use, and where they listen.

Edge-guard counts their traffic. The control groups of the kubelet count processor time and memory of
Pods. The names of the folders of logs say which Pods are game servers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from pyservice.edge_guard.admin_socket import EdgeGuardTraffic
from pyservice.errors import ServiceError, Unreachable
from pyservice.ids import is_uuid
from pyservice.node.log_copier import POD_LOGS, CallService
from pyservice.node.pod_groups import pod_uid
from pyservice.node.pod_sockets import HOST_PROCESSES, read_sockets
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import node_usage_pb2 as pb
from pyservice.runtime.control_groups import used_memory_bytes, used_time_us
from pyservice.runtime.listeners import Listener

CONTROL_GROUPS: Final = Path("/host/cgroup")
"""Where the chart mounts the control groups of the node. Its own are at `/sys/fs/cgroup`."""
REPORT_S: Final = 10.0
"""Time between two reports of a node with game servers."""
IDLE_S: Final = 30.0
"""The same without game servers."""

_REPORT: Final = "hosting.internal.v1.NodeUsage.ReportUsage"
_TIMEOUT_S: Final = 10.0
_SOCKETS_MAX: Final = 256
"""Number of sockets of a Pod that a report may have."""

_log = get_logger("node")


class UsageReporter:
    def __init__(
        self,
        call: CallService,
        node: str,
        namespace: str,
        traffic: EdgeGuardTraffic,
        pod_logs: Path = POD_LOGS,
        control_groups: Path = CONTROL_GROUPS,
        processes: Path = HOST_PROCESSES,
    ) -> None:
        """Reports only game servers of `namespace`."""
        self._call = call
        self._node = node
        self._namespace = namespace
        self._traffic = traffic
        self._pod_logs = pod_logs
        self._groups = control_groups
        self._processes = processes
        self._is_reported = True

    async def run(self) -> NoReturn:
        while True:
            request = await self._read()
            try:
                await self._call(_REPORT, request, _TIMEOUT_S)
                self._is_reported = True
            except (ServiceError, Unreachable) as error:
                if self._is_reported:
                    _log.warning("usage is not reported", node=self._node, problem=str(error))
                self._is_reported = False
            is_idle = self._is_reported and not request.runs
            await asyncio.sleep(IDLE_S if is_idle else REPORT_S)

    async def _read(self) -> pb.ReportUsageRequest:
        runs = await asyncio.to_thread(self._read_groups)
        reading = await self._traffic.read()
        if reading is None:
            return pb.ReportUsageRequest(node=self._node, runs=runs.values())
        for owner_id, traffic in reading.by_owner.items():
            run = runs.setdefault(owner_id, pb.RunUsage(run_id=owner_id))
            run.traffic.CopyFrom(pb.PlayerTraffic(**traffic._asdict()))
        return pb.ReportUsageRequest(node=self._node, series=reading.series, runs=runs.values())

    def _read_groups(self) -> dict[str, pb.RunUsage]:
        """Returns processor time, memory and sockets of the game servers by id. Blocks."""
        run_of_pod = {}
        for folder in self._pod_logs.glob(f"{self._namespace}_*"):
            run_id, _, pod_uid = folder.name.removeprefix(f"{self._namespace}_").partition("_")
            if is_uuid(run_id):
                run_of_pod[pod_uid] = run_id
        if not run_of_pod:
            return {}
        is_unified = (self._groups / "cgroup.controllers").exists()
        times = _groups_of_pods(self._groups if is_unified else self._groups / "cpuacct")
        memory = times if is_unified else _groups_of_pods(self._groups / "memory")
        sockets = read_sockets(self._processes, run_of_pod)
        return {
            run_id: pb.RunUsage(
                run_id=run_id,
                cpu_time_us=used_time_us(times.get(uid), is_unified=is_unified),
                memory_bytes=used_memory_bytes(memory.get(uid), is_unified=is_unified),
                sockets=_open_sockets(sockets.get(uid)),
            )
            for uid, run_id in run_of_pod.items()
            if uid in times or uid in memory
        }


def _open_sockets(listeners: Sequence[Listener] | None) -> pb.OpenSockets | None:
    if listeners is None or len(listeners) > _SOCKETS_MAX:
        return None
    sockets = [
        pb.OpenSocket(is_udp=one.protocol == "UDP", address=one.address.packed, port=one.port)
        for one in listeners
    ]
    return pb.OpenSockets(sockets=sockets)


def _groups_of_pods(hierarchy: Path) -> dict[str, Path]:
    """Returns the control groups of all Pods by UID, below any `cgroupRoot` of a kubelet."""
    groups = {}
    for parent, names, _ in os.walk(hierarchy):
        for name in [*names]:
            if (uid := pod_uid(name)) is not None:
                groups[uid] = Path(parent, name)
                names.remove(name)
    return groups
