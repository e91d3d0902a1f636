"""Where players reach the ports of lobbies and servers that the service starts (decisions 5.9). Owns the host names and
what is TLS; which numbers there are is the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pyservice.dataplane.native import LeasedPort
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import lobby_pb2

_USUAL: Final = {"http": 80, "https": 443}
_TLS: Final = frozenset({"https", "tcp_tls"})

Label = Literal["lobby", "server"]


@dataclass(frozen=True, slots=True)
class Reached:
    """What a player connects to. `number` None: one of `span`."""

    hostname: str
    number: int | None
    span: tuple[int, int] | None
    is_tls: bool


@dataclass(frozen=True, slots=True)
class WayIn:
    """How edge-guard and the node are called."""

    job_domain: str | None = None
    """None is local mode: everything has a number of its own at the advertised address."""
    advertised: str = "127.0.0.1"
    """Edge-guard's address in local mode."""
    node: str = "127.0.0.1"
    """Of the machine, for processes that are reached without edge-guard."""
    has_certificate: bool = False
    """In local mode: whether TLS ends at edge-guard. Without it https and tcp_tls are served plain."""

    def reached(
        self, port: LeasedPort, owner: bytes, region: str, label: Label = "lobby"
    ) -> Reached:
        """Where a port of a lobby or server is."""
        if port.range is not None:
            return Reached(self.node, None, port.range, False)
        is_tls = port.protocol in _TLS and (self.job_domain is not None or self.has_certificate)
        if port.number == 0:
            name = f"{format_uuid(owner)}-{port.name}.{label}.{region}.{self.job_domain}"
            return Reached(name, _USUAL[port.protocol], None, is_tls)
        host = f"{region}.{self.job_domain}" if self.job_domain else self.advertised
        return Reached(host, port.number, None, is_tls)

    def write(self, answer: lobby_pb2.Port, port: LeasedPort, lobby: bytes, region: str) -> None:
        """A port of a lobby, as find, join and create answer it."""
        reached = self.reached(port, lobby, region)
        answer.is_tls = reached.is_tls
        if reached.number is not None:
            put_address(answer, reached.hostname, reached.number)
            return
        answer.hostname = reached.hostname
        if reached.span is not None:
            answer.port_range.min, answer.port_range.max = reached.span


def put_address(port: lobby_pb2.Port, address: str, number: int) -> None:
    """Host name or address and number into a port, and both together as clients connect to it."""
    port.hostname = address
    port.port = number
    # An IPv6 literal needs brackets before a port.
    port.host = f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
