"""HTTP and gRPC code that both transports share: settings, addresses, rates, budgets, headers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyservice.transport.client_address import Network

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Limits, timeouts and trusted networks of a server."""

    trusted_proxies: tuple[str | Network, ...] = ()
    """Networks that may set `X-Forwarded-For` and `x-coords`."""
    front_proxies: tuple[str | Network, ...] = ()
    """Networks whose `X-Forwarded-For` edge-guard trusts. Their connections stand for many clients."""
    proxy_protocol: bool = False
    """HTTP connections from trusted proxies begin with a PROXY protocol v2 header."""
    cors_origins: tuple[str, ...] = ()
    """Origins such as `https://console.example.com`, or `*`, for routes that are not open to all."""
    body_limit_bytes: int = MIB
    headers_limit_bytes: int = 32 * KIB
    """Names and values, plus 4 bytes for each header. For gRPC the metadata."""
    url_limit_bytes: int = 8 * KIB
    bodies_limit_bytes: int = 128 * MIB
    """All request bodies of an HTTP server together."""
    receive_timeout_ms: int = 15_000
    """For the head of a request, and again for its body."""
    keep_alive_timeout_ms: int = 75_000
    """An idle HTTP connection is closed after this time. 0: after every response."""
    backlog: int = 2048
    connections_max: int | None = None
    """HTTP connections, half of them for one client address. None: no limit."""
    rpc_connections_max: int | None = None
    """None: no limit."""
    message_limit_bytes: int = MIB
    streams_per_connection: int = 1024
    is_internal: bool = False
    """An internal server: its requests come from a public server, which names the client and holds
    long polls.
    """
