"""Sockets of game servers in Pods, as nodes report them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from pyservice.control.node_usages import NodeUsages
from pyservice.pb.hosting.internal.v1 import node_usage_pb2 as pb
from pyservice.runtime.listeners import Listener

LOBBY, OTHER = "lobby-a", "lobby-b"


def test_sockets_count_from_a_time_on() -> None:
    now_s = [1_000.0]
    nodes = {LOBBY: "n1", OTHER: "n2"}
    usages = NodeUsages(nodes.get, lambda: now_s[0])
    assert usages.listeners(LOBBY, 0.0) is None, "the node has not reported"
    request = pb.ReportUsageRequest(node="n1")
    request.runs.add(run_id=LOBBY).sockets.sockets.add(address=bytes(16), port=20_000)
    request.runs.add(run_id=OTHER).sockets.SetInParent()
    usages.report(request)
    assert usages.listeners(LOBBY, 1_000.1) is None
    assert usages.listeners(LOBBY, 1_000.0) == [Listener("TCP", IPv6Address("::"), 20_000)]
    assert usages.listeners(OTHER, 0.0) is None, "n1 cannot report the lobby of n2"
    request = pb.ReportUsageRequest(node="n2")
    request.runs.add(run_id=OTHER)
    usages.report(request)
    assert usages.listeners(OTHER, 0.0) is None, "the node could not read them"
    request.runs[0].sockets.sockets.add(is_udp=True, address=b"\x7f\0\0\1", port=7)
    usages.report(request)
    assert usages.listeners(OTHER, 0.0) == [Listener("UDP", IPv4Address("127.0.0.1"), 7)]
