"""Checks of a request for a dynamic server, without a service."""

from __future__ import annotations

from google.protobuf.json_format import ParseDict

from pyservice.control.servers import host_network_problems
from pyservice.pb.hosting.v1 import servers_pb2 as pb


def test_network_of_the_node_is_named_in_each_field_that_needs_it() -> None:
    ports = {
        "direct": {"protocol": "udp", "internal_port": 20_000, "routing": {"host": {}}},
        "game": {"protocol": "udp", "routing": {"edge_guard": {}}},
    }
    request = pb.CreateServerRequest()
    ParseDict({"network": {"mode": "host", "ports": {"entries": ports}}}, request)
    assert [problem.path for problem in host_network_problems(request)] == [
        ("network", "mode", "not-allowed"),
        ("network", "ports", "direct", "routing", "host", "not-allowed"),
    ]
    request.network.mode = "bridge"
    del request.network.ports.entries["direct"]
    assert [*host_network_problems(request)] == []
