from __future__ import annotations

import ctypes
import errno
import itertools
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Final

import pytest

from pyservice.runtime import node_allocation
from pyservice.runtime.run_requests import PortRequest, RunEnd, RunRequest
from tests.support.loopback import NEEDS_IPV6, OWN_ADDRESS
from tests.support.occupied_ports import OtherProgram
from tests.support.runtime_host import RuntimeHost, until

pytestmark = pytest.mark.anyio

FREE: Final = 3
NUMBERS: Final = range(first := 10_000 + os.getpid() % 100 * 20, first + 19)
"""A foreign program may bind every address, so each test process uses ports of its own."""
ONE: Final = range(NUMBERS.stop, NUMBERS.stop + 1)
KINDS: Final = {"stream": socket.SOCK_STREAM, "datagram": socket.SOCK_DGRAM}
PROTOCOLS: Final = {socket.SOCK_STREAM: "tcp", socket.SOCK_DGRAM: "udp"}
EVERYWHERE: Final = [pytest.param("0.0.0.0"), pytest.param("::", marks=NEEDS_IPV6)]
LOOPBACKS: Final = [
    pytest.param("127.0.0.1"),
    pytest.param(OWN_ADDRESS, id="another"),
    pytest.param("::1", marks=NEEDS_IPV6),
]
BIND: Final = """
import os, socket, time
bound = socket.socket(socket.{family}, socket.{kind})
bound.bind(("{address}", int(os.environ["PORT_GAME"])))
print("bound", flush=True)
time.sleep(3600)
"""


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> socket.SocketKind:
    assert isinstance(request.param, socket.SocketKind)
    return request.param


@pytest.fixture
def other_program(kind: socket.SocketKind) -> Iterator[OtherProgram]:
    with closing(OtherProgram(kind, NUMBERS, FREE)) as other_program:
        yield other_program


@pytest.fixture
async def limited_node(host: RuntimeHost, other_program: OtherProgram) -> RuntimeHost:
    host.node = replace(host.node, process_ports=NUMBERS)
    await host.anew()
    return host


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def want(host: RuntimeHost, kind: socket.SocketKind, address: str = "127.0.0.1") -> RunRequest:
    family = family_of(address).name
    program = BIND.format(family=family, kind=kind.name, address=address)
    script = f"exec '{sys.executable}' -S -c '{program}'"
    return host.want(script, ports={"game": PortRequest(PROTOCOLS[kind])})


async def bound(host: RuntimeHost, order: RunRequest) -> int:
    [(address, number)] = (await host.reports.wait_for(order.id, "placed")).values()
    assert address == "127.0.0.1"
    assert await host.lines(order, 1) == ["bound"]
    return int(number)


@pytest.mark.parametrize("everywhere", EVERYWHERE)
async def test_port_of_a_foreign_program_is_skipped(
    limited_node: RuntimeHost, other_program: OtherProgram, kind: socket.SocketKind, everywhere: str
) -> None:
    fitting = [want(limited_node, kind, everywhere) for _ in range(FREE)]
    assert {await bound(limited_node, order) for order in fitting} == other_program.free
    late = await limited_node.reports.end(want(limited_node, kind, everywhere).id)
    assert late == RunEnd("no_ports", message="no port of this node is free")
    number = other_program.let_go()
    assert await bound(limited_node, want(limited_node, kind, everywhere)) == number
    assert (
        await limited_node.reports.end(want(limited_node, kind, everywhere).id)
    ).reason == "no_ports"


