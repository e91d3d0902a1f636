"""Running game servers that do not listen on a port that they were given are named."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from typing import Final

import pytest

from pyservice.runtime.run_requests import PortRequest
from pyservice.runtime.unbound_ports import UnboundPorts, bound_ports
from tests.support.runtime_host import RuntimeHost

pytestmark = pytest.mark.anyio

START_S: Final = 10.0
SERVE_ONE: Final = """
import os, socket, time
for variable, kind in {ports}:
    bound = socket.socket(socket.AF_INET, kind)
    bound.bind(("127.0.0.1", int(os.environ[variable])))
    if kind == socket.SOCK_STREAM:
        bound.listen()
    globals()[variable] = bound
print("bound", flush=True)
time.sleep(3600)
"""
PORTS: Final = {"game": PortRequest("tcp"), "voice": PortRequest("udp")}
BOTH: Final = (("PORT_GAME", int(socket.SOCK_STREAM)), ("PORT_VOICE", int(socket.SOCK_DGRAM)))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_port_counts_as_bound_when_it_can_receive(kind: socket.SocketKind) -> None:
    with closing(socket.socket(socket.AF_INET, kind)) as bound:
        bound.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            assert bound.getsockname()[1] not in bound_ports()
            bound.listen()
        assert bound.getsockname()[1] in bound_ports()


async def test_server_is_named_by_the_ports_on_which_nothing_listens(host: RuntimeHost) -> None:
    numbers = []
    orders = []
    for count in (2, 1):
        program = SERVE_ONE.format(ports=BOTH[:count]).replace('"', r"\"")
        order = await host.running(f'exec {sys.executable} -S -c "{program}"', ports=PORTS)
        assert await host.lines(order, 1) == ["bound"]
        placed = await host.reports.wait_for(order.id, "placed")
        numbers.append(placed["voice"][1])
        orders.append(order)
    ports = UnboundPorts()
    runs = host.supervisor.runs
    await ports.check(runs, 0.0)
    await ports.check(runs, START_S - 1)
    assert ports.problem(orders[1].id) is None, "it still has time to start"
    await ports.check(runs, START_S)
    assert ports.problem(orders[0].id) is None
    assert ports.problem(orders[1].id) == f"Nothing listens at PORT_VOICE={numbers[1]}."
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as late:
        late.bind(("127.0.0.1", numbers[1]))
        await ports.check(runs, START_S + 2)
    assert ports.problem(orders[1].id) is None
