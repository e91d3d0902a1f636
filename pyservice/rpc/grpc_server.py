"""The gRPC server. It has the operations of the HTTP API, with the same checks in the same order.

Handlers are built from the proto descriptors, without generated servicers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Any, Final
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from pyservice.calls import Call, EncodedRequest, Operation, WaitForChange
from pyservice.errors import ServiceError
from pyservice.front import internal_headers
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, OK, RequestMetrics, TransportMetrics
from pyservice.observability.rays import Rays, Trace, current
from pyservice.pb.errors import WRONG_MESSAGE
from pyservice.rpc.error_status import RAY_ID, status_code, trailers
from pyservice.rpc.health import Health, add_health, add_reflection
from pyservice.rpc.internal_grpc import Handler, add_internal, listen
from pyservice.schema.methods import METHODS, STREAMS, Method, Stream
from pyservice.schema.validation import refuse_invalid
from pyservice.transport import (
    TransportSettings,
    client_address,
    trace_context,
)
from pyservice.transport.native import check_idempotency_key
from pyservice.transport.operation_steps import OperationSteps
from pyservice.transport.rate_limits import LimitOf, OperationLimit
from pyservice.watch import LongPolls, run_until_changed

Context = grpc.aio.ServicerContext[bytes, bytes]

# Factor above the limit up to which the service reports the error itself. grpcio rejects larger messages with
# its own text.
_GRPCIO_LIMIT_FACTOR: Final = 4

_PAID: Final = frozenset({internal_headers.INTERNAL_REPEAT, internal_headers.INTERNAL_ADMITTED})
"""A call with metadata of one of these names has paid its rate limits."""

_Fields = dict[str, Any]

log = get_logger("pyservice.rpc")


def options(settings: TransportSettings, largest_bytes: int) -> list[tuple[str, Any]]:
    metadata_limit = _GRPCIO_LIMIT_FACTOR * settings.headers_limit_bytes
    return [
        ("grpc.max_receive_message_length", largest_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", metadata_limit),
        ("grpc.absolute_max_metadata_size", metadata_limit),
        # Otherwise two processes on one port would share the calls by chance.
        ("grpc.so_reuseport", 0),
    ]


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


class RpcServer:
    """Serves operations over gRPC. `address` is `host:port` or `unix:<path>`, and port 0 picks a
    free port.

    Calls of an internal server (`settings.is_internal`) come from the front. It holds long polls,
    and this server holds those of streams. Create it on the event loop that serves.
    """

    def __init__(
        self,
        operations: Mapping[str, Operation],
        settings: TransportSettings,
        metrics: RequestMetrics,
        limit_of: LimitOf,
        address: str,
        *,
        long_polls: LongPolls | None = None,
        internal: Mapping[str, Handler] | None = None,
        rays: Rays | None = None,
        other_services: Iterable[str] = (),
    ) -> None:
        """`other_services` are behind the same front. Health and reflection name them too."""
        self._address = address
        rays = rays or Rays("rpc", queued_max=0)
        self._calls = _Calls(settings, metrics.grpc, long_polls, rays)
        services: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {}
        for name, operation in operations.items():
            method = METHODS[name]
            rate_limit = limit_of(method.slug)
            service, _, rpc_name = name.rpartition(".")
            handlers = services.setdefault(service, {})
            handlers[rpc_name] = self._calls.handler(
                operation, method, rate_limit, holds=not settings.is_internal
            )
            if name in STREAMS:
                stream = STREAMS[name]
                repeated = self._calls.handler(operation, method, rate_limit, holds=True)
                handlers[stream.rpc_name] = stream_handler(repeated, stream)
        known = sorted({*services, *other_services})
        self.health = Health(known)
        largest_bytes = max(
            _GRPCIO_LIMIT_FACTOR * settings.message_limit_bytes,
            *(METHODS[name].body_limit_bytes or 0 for name in operations),
        )
        self._server = grpc.aio.server(options=options(settings, largest_bytes))
        add_internal(self._server, internal or {})
        for service, handlers in services.items():
            generic = grpc.method_handlers_generic_handler(service, handlers)
            self._server.add_generic_rpc_handlers((generic,))
        add_health(self._server, self.health)
        add_reflection(self._server, known)

    async def start(self) -> int:
        try:
            port = listen(self._server, self._address)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {self._address}: {error}") from error
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
        self._metrics = metrics
        self._running: set[asyncio.Task[Any]] = set()
        self._is_refusing = False
        self._loop = asyncio.get_running_loop()

    def refuse_running(self) -> None:
        self._is_refusing = True
        for task in tuple(self._running):
            task.cancel()

    def handler(
        self,
        operation: Operation,
        method: Method,
        rate_limit: OperationLimit | None,
        *,
        holds: bool,
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Returns the handler of a unary method. If it `holds` long polls, its response is the
        change. Otherwise its trailing metadata names the change that the call waits for.
        """
        meter = self._metrics.meter(method.slug)
        steps = OperationSteps(operation, rate_limit, meter)
        read_message = self._reader(method)
        takes_key = method.takes_key
        is_internal, long_polls = self._settings.is_internal, self._long_polls

        async def work(data: bytes, context: Context, fields: _Fields, trace: Trace) -> bytes:
            call = self._call(context, fields, trace.ray_id)
            if not takes_key:
                call.idempotency_key = None

            def read() -> Message:
                if call.idempotency_key is not None:
                    check_idempotency_key(call.idempotency_key)
                return read_message(data)

            is_paid = is_internal and not _PAID.isdisjoint(fields)
            encoded = EncodedRequest(method.slug, call, "proto", data, is_paid=is_paid)
            reply = await steps.answer(encoded, read)
            if reply is not None:
                context.set_trailing_metadata(((RAY_ID, trace.ray_id),))
                return reply.proto()
            caller, response = await steps.run(encoded, read, trace)
            if isinstance(response, WaitForChange):
                if not holds:
                    park = (internal_headers.INTERNAL_WAIT, internal_headers.wait_text(response))
                    context.set_trailing_metadata(((RAY_ID, trace.ray_id), park))
                    return b""
                trace.has_waited = True
                response = await run_until_changed(
                    operation.run, trace.message, caller, response, long_polls
                )
            context.set_trailing_metadata(((RAY_ID, trace.ray_id),))
            return response.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(self._traced(method, work))

    def _traced(self, method: Method, work: Any) -> Any:
        running, loop, rays = self._running, self._loop, self._rays
        is_internal, metrics = self._settings.is_internal, self._metrics
        meter = metrics.meter(method.slug)

        async def serve(data: bytes, context: Context) -> bytes:
            started = perf_counter()
            task = asyncio.current_task(loop)
            assert task is not None, "grpcio runs every handler in a task"
            running.add(task)
            fields = _fields(context)
            trace = self._trace(fields, started)
            current.set(trace)
            code = "INTERNAL"
            try:
                reply: bytes = await work(data, context, fields, trace)
                code = OK
                return reply
            except ServiceError as error:
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
                ended = perf_counter()
                if not is_internal:
                    meter.observe(code, ended - started)
                rays.end(trace, "grpc", method.slug, code, ended)
            metadata = trailers(failure, trace.ray_id)
            if is_internal:
                metadata = (*metadata, (internal_headers.INTERNAL_CODE, failure.code))
            await context.abort(status_code(failure), failure.detail, metadata)
            raise AssertionError("abort raises")

        return serve

    def _trace(self, fields: _Fields, started: float) -> Trace:
        if self._settings.is_internal and internal_headers.INTERNAL_RAY in fields:
            return Trace(fields[internal_headers.INTERNAL_RAY], started)
        ray_id, parent_span = trace_context.read_traceparent(fields.get("traceparent"))
        return Trace(ray_id, started, parent_span)

    def _reader(self, method: Method) -> Callable[[bytes], Message]:
        parse = method.request.FromString

        def read(data: bytes) -> Message:
            try:
                message = parse(data)
            except DecodeError as error:
                raise ServiceError("BODY_INVALID", WRONG_MESSAGE) from error
            refuse_invalid(method, message)
            return message

        return read

    def _call(self, context: Context, fields: _Fields, ray_id: str) -> Call:
        client, coords, long_poll_expired = None, None, False
        if self._settings.is_internal:
            client = client_address.parse_address(fields.get(internal_headers.INTERNAL_CLIENT, ""))
            coords = client_address.coordinates(fields.get("x-coords", ""))
            reason = fields.get(internal_headers.INTERNAL_REPEAT)
            long_poll_expired = reason == internal_headers.EXPIRED
        client = client or _peer(context.peer())
        remaining_s = context.time_remaining()
        return Call(
            ray_id,
            client_address.packed_client(client),
            fields.get("authorization"),
            fields.get("origin"),
            fields.get("idempotency-key"),
            coords,
            None if remaining_s is None else self._loop.time() + remaining_s,
            fields.get("user-agent"),
            None,
            client,
            long_poll_expired,
        )


def _peer(text: str) -> client_address.Address:
    kind, _, rest = text.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]") if kind != "unix" else ""
    return client_address.parse_address(host) or client_address.LOCAL


def _fields(context: Context) -> _Fields:
    fields: _Fields = {}
    for key, value in context.invocation_metadata() or ():
        fields[key] = f"{fields[key]}, {value!s}" if key in fields else value
    return fields
