"""Methods of gRPC that the front (`native/front`) gets from Python at its start."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.schema.methods import METHODS, STREAMS
from pyservice.transport import KIB, TransportSettings, message_limit_bytes

STREAM_MESSAGE_BYTES: Final = 64 * KIB
"""Limit of the request message of a stream, which may last for long."""


class FrontMethod(NamedTuple):
    """One method with a single request message."""

    path: str
    slug: str
    is_control: bool
    """Whether the control plane serves the method."""
    message_limit_bytes: int
    needs_token: bool
    is_stream: bool
    """Whether the method has many response messages."""


@dataclass(frozen=True, slots=True)
class GrpcFront:
    """How the front serves gRPC. Native code reads the attributes."""

    listener_fd: int
    connections_max: int | None
    methods: list[FrontMethod]
    data_socket: Path
    control_socket: Path
    streams_per_connection: int
    metadata_bytes_max: int
    idle_timeout_ms: int


def grpc_front(
    settings: TransportSettings,
    own: Set[str],
    listener_fd: int,
    sockets: tuple[Path, Path],
) -> GrpcFront:
    """Returns the description. `own` are the methods of the data plane, and `sockets` those of the
    data plane and of the control plane.
    """
    data_socket, control_socket = sockets
    return GrpcFront(
        listener_fd,
        settings.rpc_connections_max,
        methods(settings, own),
        data_socket,
        control_socket,
        settings.streams_per_connection,
        settings.headers_limit_bytes,
        # Unlike HTTP, closing after a response would fail a call that arrives at that moment.
        max(settings.keep_alive_timeout_ms, settings.receive_timeout_ms),
    )


def methods(settings: TransportSettings, own: Set[str]) -> list[FrontMethod]:
    found: list[FrontMethod] = []
    for name, method in METHODS.items():
        unary = FrontMethod(
            method.grpc_path,
            method.slug,
            name not in own,
            message_limit_bytes(method, settings),
            method.needs_token,
            is_stream=False,
        )
        found.append(unary)
        if name in STREAMS:
            service = method.grpc_path.rpartition("/")[0]
            path = f"{service}/{STREAMS[name].rpc_name}"
            limit_bytes = min(unary.message_limit_bytes, STREAM_MESSAGE_BYTES)
            stream = unary._replace(path=path, message_limit_bytes=limit_bytes, is_stream=True)
            found.append(stream)
    return found
