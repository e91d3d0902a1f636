"""Running game servers that do not listen on a port that they were given are named."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

import pytest

from pyservice.runtime.listeners import BoundPorts, Listener, bound_ports, find_listeners
from pyservice.runtime.process_environment import ProcessPort
from pyservice.runtime.run_requests import PortRequest, RunRequest
from pyservice.runtime.unbound_ports import (
    PortsProblem,
    UnboundPorts,
    local_problems,
    pod_problem,
    unbound_variables,
)
from tests.support.pod_requests import run_request
from tests.support.runtime_host import RuntimeHost, until

pytestmark = pytest.mark.anyio

START_S: Final = 10.0
NUMBERS: Final = frozenset({12_000})
NONE: Final[frozenset[int]] = frozenset()
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
            assert bound.getsockname()[1] not in bound_ports(find_listeners()).tcp
            bound.listen()
        found = bound_ports(find_listeners())
        is_tcp = kind is socket.SOCK_STREAM
        assert bound.getsockname()[1] in (found.tcp if is_tcp else found.udp)
        assert bound.getsockname()[1] not in (found.udp if is_tcp else found.tcp)


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
    ports = UnboundPorts(local_problems)
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


LISTEN: Final = """
import os, socket, time
family, kind, address, port = {where}
bound = socket.socket(family, kind)
if family == socket.AF_INET6:
    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, {v6_only})
bound.bind((address, port if port is not None else int(os.environ["PORT"])))
if kind == socket.SOCK_STREAM:
    bound.listen()
