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
    """The public address of one port. `number` is None if the port is a range of port numbers."""

    hostname: str
    number: int | None
    port_range: tuple[int, int] | None
    is_tls: bool


@dataclass(frozen=True, slots=True)
class PlayerAddresses:
    job_domain: str | None = None
    """Domain of player host names. None is local mode: every port has its own number at the
    advertised address.
    """
    advertised: str = "127.0.0.1"
    node: str = "127.0.0.1"
    has_certificate: bool = False
    """For local mode: without a certificate, https and tcp_tls are served without TLS."""

    def address_of(
        self, port: LeasedPort, lease_owner: bytes, region: str, label: OwnerKind = "lobby"
    ) -> PlayerAddress:
        if port.range is not None:
            return PlayerAddress(self.node, None, port.range, False)
        is_tls = port.protocol in _TLS_PROTOCOLS and (
            self.job_domain is not None or self.has_certificate
        )
        if port.number == 0:
            name = f"{format_uuid(lease_owner)}-{port.name}.{label}.{region}.{self.job_domain}"
            return PlayerAddress(name, _DEFAULT_PORTS[port.protocol], None, is_tls)
        host = f"{region}.{self.job_domain}" if self.job_domain else self.advertised
        return PlayerAddress(host, port.number, None, is_tls)

    def write_port(
        self, port_message: lobby_pb2.Port, port: LeasedPort, lobby: bytes, region: str
    ) -> None:
        player_address = self.address_of(port, lobby, region)
        port_message.is_tls = player_address.is_tls
        if player_address.number is not None:
            set_port_address(port_message, player_address.hostname, player_address.number)
            return
        port_message.hostname = player_address.hostname
        if player_address.port_range is not None:
            port_message.port_range.min, port_message.port_range.max = player_address.port_range


def set_port_address(port: lobby_pb2.Port, address: str, number: int) -> None:
    port.hostname = address
    port.port = number
    port.host = f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
