"""Where players reach the ports of lobbies and servers that the service starts (decisions 5.9). Owns the host names and
what is TLS; which numbers there are is the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pyservice.dataplane.native import LeasedPort
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import lobby_pb2

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_TLS_PROTOCOLS: Final = frozenset({"https", "tcp_tls"})

OwnerKind = Literal["lobby", "server"]


@dataclass(frozen=True, slots=True)
class PlayerAddress:
    """What a player connects to. `number` None: one of `port_range`."""

    hostname: str
    number: int | None
    port_range: tuple[int, int] | None
    is_tls: bool


@dataclass(frozen=True, slots=True)
class PlayerAddresses:
    """How edge-guard and the node are called."""

    job_domain: str | None = None
    """None is local mode: everything has a number of its own at the advertised address."""
    advertised: str = "127.0.0.1"
    """Edge-guard's address in local mode."""
    node: str = "127.0.0.1"
    """Of the machine, for processes that are reached without edge-guard."""
    has_certificate: bool = False
    """In local mode: whether TLS ends at edge-guard. Without it https and tcp_tls are served plain."""

    def address_of(
        self, port: LeasedPort, owner: bytes, region: str, label: OwnerKind = "lobby"
    ) -> PlayerAddress:
        """Where a port of a lobby or server is."""
        if port.range is not None:
            return PlayerAddress(self.node, None, port.range, False)
        is_tls = port.protocol in _TLS_PROTOCOLS and (
            self.job_domain is not None or self.has_certificate
        )
        if port.number == 0:
            name = f"{format_uuid(owner)}-{port.name}.{label}.{region}.{self.job_domain}"
            return PlayerAddress(name, _DEFAULT_PORTS[port.protocol], None, is_tls)
        host = f"{region}.{self.job_domain}" if self.job_domain else self.advertised
        return PlayerAddress(host, port.number, None, is_tls)

    def write_port(
        self, answer: lobby_pb2.Port, port: LeasedPort, lobby: bytes, region: str
    ) -> None:
        """A port of a lobby, as find, join and create answer it."""
        player_address = self.address_of(port, lobby, region)
        answer.is_tls = player_address.is_tls
        if player_address.number is not None:
            set_port_address(answer, player_address.hostname, player_address.number)
            return
        answer.hostname = player_address.hostname
        if player_address.port_range is not None:
            answer.port_range.min, answer.port_range.max = player_address.port_range


def set_port_address(port: lobby_pb2.Port, address: str, number: int) -> None:
    """Host name or address and number into a port, and both together as clients connect to it."""
    port.hostname = address
    port.port = number
    # An IPv6 literal needs brackets before a port.
    port.host = f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
