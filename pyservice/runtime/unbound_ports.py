"""Search for running game servers that do not listen where their players arrive."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from time import monotonic
from typing import Final, Literal, NamedTuple

from pyservice.observability.logging import get_logger
from pyservice.runtime.process_environment import BACKEND_ADDRESS, ProcessPort, port_variables
from pyservice.runtime.run_lifecycle import RunLifecycle
from pyservice.runtime.run_supervisor import RunSupervisor

_INTERVAL_S: Final = 2.0
_START_S: Final = 10.0
"""Time that a game server has to open its ports before they are reported."""
_LISTENING, _UNCONNECTED = "0A", "07"
"""States of the sockets in `/proc/net` that can receive from a new peer."""
_TABLES: Final[Sequence[tuple[str, Literal["TCP", "UDP"], str]]] = (
    ("tcp", "TCP", _LISTENING),
    ("tcp6", "TCP", _LISTENING),
    ("udp", "UDP", _UNCONNECTED),
    ("udp6", "UDP", _UNCONNECTED),
)
_REACHED: Final = (IPv4Address(BACKEND_ADDRESS), IPv4Address(0))
_EVERY_V6: Final = IPv6Address(0)
_SOLVED: Final = "The server listens on all of its ports now."
_PROCESSES_MAX: Final = 256
_FILES_MAX: Final = 4_096
_SHOWN_MAX: Final = 4

_log = get_logger("runtime")


class Listener(NamedTuple):
    """A socket that can receive from a new peer."""

    protocol: Literal["TCP", "UDP"]
    address: IPv4Address | IPv6Address
    port: int
    inode: str

    def __str__(self) -> str:
        over = " over UDP" if self.protocol == "UDP" else ""
        return f"{self.address}:{self.port}{over}"


class BoundPorts(NamedTuple):
    """Ports that a TCP socket listens on, and those that a UDP socket has."""

    tcp: Set[int]
    udp: Set[int]


def find_listeners(folder: Path = Path("/proc/net")) -> list[Listener]:
    return [
        Listener(protocol, _address(host), int(port, 16), inode)
        for name, protocol, expected in _TABLES
        for _, local, _, state, _, _, _, _, _, inode, *_ in _sockets(folder / name)
        for host, _, port in [local.partition(":")]
        if state == expected
    ]


def _sockets(file: Path) -> list[list[str]]:
    try:
        return [line.split() for line in file.read_text().splitlines()[1:]]
    except FileNotFoundError:  # the machine has no IPv6
        return []


def _address(text: str) -> IPv4Address | IPv6Address:
    """Returns the address of a socket. The kernel prints it as numbers in its own byte order."""
    numbers = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    packed = b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)
    if len(packed) == 4:
        return IPv4Address(packed)
    address = IPv6Address(packed)
    return address.ipv4_mapped or address


def bound_ports(listeners: Iterable[Listener]) -> BoundPorts:
    numbers = [(one.protocol, one.port) for one in listeners]
    return BoundPorts(
        *(frozenset(port for of, port in numbers if of == kind) for kind in ("TCP", "UDP"))
    )


def reached_listeners(listeners: Iterable[Listener], wanted: Collection[int]) -> list[Listener]:
    """Returns the listeners on these ports that receive what edge-guard sends to BACKEND_ADDRESS."""
    return [
        one
        for one in listeners
        if one.port in wanted
        and (one.address in _REACHED or (one.address == _EVERY_V6 and _takes_ipv4(one)))
    ]


def _takes_ipv4(listener: Listener) -> bool:
    """Returns whether a listener on all IPv6 addresses also has the IPv4 address.

    The kernel does not list that. If so, no other socket can have the address.
    """
    kind = socket.SOCK_STREAM if listener.protocol == "TCP" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as trial:
        try:
            trial.bind((BACKEND_ADDRESS, listener.port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _sockets_of(keeper_pid: int) -> set[str]:
    """Returns the inodes of the sockets of a run's processes, as far as this process may see them."""
    inodes = set()
    for pid in _descendants(keeper_pid):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd")[:_FILES_MAX]:
                with contextlib.suppress(OSError):
                    kind, _, rest = os.readlink(f"/proc/{pid}/fd/{name}").partition(":[")
                    if kind == "socket":
                        inodes.add(rest.rstrip("]"))
    return inodes


def _descendants(pid: int) -> list[int]:
    found = list(_children(pid))
    for one in found:
        if len(found) >= _PROCESSES_MAX:
            break
        # The list grows while it is read.
        found += _children(one)
    return found


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())


def unbound_variables(
    ports: Mapping[str, ProcessPort], protocols: Mapping[str, str], bound: BoundPorts
) -> list[str]:
    """Returns the variables of the ports that no socket has, such as `PORT_GAME=12345`.

    A port without a known protocol counts as bound if a socket of any protocol has it.
    """
    unbound = []
    for name, port in sorted(ports.items()):
        missing = missing_protocols(port.number, protocols.get(name), bound)
        if port.number and missing:
            has_other = port.number in bound.tcp | bound.udp
            over = f" over {' and '.join(missing)}" if has_other else ""
            variables = port_variables({name: port}).items()
            unbound += [f"{one}={number}{over}" for one, number in variables if one != "PORT"]
    return unbound


