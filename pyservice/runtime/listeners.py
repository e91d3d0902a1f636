"""Sockets that can receive from a new peer, as the tables of the kernel have them."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Collection, Iterable, Sequence, Set
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pyservice.runtime.process_environment import BACKEND_ADDRESS

Transport = Literal["TCP", "UDP"]

_LISTENING, _UNCONNECTED = "0A", "07"
"""States of the sockets in `/proc/net` that can receive from a new peer."""
_TABLES: Final[Sequence[tuple[str, Transport, str]]] = (
    ("tcp", "TCP", _LISTENING),
    ("tcp6", "TCP", _LISTENING),
    ("udp", "UDP", _UNCONNECTED),
    ("udp6", "UDP", _UNCONNECTED),
)
_REACHED: Final = (IPv4Address(BACKEND_ADDRESS), IPv4Address(0))
_EVERY_V6: Final = IPv6Address(0)


class Listener(NamedTuple):
    """A socket that can receive from a new peer."""

    protocol: Transport
    address: IPv4Address | IPv6Address
    port: int
    inode: str = ""
    """Number of the socket. Empty: unknown."""

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


def reached_in_pod(listeners: Iterable[Listener], address: str) -> list[Listener]:
    """Returns the listeners that receive what arrives at the address of their Pod.

    The tables do not say whether a listener on all IPv6 addresses also has IPv4, so it counts.
    """
    reached = (ip_address(address), IPv4Address(0), _EVERY_V6)
    return [one for one in listeners if one.address in reached]


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


def missing_protocols(number: int, protocol: str | None, bound: BoundPorts) -> list[str]:
    """Returns the names of the protocols that a port still needs a socket of."""
    is_bound = {"TCP": number in bound.tcp, "UDP": number in bound.udp}
    if protocol is None:
        return [] if any(is_bound.values()) else list(is_bound)
    kinds = ("TCP", "UDP") if protocol == "tcp_udp" else ("UDP" if protocol == "udp" else "TCP",)
    return [kind for kind in kinds if not is_bound[kind]]
