"""Public HTTP and gRPC servers of the data plane: the front, and the Python servers behind it."""

from __future__ import annotations

import socket
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyservice import openapi
from pyservice.calls import Operation
from pyservice.edge.http_application import HttpApplication
from pyservice.edge.http_server import HttpServer, listen_unix
from pyservice.edge.link_page import link_page
from pyservice.edge.static_document import StaticDocument
from pyservice.front.front_server import FrontConfig, FrontServer
from pyservice.front.grpc_methods import GrpcFront, grpc_front
from pyservice.observability import health
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import RequestMetrics
from pyservice.observability.rays import Rays
from pyservice.process.stop_signals import StopSignals
from pyservice.rpc import ChangesPoll, InternalClient, RpcServer
from pyservice.schema.methods import METHODS
from pyservice.settings import Settings
from pyservice.settings.user_ids import host_user_ids
from pyservice.transport import CONTROL_REQUESTS_MAX, DATA_REQUESTS_MAX, TransportSettings
from pyservice.transport.rate_limits import Limits
from pyservice.watch import Changes, LongPolls, Topics
from pyservice_cli.project import schema_text

_RPC_PART: Final = 4
"""Divisor for the gRPC server's part of the connections. One gRPC connection has many calls."""
_PASSED_PART: Final = 25
"""Divisor for the limits of passed requests if few files may be open."""
_FILES_OF_DATA_REQUEST: Final = 5
"""A request to the data plane opens two files: one in the front, and one in the server behind it.
There are up to 150 % more connections. As many are idle, a quarter is for long responses that
clients receive slowly, and a quarter for repeats of long polls.
"""

log = get_logger("service")


@dataclass(frozen=True, slots=True)
class ServerContext:
    settings: Settings
    metrics: RequestMetrics
    limits: Limits
    rays: Rays


@dataclass(frozen=True, slots=True)
class PublicListeners:
    """Listening sockets of clients, and of edge-guard."""

    http: socket.socket
    grpc: socket.socket | None = None
    """None: the Python server listens itself."""
    edge: socket.socket | None = None


class PublicServers:
    """HTTP and gRPC servers of the data plane. Call `start`, `stop` and `close` once each, in this
    order.

    The front has the public ports, and passes requests on to the Python servers at unix sockets.
    With the setting `front = "off"`, the Python servers have the public ports.
    """

    def __init__(
        self,
        context: ServerContext,
        table: Mapping[str, Operation],
        topics: Topics,
        front_config: FrontConfig,
        listeners: PublicListeners,
    ) -> None:
        settings, rays = context.settings, context.rays
        has_front = settings.front == "on"
        transport = transport_settings(settings)
        served = replace(transport, is_internal=True) if has_front else transport
        self._long_polls = long_polls = LongPolls(topics)
        openapi_document = openapi.document(
            METHODS.values(), public_url=settings.public_base or "/"
        )
        app = HttpApplication(
            table,
            served,
            context.metrics,
            context.limits.data_plane_limit,
            long_polls=long_polls,
            documents=[
                StaticDocument(b"/openapi.json", openapi_document),
                StaticDocument(b"/hosting.schema.json", schema_text().encode()),
                link_page(),
            ],
            rays=rays,
        )
        self._front: FrontServer | None = None
        if has_front:
            self._http = HttpServer(app, [listen_unix(settings.data_http_socket)])
            self._front = FrontServer(context.metrics, context.limits, rays)
            context.metrics.before_scrape = self._front.take_measurements
        else:
            self._http = HttpServer(app, [listeners.http])
        self._rpc = RpcServer(
            table,
            served,
            context.metrics,
            context.limits.data_plane_limit,
            f"unix:{settings.data_grpc_socket}" if has_front else str(settings.grpc),
            long_polls=long_polls,
            rays=rays,
            other_services={name.rpartition(".")[0] for name in METHODS} if has_front else (),
        )
        self._own_methods = table.keys()
        self._sockets = settings.data_grpc_socket, settings.control_socket
        self._topics = topics
        self._metrics = context.metrics.front
        self._transport = transport
        self._front_config = front_config
        self._listeners = listeners
        self._grace_s = settings.stop_grace_ms / 1000

    def work(self, control: InternalClient) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        yield "ChangesPoll", ChangesPoll(control, self._take_control_plane_changes).run()
        if self._front is not None:
            yield "FrontServer", self._front.run()

    def _take_control_plane_changes(self, changes: Changes) -> None:
        if self._front is not None:
            self._front.take_control_plane_changes(changes)

    @property
    def waiting_long_polls(self) -> int:
        return len(self._long_polls) + self._metrics.parked

    async def start(self) -> int:
        """Starts all servers and returns the public gRPC port."""
        await self._http.start()
        port = await self._rpc.start()
        listeners = self._listeners
        if self._front is None or listeners.grpc is None:
            return port
        port = int(listeners.grpc.getsockname()[1])
        self._front.start(
            listeners.http,
            listeners.edge,
            self._transport,
            self._front_config,
            self._topics,
            self._grpc_front(listeners.grpc),
        )
        listeners.grpc.close()
        return port

    def _grpc_front(self, listener: socket.socket) -> GrpcFront:
        return grpc_front(self._transport, self._own_methods, listener.fileno(), self._sockets)

    def report_stopping(self) -> None:
        """Makes the gRPC health service report NOT_SERVING."""
        self._rpc.health.set_serving(False)
        if self._front is not None:
            self._front.report_stopping()

    async def stop(self, signals: StopSignals) -> None:
        """Stops the front, and then the servers behind it."""
        if self._front is not None:
            await signals.end_all([self._front.stop], self._grace_s)
        await signals.end_all([self._http.stop, self._rpc.stop], self._grace_s)


def warn_without_front(settings: Settings) -> None:
    if settings.front == "off":
        log.warning(
            "the front is off: this is for development and not for the public internet",
            problem="slow and hostile clients can block the service",
        )


def transport_settings(settings: Settings) -> TransportSettings:
    http, messages = settings.http_limits, settings.grpc_limits
    passed_max = max(1, health.descriptor_limit() // _PASSED_PART)
    data_requests_max = min(DATA_REQUESTS_MAX, passed_max)
    connections_max = health.connections_max() - _FILES_OF_DATA_REQUEST * data_requests_max
    rpc_connections_max = connections_max // _RPC_PART
    return TransportSettings(
        trusted_proxies=settings.trusted_proxies,
        front_proxies=settings.edge.proxies,
        game_server_ids=_game_server_ids(settings),
        proxy_protocol=settings.proxy_protocol,
        cors_origins=settings.cors_origins,
        body_limit_bytes=http.body_bytes,
        headers_limit_bytes=http.header_bytes,
        url_limit_bytes=http.url_bytes,
        bodies_limit_bytes=http.bodies_bytes,
        receive_timeout_ms=http.slow_client_ms,
        keep_alive_timeout_ms=http.keep_alive_ms,
        connections_max=connections_max - rpc_connections_max,
        rpc_connections_max=rpc_connections_max,
        data_requests_max=data_requests_max,
        control_requests_max=min(CONTROL_REQUESTS_MAX, passed_max),
        message_limit_bytes=messages.message_bytes,
        streams_per_connection=messages.streams_per_connection,
    )


def _game_server_ids(settings: Settings) -> tuple[range, ...]:
    # Also without root: the control plane may be a process of root.
    ids = host_user_ids(settings.runtime.user_ids, settings.runtime.container_user_ids)
    return (ids.servers.numbers, ids.containers.numbers)
