"""gRPC between the service and its nodes, over TCP with mutual TLS.

Both ends have certificates of one authority. The name of a node is in its certificate. A table says
what a node may call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.network.node_names import SERVICE_HOST, node_of_host
from pyservice.network.node_silence import PING_INTERVAL_S, PING_TIMEOUT_S
from pyservice.observability.logging import get_logger
from pyservice.rpc.internal_grpc import call_error, call_unary, end_failed, method_of
from pyservice.rpc.node_certificates import NodeCertificates, Pem

UnaryHandler = Callable[[Any], Awaitable[Message]]
StreamHandler = Callable[[Any], AsyncIterator[Message]]
"""Handler of a method that streams its responses."""
Rule = Callable[[Any, str], str | None]
"""Returns why the node with this name may not send a request, or None."""

_Context = grpc.aio.ServicerContext[Any, Any]


def _if_it_names_itself(request: Any, node: str) -> str | None:
    if request.node == node:
        return None
    return f"The certificate is that of the node {node}, and the request is for {request.node!r}."


def _always(request: Any, node: str) -> str | None:
    return None


MAY_CALL: Final[Mapping[str, Rule]] = {
    "hosting.internal.v1.Routes.Follow": _if_it_names_itself,
    "hosting.internal.v1.Routes.CountSessions": _if_it_names_itself,
    # A node that knows the digest of an archive may have it.
    "hosting.internal.v1.Archives.Get": _always,
    # The service takes only logs of runs that it has placed on the node.
    "hosting.internal.v1.NodeLogs.Copy": _if_it_names_itself,
    # The service takes only the usage of such runs.
    "hosting.internal.v1.NodeUsage.ReportUsage": _if_it_names_itself,
}
"""Methods that a node may call, with the rule of their requests. All others are refused."""

_MAX_RECEIVED_BYTES: Final = 16 << 20
_MAX_ANSWER_BYTES: Final = 64 << 20
_HOUR_MS: Final = 3_600_000
_SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_RECEIVED_BYTES),
    ("grpc.max_send_message_length", _MAX_ANSWER_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A replaced authority or certificate then holds for all connections, and an archive has time to end.
    ("grpc.max_connection_age_ms", _HOUR_MS),
    ("grpc.max_connection_age_grace_ms", _HOUR_MS),
    # Nodes send pings too.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
)
_CLIENT_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", _MAX_RECEIVED_BYTES),
    # The address may be that of a load balancer or of the host.
    ("grpc.ssl_target_name_override", SERVICE_HOST),
    ("grpc.use_local_subchannel_pool", 1),
    # Reconnects within a second or two after the network was cut.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SLOW_PINGS_S: Final = 10.0
"""Time between two pings where nothing waits for the loss of a connection to be noticed."""
_NODE_PINGS_S: Final = 2.0
_REFUSAL_LOG_S: Final = 60.0
_REPLACED_CHANNEL_S: Final = 1_800.0
"""Time for calls in progress, such as the transfer of an archive, after a certificate was replaced."""

_log = get_logger("nodes")


class NodeServer:
    """Listener for nodes. `handlers` and `streams` are keyed by full method name."""

    def __init__(
        self,
        handlers: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler],
        certificates: NodeCertificates,
        address: str,
        pings_s: float = PING_INTERVAL_S,
    ) -> None:
        """`pings_s` is the time between two pings. Raises ValueError for a method that no node may call."""
        if unlisted := {*handlers, *streams} - MAY_CALL.keys():
            raise ValueError(f"no node may call {', '.join(sorted(unlisted))}")
        self._address = address
        self._certificates = certificates
        # Ends the calls of a node that has gone without closing its connections, or that hangs.
        timeout_s = pings_s * PING_TIMEOUT_S / PING_INTERVAL_S
        options = (
            *_SERVER_OPTIONS,
            *_pings(pings_s, timeout_s),
            # The timeout of a ping while bytes still arrive, or while the kernel of a node acknowledges them.
            ("grpc.http2.ping_timeout_ms", int(timeout_s * 1_000)),
        )
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((_Methods(handlers, streams),))

    async def start(self) -> int:
        """Returns the port. Raises OSError."""
        credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(self._certificates.pem),
            _Replacements(self._certificates).next,  # type: ignore[arg-type]  # the stub omits None
            require_client_authentication=True,
        )
        try:
            port = self._server.add_secure_port(self._address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen for nodes on {self._address}: {error}") from error
        await self._server.start()
        return port

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)


def _pings(interval_s: float, timeout_s: float) -> Iterator[tuple[str, int]]:
    yield "grpc.keepalive_time_ms", int(interval_s * 1_000)
    yield "grpc.keepalive_timeout_ms", int(timeout_s * 1_000)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(pem.key, pem.certificate)], root_certificates=pem.authority
    )


class _Replacements:
    """Certificates for new connections of a server, or None while they have not changed.

    grpc calls `next` in threads of its own.
    """

    def __init__(self, certificates: NodeCertificates) -> None:
        self._certificates = certificates
        self._given = certificates.pem
        self._lock = threading.Lock()

    def next(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            self._certificates.refresh()
            pem = self._certificates.pem
            if pem == self._given:
                return None
            self._given = pem
            return _configuration(pem)


class _Methods(grpc.GenericRpcHandler):
    """All methods: those of the table, and a refusal of each other one."""

    def __init__(
        self, handlers: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> None:
        self._methods = {
            **{name: _serve(name, handler) for name, handler in handlers.items()},
            **{name: _serve_stream(name, handler) for name, handler in streams.items()},
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        name = handler_call_details.method.removeprefix("/").replace("/", ".")
        return self._methods.get(name) or _refuse(name)


def _refuse(name: str) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(data: bytes, context: _Context) -> bytes:
        return await _abort(context, await _node(context), f"A node may not call {name}.")

    return grpc.unary_unary_rpc_method_handler(refuse)


def _serve(name: str, handler: UnaryHandler) -> grpc.RpcMethodHandler[Any, Any]:
    method, read = method_of(name), _reader(name)

    async def serve(data: bytes, context: _Context) -> bytes:
        request = await read(data, context)
        try:
            return (await handler(request)).SerializeToString()
        except Exception as error:  # noqa: BLE001 — `end_failed` logs an unexpected one
            failure = error
        return await end_failed(context, method, failure)

    return grpc.unary_unary_rpc_method_handler(serve)


def _serve_stream(name: str, handler: StreamHandler) -> grpc.RpcMethodHandler[Any, Any]:
    method, read = method_of(name), _reader(name)

    async def serve(data: bytes, context: _Context) -> None:
        request = await read(data, context)
        try:
            async for response in handler(request):
                await context.write(response.SerializeToString())
        except Exception as error:  # noqa: BLE001 — `end_failed` logs an unexpected one
            failure = error
        else:
            return
        await end_failed(context, method, failure)

    return grpc.unary_stream_rpc_method_handler(serve)


def _reader(name: str) -> Callable[[bytes, _Context], Awaitable[Any]]:
    """Returns a reader of the requests of a method. It ends the call of a client that may not send one."""
    method, rule = method_of(name), MAY_CALL[name]
    parse = message_factory.GetMessageClass(method.input_type).FromString

    async def read(data: bytes, context: _Context) -> Any:
        node = await _node(context)
        try:
            request = parse(data)
        except Exception as error:  # noqa: BLE001 — `end_failed` logs an unexpected one
            await end_failed(context, method, error)
        refusal = rule(request, node)
        if refusal is not None:
            await _abort(context, node, refusal)
        return request

    return read


async def _node(context: _Context) -> str:
    """Returns the name of the node in the client's certificate. Ends the call without one."""
    hosts = [host.decode(errors="replace") for host in context.auth_context().get("peer_dns", ())]
    nodes = [node for node in map(node_of_host, hosts) if node is not None]
    if len(nodes) == 1:
        return nodes[0]
    names = ", ".join(hosts) or "no name"
    sentence = "The certificate must have the name of one node, such as n1.node.hosting"
    return await _abort(context, "", f"{sentence}, and it has {names}.")


