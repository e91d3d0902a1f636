"""What grpcio is told of a door: sizes far beyond our own limits, how many connections there may be, and for how long
one may be of no use. It cannot tell whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyservice.schema.methods import METHODS
from pyservice.transport import TransportSettings, client_address

# How many times its limit a message or metadata may be and still be told so by our own error. All of
# it is in memory by then, for as many calls as a connection may have: grpcio refuses what is larger.
_GRPCIO_LIMIT_FACTOR: Final = 4
# A connection that says nothing is asked after so long whether it is still there.
_PING_MS: Final = 75_000
# A name may stand for an IPv4 and an IPv6 address, and grpcio counts the connections of each by itself.
_ADDRESSES_OF_NAME: Final = 2


def largest_message_bytes(door: TransportSettings, served: Iterable[str]) -> int:
    """The largest message that grpcio takes, when these operations are served."""
    own_limits = (METHODS[name].body_limit_bytes or 0 for name in served)
    return max(_GRPCIO_LIMIT_FACTOR * door.message_limit_bytes, 0, *own_limits)


def options(door: TransportSettings, address: str, largest_bytes: int) -> list[tuple[str, Any]]:
    """Of a server at `host:port` or `unix:<path>` that takes messages up to `largest_bytes`."""
    metadata_limit = _GRPCIO_LIMIT_FACTOR * door.headers_limit_bytes
    found: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", largest_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", metadata_limit),
        ("grpc.absolute_max_metadata_size", metadata_limit),
        ("grpc.max_concurrent_streams", door.streams_per_connection),
        # Two processes on one port would share the calls between them by chance.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", door.receive_timeout_ms),
        ("grpc.keepalive_time_ms", _PING_MS),
        ("grpc.keepalive_timeout_ms", door.receive_timeout_ms),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]
    if not door.is_internal:
        # Never after each answer, as over HTTP: a call that comes while its connection is closed fails.
        idle_ms = max(door.keep_alive_timeout_ms, door.receive_timeout_ms)
        found.append(("grpc.max_connection_idle_ms", idle_ms))
    if door.rpc_connections_max is not None:
        most = door.rpc_connections_max // (_ADDRESSES_OF_NAME if _is_name(address) else 1)
        found.append(("grpc.max_allowed_incoming_connections", max(1, most)))
    return found


def _is_name(address: str) -> bool:
    """Whether `host:port` has a host that is no address."""
    host = address.rpartition(":")[0].strip("[]")
    return not address.startswith("unix:") and client_address.parse_address(host) is None
