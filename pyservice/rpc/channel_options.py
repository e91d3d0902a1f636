"""Options of grpcio for a server: message sizes, number of connections, idle time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyservice.schema.methods import METHODS
from pyservice.transport import TransportSettings, client_address

# Factor above the limit up to which the service reports the error itself. grpcio rejects larger messages with
# its own text.
_GRPCIO_LIMIT_FACTOR: Final = 4
# Idle seconds after which grpcio pings a connection.
_PING_MS: Final = 75_000
# A name may stand for an IPv4 and an IPv6 address. grpcio counts the connections of each.
_ADDRESSES_OF_NAME: Final = 2


def largest_message_bytes(door: TransportSettings, served: Iterable[str]) -> int:
    own_limits = (METHODS[name].body_limit_bytes or 0 for name in served)
    return max(_GRPCIO_LIMIT_FACTOR * door.message_limit_bytes, 0, *own_limits)


def options(door: TransportSettings, address: str, largest_bytes: int) -> list[tuple[str, Any]]:
    metadata_limit = _GRPCIO_LIMIT_FACTOR * door.headers_limit_bytes
    found: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", largest_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", metadata_limit),
        ("grpc.absolute_max_metadata_size", metadata_limit),
        ("grpc.max_concurrent_streams", door.streams_per_connection),
        # Otherwise two processes on one port would share the calls by chance.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", door.receive_timeout_ms),
        ("grpc.keepalive_time_ms", _PING_MS),
        ("grpc.keepalive_timeout_ms", door.receive_timeout_ms),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]
    if not door.is_internal:
        # Unlike HTTP, closing after a response would fail a call that arrives at that moment.
        idle_ms = max(door.keep_alive_timeout_ms, door.receive_timeout_ms)
        found.append(("grpc.max_connection_idle_ms", idle_ms))
    if door.rpc_connections_max is not None:
        most = door.rpc_connections_max // (_ADDRESSES_OF_NAME if _is_name(address) else 1)
        found.append(("grpc.max_allowed_incoming_connections", max(1, most)))
    return found


def _is_name(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return not address.startswith("unix:") and client_address.parse_address(host) is None