@pytest.mark.full
async def test_port_of_an_ended_run_is_reused_after_quarantine(
    limited_node: RuntimeHost, other_program: OtherProgram, kind: socket.SocketKind
) -> None:
    now_s = 1_000.0
    limited_node.supervisor.placements = node_allocation.PlacementAllocator(
        has_users=False, numbers=NUMBERS, monotonic_s=lambda: now_s
    )
    fitting = [want(limited_node, kind) for _ in range(FREE)]
    numbers = [await bound(limited_node, order) for order in fitting]
    for order, number in itertools.islice(zip(fitting, numbers, strict=True), 2):
        limited_node.supervisor.end(order.id, 0)
        await limited_node.reports.end(order.id)
        await until(lambda: len(limited_node.supervisor.runs) < FREE)
        assert (await limited_node.reports.end(want(limited_node, kind).id)).reason == "no_ports"
        await until(lambda: len(limited_node.supervisor.runs) < FREE)
        now_s += node_allocation.PORT_QUARANTINE_S
        assert await bound(limited_node, want(limited_node, kind)) == number


def draw(kind: socket.SocketKind, protocol: str | None = None) -> int | None:
    try:
        return node_allocation.draw_free_port(
            ONE, lambda number: False, protocol or PROTOCOLS[kind]
        )
    except node_allocation.NoFreePort:
        return None


def hold(kind: socket.SocketKind, address: str) -> socket.socket:
    listener = socket.socket(family_of(address), kind)
    if listener.family is socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, ONE[0]))
    if kind is socket.SOCK_STREAM:
        listener.listen()
    return listener


@pytest.mark.parametrize("address", [*LOOPBACKS, *EVERYWHERE])
async def test_port_is_occupied_by_a_listener_at_any_address(
    kind: socket.SocketKind, address: str
) -> None:
    with hold(kind, address):
        assert draw(kind) is None
        [other] = set(KINDS.values()) - {kind}
        assert draw(other) == ONE[0], "TCP and UDP have numbers of their own"
        assert draw(kind, "tcp_udp") is None, "a port of both needs both"
    assert draw(kind) == draw(kind, "tcp_udp") == ONE[0]


@pytest.mark.parametrize("address", LOOPBACKS)
async def test_time_wait_connections_do_not_occupy_a_port(address: str) -> None:
    with hold(socket.SOCK_STREAM, address) as listening:
        with socket.create_connection((address, ONE[0])):
            # The side that closes first keeps the connection in TIME_WAIT.
            listening.accept()[0].close()
        assert draw(socket.SOCK_STREAM) is None
    assert draw(socket.SOCK_STREAM) == ONE[0]


WITHOUT_IPV6: Final = """
import socket, sys
from pyservice.runtime import node_allocation
from tests.runtime.test_process_ports import KINDS, ONE, deny_ipv6, draw, hold
deny_ipv6()
try:
    socket.socket(socket.AF_INET6)
except OSError as error:
    print(error.strerror)
for kind in KINDS.values():
    with hold(kind, sys.argv[1]):
        print(draw(kind))
    print(draw(kind) == ONE[0])
"""


def deny_ipv6() -> None:
    """Removes IPv6 from this process, as `RestrictAddressFamilies` of systemd does."""
    load, equal, give_back = 0x20, 0x15, 0x06
    where_number, where_family = 0, 16
    number_of_socket = {"x86_64": 41, "aarch64": 198}[platform.machine()]
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EAFNOSUPPORT
    program = (
        (load, 0, 0, where_number),
        (equal, 0, 3, number_of_socket),
        (load, 0, 0, where_family),
        (equal, 0, 1, socket.AF_INET6),
        (give_back, 0, 0, refuse),
        (give_back, 0, 0, allow),
    )
    packed = b"".join(
        code.to_bytes(2, "little") + bytes((then, other)) + value.to_bytes(4, "little")
        for code, then, other, value in program
    )

    class Filter(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("program", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    program_filter = Filter(len(program), packed)
    assert libc.prctl(set_seccomp, by_filter, ctypes.byref(program_filter)) == 0


@pytest.mark.full
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="system calls have other numbers here"
)
async def test_ports_are_chosen_on_a_machine_without_ipv6() -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_IPV6, OWN_ADDRESS],
        capture_output=True,
        text=True,
        check=False,
    )
    refusal = os.strerror(errno.EAFNOSUPPORT)
    assert (result.stderr, result.stdout.splitlines()) == ("", [refusal, *("None", "True") * 2])