_logged_s: Final[dict[str, float]] = {}
"""Time of the last logged refusal by node."""


async def _abort(context: _Context, node: str, sentence: str) -> NoReturn:
    now_s = time.monotonic()
    if now_s - _logged_s.get(node, -_REFUSAL_LOG_S) >= _REFUSAL_LOG_S:
        _logged_s[node] = now_s
        _log.warning("call of a node refused", node=node, peer=context.peer(), reason=sentence)
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, sentence)
    raise AssertionError("abort raises")


class NodeClient:
    """Calls of a node to the service. Use it as an async context manager.

    If the certificates are replaced, new calls have a new connection.
    """

    def __init__(
        self, address: str, certificates: NodeCertificates, pings_s: float = _NODE_PINGS_S
    ) -> None:
        """`pings_s` is the time between two pings, and the time for the answer of one."""
        self._address = address
        self._options = (*_CLIENT_OPTIONS, *_pings(pings_s, pings_s))
        self._certificates = certificates
        self._channel = self._open()
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, name: str, request: Message, timeout_s: float = 10.0) -> Any:
        """Raises ServiceError, and Unreachable with the reason."""
        return await call_unary(self._current(), name, request, timeout_s, self._address)

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        """Yields the responses of a method that streams them. Raises the errors of `call`."""
        method = method_of(name)
        call = self._current().unary_stream(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )(request)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as failure:
            raise call_error(failure, self._address) from failure
        finally:
            call.cancel()

    def _current(self) -> grpc.aio.Channel:
        if self._certificates.refresh():
            closing = asyncio.create_task(self._channel.close(_REPLACED_CHANNEL_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._channel = self._open()
        return self._channel

    def _open(self) -> grpc.aio.Channel:
        pem = self._certificates.pem
        credentials = grpc.ssl_channel_credentials(pem.authority, pem.key, pem.certificate)
        return grpc.aio.secure_channel(self._address, credentials, options=self._options)

    async def close(self) -> None:
        await cancel_and_wait(*self._closing)
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
