"""Public HTTP and gRPC servers of the data plane, including their long polls.

The servers forward the operations of the control plane to its process.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pyservice import openapi
from pyservice.calls import Operation
from pyservice.dataplane.engine import REFUSAL_SLUGS, Engine
from pyservice.edge.forwarding import HttpForwarder
from pyservice.edge.front import FrontConfig, FrontServer
from pyservice.edge.http_application import create_app
from pyservice.edge.http_server import make_server
from pyservice.edge.static_document import StaticDocument
from pyservice.observability import health
from pyservice.observability.metrics import RequestMetrics
from pyservice.observability.rays import Rays
from pyservice.process.stop_signals import StopSignals
from pyservice.rpc import ChangesPoll, InternalClient, RpcForwarder, RpcServer
from pyservice.schema.methods import METHODS
from pyservice.settings import ListenAddress, Settings
from pyservice.settings.user_ids import host_user_ids
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from pyservice.watch import LongPolls, Topics

_RPC_PART: Final = 4
"""Divisor for the gRPC server's part of the connections. One gRPC connection has many calls."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    settings: Settings
    metrics: RequestMetrics
    limits: Limits
    rays: Rays


class PublicServers:
    """Public HTTP and gRPC servers. Call `start`, `stop` and `close` once each, in this order."""

    def __init__(
        self,
        context: ServerContext,
        table: Mapping[str, Operation],
        topics: Topics,
        engine: Engine,
        front_config: FrontConfig,
        listener: socket.socket,
        edge_sockets: Sequence[socket.socket],
    ) -> None:
        """`listener` accepts HTTP clients, and `edge_sockets` accept edge-guard."""
        settings, rays = context.settings, context.rays
        self._grace_s = settings.stop_grace_ms / 1000
        self._transport = _transport_settings(settings)
        shared = (self._transport, context.metrics, context.limits)
        forwarded = METHODS.keys() - table.keys()
        self._own_polls = own = LongPolls()
        topics.listen(lambda changes: own.take(topics.run, changes))
        self._forwarded_polls = LongPolls()
        self._forwarder = HttpForwarder(settings.control_http_socket, self._forwarded_polls, rays)
        self._rpc_forwarder = RpcForwarder(settings.control_socket, self._forwarded_polls, rays)
        app = create_app(
            table,
            *shared,
            forwarder=self._forwarder,
            forwarded=forwarded,
            long_polls=self._own_polls,
            rays=rays,
            documents=[
                StaticDocument(
                    b"/openapi.json",
                    openapi.document(METHODS.values(), public_url=settings.public_base or "/"),
                )
            ],
        )
        self._listener = listener
        self._front_config = front_config
        self._has_front = self._transport.keep_alive_timeout_ms > 0
        self._server = make_server(
            app, edge_sockets if self._has_front else [listener, *edge_sockets]
        )
        self._front = FrontServer(
            engine.start_front,
            REFUSAL_SLUGS,
            self._server,
            context.metrics,
            context.limits,
            rays,
            engine.namespace_of_lobby,
        )
        context.metrics.before_scrape = self._front.take_measurements
        self._rpc = RpcServer(
            table,
            *shared,
            str(settings.grpc),
            forwarder=self._rpc_forwarder,
            forwarded=forwarded,
            long_polls=self._own_polls,
            rays=rays,
        )

    def work(self, control: InternalClient) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        yield "ChangesPoll", ChangesPoll(control, self._forwarded_polls).run()
        yield "FrontServer", self._front.run()

    @property
    def waiting_long_polls(self) -> int:
        return len(self._own_polls) + len(self._forwarded_polls)

    async def start(self) -> int:
        """Starts both servers and returns the gRPC port."""
        await self._server.start()
        if self._has_front:
            self._front.start(self._listener, self._transport, self._front_config)
        return await self._rpc.start()

    def report_stopping(self) -> None:
        """Makes the gRPC health service report NOT_SERVING."""
        self._rpc.health.set_serving(False)

    async def stop(self, signals: StopSignals) -> None:
        await signals.end_all([self._front.stop, self._rpc.stop], self._grace_s)

    async def close(self) -> None:
        await self._forwarder.close()
        await self._rpc_forwarder.close()


def _transport_settings(settings: Settings) -> TransportSettings:
    http, messages = settings.http_limits, settings.grpc_limits
    connections_max = health.connections_max()
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
        backlog=http.backlog,
        connections_max=connections_max - rpc_connections_max,
        rpc_connections_max=rpc_connections_max,
        message_limit_bytes=messages.message_bytes,
        streams_per_connection=messages.streams_per_connection,
    )


def _game_server_ids(settings: Settings) -> tuple[range, ...]:
    # Without root, game servers have the user of the service.
    if os.geteuid() != 0:
        return ()
    ids = host_user_ids(settings.runtime.user_ids, settings.runtime.container_user_ids)
    return (ids.servers.numbers, ids.containers.numbers)


def listen(address: ListenAddress, backlog: int) -> socket.socket:
    """Opens a listening socket. Raises OSError with the address in its message."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(backlog)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def bound_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return str(ListenAddress(host, port))


class ProbeServer:
    def __init__(self, application: Any, listener: socket.socket) -> None:
        self._config = Config(
            application,
            loop="none",
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        self._listener = listener
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._config.load()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpToolsProtocol(self._config, self._state, {}, loop), sock=self._listener
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=1.0)
