"""Code that the HTTP and gRPC servers share: settings, client addresses, rate limits, large bodies,
trace ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyservice.schema.methods import Method
from pyservice.transport.client_address import Network

KIB: Final = 1024
MIB: Final = 1024 * KIB
DATA_REQUESTS_MAX: Final = 4_096
CONTROL_REQUESTS_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class TransportSettings:
    trusted_proxies: tuple[str | Network, ...] = ()
    """Networks that may set `X-Forwarded-For` and `x-coords`."""
    front_proxies: tuple[str | Network, ...] = ()
    """Networks of reverse proxies before edge-guard. A connection from such a network has many
    clients.
    """
    game_server_ids: tuple[range, ...] = ()
    """User ids of the game servers of this machine. They are never trusted proxies."""
    proxy_protocol: bool = False
    """Whether connections from trusted proxies begin with a PROXY protocol v2 header."""
    cors_origins: tuple[str, ...] = ()
    """Origins such as `https://console.example.com`, or `*`. Routes that are open to all ignore
    this list.
    """
    body_limit_bytes: int = MIB
    headers_limit_bytes: int = 32 * KIB
    """Limit of header names and values, plus 4 bytes for each header. For gRPC it limits the
    metadata.
    """
    url_limit_bytes: int = 8 * KIB
    bodies_limit_bytes: int = 128 * MIB
    """Limit of all request bodies and gRPC messages together."""
    receive_timeout_ms: int = 15_000
    """Timeout for the head of a request, and again for its body."""
    keep_alive_timeout_ms: int = 75_000
    """An idle HTTP connection is closed after this time. 0: after every response."""
    connections_max: int | None = None
    """Limit of HTTP connections. One client address may have half of them. None: no limit."""
    rpc_connections_max: int | None = None
    data_requests_max: int = DATA_REQUESTS_MAX
    """Limit of the requests that the front passes on to the data plane at a time, for each
    protocol. Many of them wait for a lobby that starts.
    """
    control_requests_max: int = CONTROL_REQUESTS_MAX
    message_limit_bytes: int = MIB
    streams_per_connection: int = 1024
    is_internal: bool = False
    """Whether the requests come from the front, which adds their client addresses and ray ids, and
    holds their long polls.
    """


def message_limit_bytes(method: Method, settings: TransportSettings) -> int:
    """Returns the limit of a gRPC request message."""
    return max(settings.message_limit_bytes, method.body_limit_bytes or 0)
