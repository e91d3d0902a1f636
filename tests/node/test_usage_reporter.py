"""Control groups and sockets of Pods in the forms that nodes have, and what a node reports of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from pyservice.edge_guard.admin_socket import EdgeGuardTraffic
from pyservice.errors import Unreachable
from pyservice.node import usage_reporter
from pyservice.node.usage_reporter import UsageReporter
from pyservice.pb.hosting.internal.v1 import node_usage_pb2 as pb
from tests.support.waiting import cancel, until_met

pytestmark = pytest.mark.anyio

RUN = "0192f000-0000-7000-8000-000000000001"
OTHER = "0192f000-0000-7000-8000-000000000002"
UID = "6f3a1d52-9f6b-4c1e-8f7a-0c2d5e9b1a34"
KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)
OTHER_UID = "7c0e2b61-1a2b-4c3d-9e8f-112233445566"


class Node:
    """Folders of a node, and the reports that arrive at the service."""

    def __init__(self, folder: Path) -> None:
        self.pods = folder / "pods"
        self.groups = folder / "cgroup"
        self.groups.mkdir()
        self.processes = folder / "proc"
        self.failures: list[Exception] = []
        self.reports: list[pb.ReportUsageRequest] = []
        self.reporter = UsageReporter(
            self.call,
            "n1",
            "games",
            EdgeGuardTraffic(folder),
            self.pods,
            self.groups,
            self.processes,
        )

    async def call(self, name: str, request: Any, timeout_s: float) -> None:
        if self.failures:
            raise self.failures.pop()
        self.reports.append(request)

    def add_pod(self, name: str, uid: str, namespace: str = "games") -> None:
        (self.pods / f"{namespace}_{name}_{uid}").mkdir(parents=True)

    def put(self, group: str, file: str, text: str) -> None:
        path = self.groups / group / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def add_process(self, pid: int, group: str, tables: Path | None) -> None:
        """`tables` are the sockets of the process, or None if it has ended."""
        process = self.processes / str(pid)
        process.mkdir(parents=True)
        (process / "cgroup").write_text(f"0::{group}\n")
        if tables is not None:
            (process / "net").symlink_to(tables)

    async def report(self) -> pb.ReportUsageRequest:
        """Returns the next report."""
        self.reports.clear()
        running = asyncio.create_task(self.reporter.run())
        try:
            await until_met(lambda: self.reports)
            return self.reports[0]
        finally:
            await cancel(running)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def number_of(bound: socket.socket) -> int:
    number: int = bound.getsockname()[1]
    return number


def usage(report: pb.ReportUsageRequest) -> dict[str, tuple[int, int]]:
    return {run.run_id: (run.cpu_time_us, run.memory_bytes) for run in report.runs}


@pytest.mark.parametrize(
    "form",
    [
        "kubepods/pod{}",
        "kubepods/burstable/pod{}",
        "kind/n1/kubelet/kubepods/pod{}",
        "kubepods.slice/kubepods-pod{}.slice",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
    ],
)
@pytest.mark.parametrize("version", [1, 2])
async def test_each_form_of_groups_is_found(node: Node, form: str, version: int) -> None:
    node.add_pod(RUN, UID)
    group = form.format(UID.replace("-", "_") if ".slice" in form else UID)
    if version == 2:
        node.put(".", "cgroup.controllers", "cpu memory")
        node.put(group, "cpu.stat", "usage_usec 1500\nuser_usec 1000\n")
        node.put(group, "memory.current", "4096\n")
    else:
        node.put(f"cpuacct/{group}", "cpuacct.usage", "1500000\n")
        node.put(f"memory/{group}", "memory.usage_in_bytes", "4096\n")
    report = await node.report()
    assert (report.node, report.series, usage(report)) == ("n1", "", {RUN: (1500, 4096)})


async def test_only_game_servers_with_a_group_are_reported(node: Node) -> None:
    node.put(".", "cgroup.controllers", "cpu memory")
    node.add_pod(RUN, UID)
    node.add_pod("pull-5f0a", "0a000000-0000-4000-8000-000000000001")
    node.add_pod("0192f000-0000-7000-8000-000000000003", OTHER_UID, "other-games")
    node.add_pod(OTHER, "0a000000-0000-4000-8000-000000000002")
    for uid in (UID, OTHER_UID, "0a000000-0000-4000-8000-000000000001"):
        node.put(f"kubepods/pod{uid}", "memory.current", "1\n")
    assert usage(await node.report()) == {RUN: (0, 1)}, "the last one has ended"


async def test_a_service_that_is_away_is_asked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_reporter, "REPORT_S", 0.0)
    node.failures = [Unreachable("no answer")] * 2
    assert usage(await node.report()) == {}


@pytest.mark.parametrize(
    "form",
    [
        "/kubepods/burstable/pod{}/server",
        "/../../../kubepods/pod{}/server",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-5f.scope",
    ],
)
async def test_sockets_of_a_game_server_are_reported(node: Node, form: str) -> None:
    with contextlib.ExitStack() as stack:
        tcp, udp, idle = (stack.enter_context(socket.socket(type=kind)) for kind in KINDS)
        for bound in (tcp, udp, idle):
            bound.bind(("127.0.0.1", 0))
        tcp.listen()
        node.put(".", "cgroup.controllers", "cpu memory")
        node.add_pod(RUN, UID)
        node.put(f"kubepods/pod{UID}", "memory.current", "1\n")
        group = form.format(UID.replace("-", "_") if ".slice" in form else UID)
        node.add_process(1, "/init.scope", None)
        node.add_process(70, group, None)
        node.add_process(71, group, Path("/proc/self/net"))
        [run] = (await node.report()).runs
        ports = {(one.is_udp, one.address, one.port) for one in run.sockets.sockets}
        address = b"\x7f\0\0\1"
        assert {(False, address, number_of(tcp)), (True, address, number_of(udp))} <= ports
        assert number_of(idle) not in {port for is_udp, _, port in ports if not is_udp}


async def test_sockets_that_cannot_be_read_are_not_reported(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put(".", "cgroup.controllers", "cpu memory")
    node.add_pod(RUN, UID)
    node.put(f"kubepods/pod{UID}", "memory.current", "1\n")
    [run] = (await node.report()).runs
    assert not run.HasField("sockets"), "the node does not show its processes"
    node.add_process(70, f"/kubepods/pod{UID}/server", None)
    [run] = (await node.report()).runs
    assert not run.HasField("sockets"), "its processes have ended"
    node.add_process(71, f"/kubepods/pod{UID}/server", Path("/proc/self/net"))
    monkeypatch.setattr(usage_reporter, "_SOCKETS_MAX", 0)
    with socket.create_server(("127.0.0.1", 0)):
        [run] = (await node.report()).runs
    assert not run.HasField("sockets"), "it has too many"
