"""HTTP and gRPC code that both transports share: settings, addresses, rates, budgets, headers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyservice.transport.client_address import Network

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Sizes, times and trust of the doors; defaults are those of decisions 1."""

    trusted_proxies: tuple[str | Network, ...] = ()
    """Networks whose `X-Forwarded-For` and `x-coords` are believed."""
    front_proxies: tuple[str | Network, ...] = ()
    """Networks whose `X-Forwarded-For` edge-guard believes: a connection of theirs stands for many clients."""
    proxy_protocol: bool = False
    """HTTP connections from trusted proxies begin with a PROXY protocol v2 header."""
    cors_origins: tuple[str, ...] = ()
    """Origins that may use what is not open to all, `https://console.example.com`; `*` is any."""
    body_limit_bytes: int = MIB
    headers_limit_bytes: int = 32 * KIB
    """Names and values, 4 bytes added for each; of a gRPC call its metadata."""
    url_limit_bytes: int = 8 * KIB
    bodies_limit_bytes: int = 128 * MIB
    """All bodies together that an HTTP door holds; see `bodies`."""
    receive_timeout_ms: int = 15_000
    """For the head of a request, and again for its body."""
    keep_alive_timeout_ms: int = 75_000
    """An HTTP connection without a request is closed after so long; 0: after every answer."""
    backlog: int = 2048
    connections_max: int | None = None
    """HTTP connections at one time, of one client address half of them; more are closed at once. None: no limit."""
    rpc_connections_max: int | None = None
    """gRPC connections at one time; more are closed at once. None: no limit."""
    message_limit_bytes: int = MIB
    streams_per_connection: int = 1024
    """Calls at once on one gRPC connection."""
    is_internal: bool = False
    """Requests come from a door of ours, which says who the client is and holds what is parked; every
    operation counts as the control plane's."""
