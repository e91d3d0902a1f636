"""Ports of a cluster's nodes, over restarts of the data plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from tests.support.data_plane_service import running_engine
from tests.support.namespace_configurations import NAMESPACE_ID

pytestmark = pytest.mark.anyio

GAME = ("game", "udp", "number", 0, 0, False, "uncounted")
ONE_PORT = {"binds_ports_later": True, "public_ports": (26_000, 26_000)}
SERVER, OTHER_SERVER = b"s" * 16, b"o" * 16


async def lease(engine: Engine, server: bytes) -> None:
    [port] = await engine.processes.lease(server, raw_id(NAMESPACE_ID), "north", [GAME])
    assert (port.number, port.node) == (0, "")


async def code_of_binding(engine: Engine, server: bytes, node: str) -> str:
    with pytest.raises(ServiceError) as raised:
        await engine.processes.bind_ports(server, node, "198.51.100.7")
    return raised.value.code


async def test_ports_stay_at_their_nodes_over_restarts(tmp_path: Path) -> None:
    async with running_engine(tmp_path, **ONE_PORT) as engine:
        for server in (SERVER, OTHER_SERVER):
            await lease(engine, server)
        await engine.processes.bind_ports(SERVER, "node-1", "198.51.100.7")
        [port] = await engine.processes.bind_ports(SERVER, "node-2", "198.51.100.8")
        status = engine.status()
        assert status.durable == status.last
    async with running_engine(tmp_path, **ONE_PORT) as engine:
        processes = engine.processes
        [again] = await processes.bind_ports(SERVER, "node-2", "198.51.100.8")
        assert (again.number, again.node, again.host) == (port.number, "node-2", "198.51.100.8")
        assert processes.routes_since(0, "node-1").removed == [SERVER]
        assert await code_of_binding(engine, OTHER_SERVER, "node-1") == "PORTS_EXHAUSTED"
        await processes.ports_returned(SERVER, "node-2")
        assert await code_of_binding(engine, OTHER_SERVER, "node-2") == "PORTS_EXHAUSTED"
        await processes.ports_returned(SERVER, "node-1")
        assert processes.routes_since(0, "node-1").removed == []
    async with running_engine(tmp_path, **ONE_PORT) as engine:
        assert engine.processes.nodes() == ["node-1", "node-2"]
        assert await code_of_binding(engine, OTHER_SERVER, "node-1") == "PORTS_EXHAUSTED"
        await engine.processes.end_lease(SERVER)
        assert await code_of_binding(engine, SERVER, "node-2") == "SERVER_NOT_FOUND"
        await engine.processes.return_ports_of_node("node-2")
        assert engine.processes.routes_since(0, "node-2").removed == []


async def test_cluster_opens_the_directory_of_a_single_machine(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        [port] = await engine.processes.lease(SERVER, raw_id(NAMESPACE_ID), "north", [GAME])
        assert port.number > 0
    async with running_engine(tmp_path, **ONE_PORT) as engine:
        assert engine.processes.nodes() == [""]
        [moved] = await engine.processes.bind_ports(SERVER, "node-1", "198.51.100.7")
        assert (moved.number, moved.node) == (26_000, "node-1")
        await engine.processes.return_ports_of_node("")
        assert engine.processes.routes_since(0).removed == []
        assert engine.processes.leased_servers() == [SERVER]