def missing_protocols(number: int, protocol: str | None, bound: BoundPorts) -> list[str]:
    """Returns the names of the protocols that a port still needs a socket of."""
    is_bound = {"TCP": number in bound.tcp, "UDP": number in bound.udp}
    if protocol is None:
        return [] if any(is_bound.values()) else list(is_bound)
    kinds = ("TCP", "UDP") if protocol == "tcp_udp" else ("UDP" if protocol == "udp" else "TCP",)
    return [kind for kind in kinds if not is_bound[kind]]


def _has_unserved_port(
    ports: Mapping[str, ProcessPort], protocols: Mapping[str, str], bound: BoundPorts
) -> bool:
    """Returns whether nothing at all listens on one of the ports."""
    for name, port in ports.items():
        protocol = protocols.get(name)
        missing = missing_protocols(port.number, protocol, bound)
        is_half_served = protocol == "tcp_udp" and len(missing) == 1
        if port.number and missing and not is_half_served:
            return True
    return False


def _sentence(unbound: Sequence[str], elsewhere: Sequence[Listener]) -> str:
    missing = f"Nothing listens at {', '.join(unbound)}"
    if not elsewhere:
        return f"{missing}."
    shown = ", ".join(map(str, elsewhere[:_SHOWN_MAX]))
    variable = unbound[0].partition("=")[0]
    return f"{missing}, but the server listens on {shown}; players reach {BACKEND_ADDRESS}:${variable}."


class PortsProblem(NamedTuple):
    sentence: str
    has_unserved_port: bool
    """True if nothing listens on one of the ports, over any of its protocols."""


class UnboundPorts:
    """Running game servers that do not listen on a port that they were given."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called after a change of `unreachable_lobbies`."""
        self._since_s: dict[str, float] = {}
        """When a run was first seen as running. Infinite if it listens on all of its ports."""
        self._problems: dict[str, PortsProblem] = {}
        self._lobby_ids: set[str] = set()

    def problem(self, run_id: str) -> str | None:
        """Returns what is wrong with the ports of a run as a sentence, or None."""
        problem = self._problems.get(run_id)
        return None if problem is None else problem.sentence

    def unreachable_lobbies(self) -> dict[str, str]:
        """Returns the running lobbies with a port at which nothing listens, with a sentence each."""
        return {
            run_id: problem.sentence
            for run_id, problem in self._problems.items()
            if problem.has_unserved_port and run_id in self._lobby_ids
        }

    async def run(self, supervisor: RunSupervisor) -> None:
        while True:
            await self.check(supervisor.runs, monotonic())
            await asyncio.sleep(_INTERVAL_S)

    async def check(self, runs: Mapping[str, RunLifecycle], now_s: float) -> None:
        before = self.unreachable_lobbies()
        await self._check(runs, now_s)
        if self.unreachable_lobbies() != before:
            self.on_change()

    async def _check(self, runs: Mapping[str, RunLifecycle], now_s: float) -> None:
        running = {run_id: run for run_id, run in runs.items() if run.state == "running"}
        self._lobby_ids = {
            run_id for run_id, run in running.items() if run.parameters.owner == "lobby"
        }
        self._since_s = {
            # A run of an earlier service has had its time to start.
            run_id: self._since_s.get(run_id, now_s if run.is_new else float("-inf"))
            for run_id, run in running.items()
        }
        self._problems = {
            run_id: one for run_id, one in self._problems.items() if run_id in running
        }
        due = [run_id for run_id, since_s in self._since_s.items() if now_s - since_s >= _START_S]
        if not due:
            return
        problems = await asyncio.to_thread(_problems, [running[run_id] for run_id in due])
        for run_id, problem in zip(due, problems, strict=True):
            running[run_id].ports_problem = None if problem is None else problem.sentence
            if problem is None:
                self._since_s[run_id] = float("inf")
                if self._problems.pop(run_id, None) is not None:
                    await running[run_id].log_problem(_SOLVED)
            elif self._problems.get(run_id) != problem:
                self._problems[run_id] = problem
                _log.warning(
                    "a game server does not listen on its ports",
                    id=run_id,
                    problem=problem.sentence,
                )
                await running[run_id].log_problem(problem.sentence)


def _problems(runs: Sequence[RunLifecycle]) -> list[PortsProblem | None]:
    """Returns the problem of the ports of each run, or None."""
    placed_ports = [{} if run.placement is None else run.placement.ports for run in runs]
    numbers = {port.number for ports in placed_ports for port in ports.values()}
    listeners = find_listeners()
    reached = reached_listeners(listeners, numbers)
    return [
        _problem(run, ports, listeners, reached)
        for run, ports in zip(runs, placed_ports, strict=True)
    ]


def _problem(
    run: RunLifecycle,
    ports: Mapping[str, ProcessPort],
    listeners: Sequence[Listener],
    reached: Sequence[Listener],
) -> PortsProblem | None:
    # Players reach a direct port without edge-guard, at any address.
    direct = {port.number for port in ports.values() if port.is_direct}
    usable = [*reached, *(one for one in listeners if one.port in direct)]
    bound = bound_ports(usable)
    unbound = unbound_variables(ports, run.port_protocols, bound)
    if not unbound:
        return None
    keeper_pid = run.keeper_pid
    inodes = set() if keeper_pid is None else _sockets_of(keeper_pid)
    elsewhere = [one for one in listeners if one.inode in inodes and one not in usable]
    is_unserved = _has_unserved_port(ports, run.port_protocols, bound)
    return PortsProblem(_sentence(unbound, elsewhere), is_unserved)