print(*bound.getsockname()[:2], sep=":", flush=True)
time.sleep(3600)
"""
V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)
STREAM, DATAGRAM = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)


@pytest.mark.full
@pytest.mark.parametrize(
    ("where", "v6_only", "over"),
    [
        ((V6, STREAM, "::1", None), True, ""),
        ((V4, STREAM, "127.0.0.2", None), True, ""),
        ((V4, STREAM, "127.0.0.1", 0), True, ""),
        ((V6, STREAM, "::", None), True, ""),
        ((V6, DATAGRAM, "::", None), True, " over UDP"),
        ((V6, STREAM, "::", None), False, None),
        ((V6, DATAGRAM, "::", None), False, None),
        ((V6, STREAM, "::ffff:127.0.0.1", None), False, None),
        ((V4, DATAGRAM, "0.0.0.0", None), True, None),
    ],
)
async def test_problem_of_a_server_out_of_reach_names_where_it_listens(
    host: RuntimeHost, where: tuple[int, int, str, int | None], v6_only: bool, over: str | None
) -> None:
    """`over` is None if players reach the server."""
    protocol = "udp" if where[1] == DATAGRAM else "tcp"
    program = shlex.quote(LISTEN.format(where=where, v6_only=v6_only))
    # A child process listens, as behind a start script.
    script = f"{sys.executable} -S -c {program} & wait"
    order = await host.running(script, ports={"game": PortRequest(protocol)})
    [listener] = await host.lines(order, 1)
    number = (await host.reports.wait_for(order.id, "placed"))["game"][1]
    ports = UnboundPorts(local_problems)
    for now_s in (0.0, START_S):
        await ports.check(host.supervisor.runs, now_s)
    if over is None:
        assert ports.problem(order.id) is None
        return
    problem = (
        f"Nothing listens at PORT_GAME={number}, but the server listens on {listener}{over}; "
        "listen at $HOSTING_BIND_ADDRESS:$PORT_GAME."
    )
    assert ports.problem(order.id) == problem
    host.supervisor.end(order.id, 0)
    end = await host.reports.end(order.id)
    assert (end.reason, end.kind, end.message) == ("stopped", "nothing-listens", problem)
    await until(lambda: not host.supervisor.runs)
    lines = [(line.stream, line.text) for line in host.of(order).lines()]
    assert lines == [("std_out", listener), ("service", problem)]


@pytest.mark.parametrize(
    ("protocol", "bound", "expected"),
    [
        ("udp", BoundPorts(tcp=NUMBERS, udp=NONE), ["PORT_GAME=12000 over UDP"]),
        ("tcp", BoundPorts(tcp=NONE, udp=NUMBERS), ["PORT_GAME=12000 over TCP"]),
        ("http", BoundPorts(tcp=NONE, udp=NUMBERS), ["PORT_GAME=12000 over TCP"]),
        ("tcp_udp", BoundPorts(tcp=NUMBERS, udp=NONE), ["PORT_GAME=12000 over UDP"]),
        ("tcp_udp", BoundPorts(tcp=NONE, udp=NUMBERS), ["PORT_GAME=12000 over TCP"]),
        ("tcp_udp", BoundPorts(tcp=NONE, udp=NONE), ["PORT_GAME=12000"]),
        ("udp", BoundPorts(tcp=NONE, udp=NUMBERS), []),
        ("tcp_udp", BoundPorts(tcp=NUMBERS, udp=NUMBERS), []),
        (None, BoundPorts(tcp=NUMBERS, udp=NONE), []),
        (None, BoundPorts(tcp=NONE, udp=NONE), ["PORT_GAME=12000"]),
    ],
)
def test_port_needs_a_socket_of_each_of_its_protocols(
    protocol: str | None, bound: BoundPorts, expected: list[str]
) -> None:
    protocols = {} if protocol is None else {"game": protocol}
    assert unbound_variables({"game": ProcessPort(12_000)}, protocols, bound) == expected


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_log_of_an_ended_server_names_the_ports_on_which_nothing_listened(
    host: RuntimeHost, is_restarted: bool
) -> None:
    silent = await host.running("echo up; exec sleep 3600", ports={"game": PortRequest("tcp")})
    assert await host.lines(silent, 1) == ["up"]
    if is_restarted:
        await host.anew()
        host.supervisor.ensure_running(silent)
        await until(lambda: host.supervisor.runs[silent.id].state == "running")
    number = (await host.reports.wait_for(silent.id, "placed"))["game"][1]
    ports = UnboundPorts(local_problems)
    for now_s in (0.0, START_S):
        await ports.check(host.supervisor.runs, now_s)
    host.supervisor.end(silent.id, 0)
    await host.reports.end(silent.id)
    await until(lambda: not host.supervisor.runs)
    lines = [(line.stream, line.text) for line in host.of(silent).lines()]
    assert lines == [("std_out", "up"), ("service", f"Nothing listens at PORT_GAME={number}.")]
    assert silent.id in host.noticed


async def test_log_says_that_a_server_opened_its_ports_late(host: RuntimeHost) -> None:
    slow = await host.running(ports={"game": PortRequest("udp")})
    number = (await host.reports.wait_for(slow.id, "placed"))["game"][1]
    ports = UnboundPorts(local_problems)
    for now_s in (0.0, START_S):
        await ports.check(host.supervisor.runs, now_s)
    assert ports.problem(slow.id) is not None
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as late:
        late.bind(("127.0.0.1", number))
        await ports.check(host.supervisor.runs, START_S + 2)
    host.supervisor.end(slow.id, 0)
    assert (await host.reports.end(slow.id)).kind == ""
    await until(lambda: not host.supervisor.runs)
    lines = [(line.stream, line.text) for line in host.of(slow).lines()]
    assert lines == [
        ("service", f"Nothing listens at PORT_GAME={number}."),
        ("service", "The server listens on all of its ports now."),
    ]


async def test_lobby_is_unreachable_while_nothing_listens_on_one_of_its_ports(
    host: RuntimeHost,
) -> None:
    requested = {"game": PortRequest("tcp_udp")}
    lobby = await host.running(owner="lobby", ports=requested)
    await host.running(owner="server", ports=requested)
    number = (await host.reports.wait_for(lobby.id, "placed"))["game"][1]
    ports, changes = UnboundPorts(local_problems), []
    ports.on_change = lambda: changes.append(ports.unreachable_lobbies())
    for now_s in (0.0, START_S, START_S + 2):
        await ports.check(host.supervisor.runs, now_s)
    sentence = f"Nothing listens at PORT_GAME={number}."
    assert changes == [{lobby.id: sentence}], "dynamic servers get no players of find"
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as late:
        late.bind(("127.0.0.1", number))
        await ports.check(host.supervisor.runs, START_S + 4)
        assert ports.problem(lobby.id) == f"Nothing listens at PORT_GAME={number} over TCP."
    assert changes[1:] == [{}], "some players of a port with two protocols get in"
    await ports.check(host.supervisor.runs, START_S + 6)
    host.supervisor.end(lobby.id, 0)
    await host.reports.end(lobby.id)
    await until(lambda: lobby.id not in host.supervisor.runs)
    await ports.check(host.supervisor.runs, START_S + 8)
    assert changes[2:] == [{lobby.id: sentence}, {}]


async def test_run_of_an_earlier_service_is_checked_at_once(host: RuntimeHost) -> None:
    lobby = await host.running(owner="lobby", ports={"game": PortRequest("tcp")})
    await host.anew()
    host.supervisor.ensure_running(lobby)
    await until(lambda: host.supervisor.runs[lobby.id].state == "running")
    ports = UnboundPorts(local_problems)
    await ports.check(host.supervisor.runs, 0.0)
    assert list(ports.unreachable_lobbies()) == [lobby.id]


@dataclass
class PodRun:
    """A run in a Pod with two ports."""

    id: str = "lobby"
    state: str = "running"
    is_new: bool = True
    ports_problem: str | None = None
    logged: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> RunRequest:
        return run_request(id=self.id)

    @property
    def process_ports(self) -> Mapping[str, ProcessPort]:
        return {"game": ProcessPort(20_000), "voice": ProcessPort(20_001)}

    @property
    def port_protocols(self) -> Mapping[str, str]:
        return {"game": "tcp", "voice": "udp"}

    async def log_problem(self, sentence: str) -> None:
        self.logged.append(sentence)


def listeners_at(address: str) -> list[Listener]:
    return [
        Listener("TCP", ip_address(address), 20_000),
        Listener("UDP", ip_address(address), 20_001),
    ]


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("0.0.0.0", True),
        ("10.0.0.7", True),
        ("::", True),
        ("127.0.0.1", False),
        ("10.0.0.8", False),
        ("::1", False),
    ],
)
def test_pod_is_reached_at_its_address(address: str, reached: bool) -> None:
    problem = pod_problem(PodRun(), "10.0.0.7", listeners_at(address))
    if reached:
        assert problem is None
        return
    sentence = (
        "Nothing listens at PORT_GAME=20000, PORT_VOICE=20001, but the server listens on "
        f"{address}:20000, {address}:20001 over UDP; listen at $HOSTING_BIND_ADDRESS:$PORT_GAME."
    )
    assert problem == (sentence, True)


async def test_run_is_checked_again_while_its_sockets_are_unknown() -> None:
    run, known, asked = PodRun(), dict[str, PortsProblem | None](), list[float]()

    async def find(due: Sequence[tuple[PodRun, float]]) -> Mapping[str, PortsProblem | None]:
        asked.extend(since_s for _, since_s in due)
        return dict(known)

    ports = UnboundPorts(find)
    await ports.check({run.id: run}, 100.0)
    await ports.check({run.id: run}, 111.0)
    assert ports.problem(run.id) is None, "unknown sockets are no problem"
    known[run.id] = pod_problem(run, "10.0.0.7", [])
    await ports.check({run.id: run}, 113.0)
    sentence = "Nothing listens at PORT_GAME=20000, PORT_VOICE=20001."
    assert ports.unreachable_lobbies() == {run.id: sentence}
    known.clear()
    await ports.check({run.id: run}, 115.0)
    assert ports.problem(run.id) == sentence, "the last answer counts"
    known[run.id] = None
    for now_s in (117.0, 119.0):
        await ports.check({run.id: run}, now_s)
    assert ports.unreachable_lobbies() == {}
    assert run.logged == [sentence, "The server listens on all of its ports now."]
    assert asked == [110.0] * 4, "only sockets after the time to start count"
