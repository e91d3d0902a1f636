"""The gRPC server. It has the operations of the HTTP API, with the same checks in the same order.

Handlers are built from the proto descriptors, without generated servicers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from pyservice.calls import Call, Caller, Operation, WaitForChange
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, OK, Meter, RequestMetrics, TransportMetrics
from pyservice.observability.rays import Rays, Trace, current
from pyservice.rpc.error_status import RAY_ID, status_code, trailers
from pyservice.rpc.forwarding import ForwardedCall, RpcForwarder, UpstreamError, check_parked
from pyservice.rpc.health import Health, add_health, add_reflection
from pyservice.rpc.internal_grpc import Handler, add_internal, listen
from pyservice.rpc.slow_message_limits import SlowMessageLimits
from pyservice.schema.methods import METHODS, STREAMS, Method, Stream
from pyservice.schema.validation import refuse_invalid
from pyservice.transport import (
    TransportSettings,
    client_address,
    large_body_worker,
    request_headers,
)
from pyservice.transport.client_address import TrustedProxies
from pyservice.transport.rate_limits import Limits, OperationLimit, check_rate_limit
from pyservice.transport.request_headers import check_idempotency_key
from pyservice.transport.socket_owners import GameServerConnections
from pyservice.watch import LongPolls, run_until_changed

Context = grpc.aio.ServicerContext[bytes, bytes]

# Factor above the limit up to which the service reports the error itself. grpcio rejects larger messages with
# its own text.
_GRPCIO_LIMIT_FACTOR: Final = 4
# Idle seconds after which grpcio pings a connection.
_PING_MS: Final = 75_000
# A name may stand for an IPv4 and an IPv6 address. grpcio counts the connections of each.
_ADDRESSES_OF_NAME: Final = 2


def largest_message_bytes(settings: TransportSettings, names: Iterable[str]) -> int:
    own_limits = (METHODS[name].body_limit_bytes or 0 for name in names)
    return max(_GRPCIO_LIMIT_FACTOR * settings.message_limit_bytes, 0, *own_limits)


def options(settings: TransportSettings, address: str, largest_bytes: int) -> list[tuple[str, Any]]:
    metadata_limit = _GRPCIO_LIMIT_FACTOR * settings.headers_limit_bytes
    entries: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", largest_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", metadata_limit),
        ("grpc.absolute_max_metadata_size", metadata_limit),
        ("grpc.max_concurrent_streams", settings.streams_per_connection),
        # Otherwise two processes on one port would share the calls by chance.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", settings.receive_timeout_ms),
        ("grpc.keepalive_time_ms", _PING_MS),
        ("grpc.keepalive_timeout_ms", settings.receive_timeout_ms),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]
    if not settings.is_internal:
        # Unlike HTTP, closing after a response would fail a call that arrives at that moment.
        idle_ms = max(settings.keep_alive_timeout_ms, settings.receive_timeout_ms)
        entries.append(("grpc.max_connection_idle_ms", idle_ms))
    if settings.rpc_connections_max is not None:
        most = settings.rpc_connections_max // (_ADDRESSES_OF_NAME if _is_name(address) else 1)
        entries.append(("grpc.max_allowed_incoming_connections", max(1, most)))
    return entries


def _is_name(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return not address.startswith("unix:") and client_address.parse_address(host) is None


def stream_handler(
    unary: grpc.RpcMethodHandler[bytes, bytes], stream: Stream
) -> grpc.RpcMethodHandler[bytes, bytes]:
    serve: Any = unary.unary_unary

    async def serve_stream(data: bytes, context: Context) -> None:
        last_index = None
        while True:
            reply = await serve(data, context)
            index = stream.index_of(reply)
            if index != last_index:
                await context.write(reply)
            last_index = index
            data = stream.next_request(data, reply)

    return grpc.unary_stream_rpc_method_handler(serve_stream)


_Fields = dict[str, Any]
Work = Callable[[bytes, Context, _Fields, Trace], Awaitable[bytes]]
"""Work between the head of a call and its response."""

# Overhead of one header, as in the HTTP server.
_HEADER_OVERHEAD: Final = 4
_MAX_PEERS: Final = 4096
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

log = get_logger("pyservice.rpc")


class RpcServer:
    """Serves operations over gRPC. `address` is `host:port` or `unix:<path>`, and port 0 picks a
    free port.

    Create it on the event loop that serves.
    """

    def __init__(
        self,
        operations: Mapping[str, Operation],
        settings: TransportSettings,
        metrics: RequestMetrics,
        limits: Limits,
        address: str,
        *,
        forwarder: RpcForwarder | None = None,
        forwarded: Iterable[str] = (),
        long_polls: LongPolls | None = None,
        internal: Mapping[str, Handler] | None = None,
        rays: Rays | None = None,
    ) -> None:
        self._address = address
        rays = rays or Rays("rpc", queued_max=0, is_internal=settings.is_internal)
        self._calls = _Calls(settings, metrics.grpc, long_polls, rays)
        services: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {}
        largest_bytes = largest_message_bytes(settings, (*operations, *forwarded))
        # The public server has already received forwarded messages in full.
        self._message_limits = None
        if not settings.is_internal:
            self._message_limits = SlowMessageLimits(
                settings, largest_bytes, metrics.grpc, self._calls.client_of
            )

        def add(method: Method, handler: Any, rpc_name: str | None = None) -> None:
            service, _, name = method.name.rpartition(".")
            if self._message_limits is not None:
                handler = self._message_limits.limit_first_message(
                    handler, takes_errors=True, needs_token=method.needs_token
                )
            services.setdefault(service, {})[rpc_name or name] = handler

        for name, operation in operations.items():
            method = METHODS[name]
            rate_limit = (
                limits.control_plane_limit(method.slug)
                if settings.is_internal
                else limits.data_plane_limit(method.slug)
            )
            handler = self._calls.handler(operation, method, rate_limit)
            add(method, handler)
            if name in STREAMS:
                stream = STREAMS[name]
                add(method, stream_handler(handler, stream), stream.rpc_name)
        names = tuple(forwarded)
        for name in names:
            if forwarder is None:
                raise ValueError("forwarded operations need a forwarder")
            add(METHODS[name], self._calls.forwarding_handler(METHODS[name], forwarder))
        self.health = Health(services)
        self._server = grpc.aio.server(options=options(settings, address, largest_bytes))
        add_internal(self._server, internal or {})
        for service, handlers in services.items():
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handlers),)
            )
        add_health(self._server, self.health, self._message_limits)
        add_reflection(self._server, services, self._message_limits)

    async def start(self) -> int:
        try:
            port = listen(self._server, self._address)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {self._address}: {error}") from error
        self._calls.port = port
        await self._server.start()
        self.health.set_serving(True)
        return port

    async def stop(self, grace_s: float) -> None:
        self.health.end()
        # grpcio ends calls without a status. End ours just before that.
        stopping = asyncio.ensure_future(self._server.stop(grace_s + 1.0))
        done, _ = await asyncio.wait({stopping}, timeout=grace_s)
        if not done:
            self._calls.refuse_running()
        await stopping
        if self._message_limits is not None:
            self._message_limits.close()


class _Calls:
    """Creates the handlers of the gRPC methods, and tracks the calls that are running."""

    def __init__(
        self,
        settings: TransportSettings,
        metrics: TransportMetrics,
        long_polls: LongPolls | None,
        rays: Rays,
    ) -> None:
        self._settings = settings
        self._rays = rays
        self._long_polls = long_polls
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._game_servers = GameServerConnections(settings.game_server_ids)
        self.port = 0
        self._metrics = metrics
        self._peers: dict[str, tuple[client_address.Address, bytes]] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._is_refusing = False
        self._loop = asyncio.get_running_loop()

    def refuse_running(self) -> None:
        self._is_refusing = True
        for task in tuple(self._running):
            task.cancel()

    def handler(
        self, operation: Operation, method: Method, rate_limit: OperationLimit | None
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        meter = self._metrics.meter(method.slug)
        run, authorize, read = operation.run, operation.authorize, self._reader(method)
        takes_key = method.http_method not in _SAFE_METHODS
        is_internal, long_polls = self._settings.is_internal, self._long_polls

        async def work(data: bytes, context: Context, fields: _Fields, trace: Trace) -> bytes:
            ray_id = trace.ray_id
            call = self._call(context, fields, ray_id)
            authorization = authorize(call)
            caller = authorization if isinstance(authorization, Caller) else await authorization
            trace.caller = caller
            trace.authorized = perf_counter()
            if rate_limit is not None and not (
                is_internal and request_headers.INTERNAL_HELD in fields
            ):
                check_rate_limit(rate_limit, caller, meter)
            if takes_key:
                check_idempotency_key(call.idempotency_key)
            else:
                call.idempotency_key = None
            if len(data) <= large_body_worker.LARGE_BYTES:
                message = read(data)
            else:
                message = await large_body_worker.WORKER.run(caller.identity, partial(read, data))
            trace.message = message
            trace.handled = perf_counter()
            response = await run(message, caller)
            if isinstance(response, WaitForChange):
                if is_internal:
                    park = (request_headers.INTERNAL_WAIT, request_headers.wait_text(response))
                    context.set_trailing_metadata(((RAY_ID, ray_id), park))
                    return b""
                check_parked(data, context)
                trace.has_waited = True
                response = await run_until_changed(run, message, caller, response, long_polls)
            context.set_trailing_metadata(((RAY_ID, ray_id),))
            return response.SerializeToString()

        return self._measured_handler(method, meter, work)

    def forwarding_handler(
        self, method: Method, forwarder: RpcForwarder
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        limit = self._limit_bytes(method)

        async def work(data: bytes, context: Context, fields: _Fields, trace: Trace) -> bytes:
            _check_length(data, limit)
            client, _, _ = self._client(context, fields)
            check = partial(check_parked, data, context)
            forwarded_call = ForwardedCall(method.grpc_path, data, fields, client, trace, check)
            response = await forwarder.answer(forwarded_call, context.time_remaining())
            context.set_trailing_metadata(((RAY_ID, trace.ray_id),))
            return response

        return self._measured_handler(method, self._metrics.meter(method.slug), work)

    def _measured_handler(
        self, method: Method, meter: Meter, work: Work
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        transport_metrics, running, loop = self._metrics, self._running, self._loop
        rays = self._rays
        headers_limit = self._settings.headers_limit_bytes

        async def serve(data: bytes | ServiceError, context: Context) -> bytes:
            started = perf_counter()
            task = asyncio.current_task(loop)
            assert task is not None, "grpcio runs every handler in a task"
            running.add(task)
            transport_metrics.in_flight += 1
            trace = Trace("", started)
            current.set(trace)
            code = "INTERNAL"
            failure: ServiceError | UpstreamError
            try:
                fields, size = _fields(context)
                trace.ray_id, trace.parent_span = request_headers.read_traceparent(
                    fields.get("traceparent")
                )
                if size > headers_limit:
                    raise ServiceError("HEADERS_TOO_LARGE")
                if isinstance(data, ServiceError):
                    raise data
                reply = await work(data, context, fields, trace)
                code = OK
                return reply
            except (ServiceError, UpstreamError) as error:
                failure = error
                code = error.code
            except asyncio.CancelledError:
                if not self._is_refusing:
                    code = CANCELLED if context.time_remaining() != 0 else "DEADLINE_EXCEEDED"
                    raise
                failure = ServiceError("SHUTTING_DOWN")
                code = failure.code
            except Exception:
                log.exception("operation failed", operation=method.slug, ray_id=trace.ray_id)
                failure = ServiceError("INTERNAL")
            finally:
                running.discard(task)
                transport_metrics.in_flight -= 1
                ended = perf_counter()
                meter.observe(code, ended - started)
                rays.end(trace, "grpc", method.slug, code, ended)
            if isinstance(failure, UpstreamError):
                await context.abort(failure.status, failure.detail, failure.trailers)
            else:
                await context.abort(
                    status_code(failure), failure.detail, trailers(failure, trace.ray_id)
                )
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(serve)

    def _reader(self, method: Method) -> Callable[[bytes], Message]:
        limit = self._limit_bytes(method)
        parse = method.request.FromString

        def read(data: bytes) -> Message:
            _check_length(data, limit)
            try:
                message = parse(data)
            except DecodeError as error:
                raise ServiceError(
                    "BODY_INVALID",
                    "The message does not have the request type of this method; check the proto file.",
                ) from error
            refuse_invalid(method, message)
            return message

        return read

    def _call(self, context: Context, fields: _Fields, ray_id: str) -> Call:
        client, address, coords = self._client(context, fields)
        remaining_s = context.time_remaining()
        return Call(
            ray_id,
            address,
            fields.get("authorization"),
            fields.get("origin"),
            fields.get("idempotency-key"),
            coords,
            None if remaining_s is None else self._loop.time() + remaining_s,
            fields.get("user-agent"),
            None,
            client,
            self._settings.is_internal
            and fields.get(request_headers.INTERNAL_HELD) == request_headers.HELD_EXPIRED,
        )

    def _client(
        self, context: Context, fields: _Fields
    ) -> tuple[client_address.Address, bytes, tuple[float, float] | None]:
        peer, address = self._peer(context.peer())
        if self._settings.is_internal:
            client = (
                client_address.parse_address(fields.get(request_headers.INTERNAL_CLIENT, ""))
                or peer
            )
            return client, client_address.packed_client(client), None
        if not self._proxies or not self._proxies.trusts(peer):
            return peer, address, None
        # The library does not report the local address. It equals that of a peer of this machine,
        # unless the peer has bound another one.
        peer_port = context.peer().rpartition(":")[2]
        if peer_port.isdigit() and self._game_servers.contain(
            (peer, int(peer_port)), (peer, self.port)
        ):
            return peer, address, None
        client = self._proxies.client(peer, fields.get("x-forwarded-for"))
        return (
            client,
            client_address.packed_client(client),
            client_address.coordinates(fields.get("x-coords", "")),
        )

    def client_of(self, context: Context) -> bytes:
        fields, _ = _fields(context)
        return self._client(context, fields)[1]

    def _limit_bytes(self, method: Method) -> int:
        return max(self._settings.message_limit_bytes, method.body_limit_bytes or 0)

    def _peer(self, text: str) -> tuple[client_address.Address, bytes]:
        entry = self._peers.get(text)
        if entry is None:
            kind, _, rest = text.partition(":")
            host = unquote(rest).rpartition(":")[0].strip("[]") if kind != "unix" else ""
            peer = client_address.parse_address(host) or client_address.LOCAL
            entry = (peer, client_address.packed_client(peer))
            if len(self._peers) >= _MAX_PEERS:
                self._peers.clear()
            self._peers[text] = entry
        return entry


def _check_length(data: bytes, limit_bytes: int) -> None:
    if len(data) > limit_bytes:
        detail = f"Send at most {limit_bytes} bytes, not {len(data)}."
        raise ServiceError("BODY_TOO_LARGE", detail)


def _fields(context: Context) -> tuple[_Fields, int]:
    fields: _Fields = {}
    size = 0
    for key, value in context.invocation_metadata() or ():
        size += len(key) + len(value) + _HEADER_OVERHEAD
        fields[key] = f"{fields[key]}, {value!s}" if key in fields else value
    return fields, size
