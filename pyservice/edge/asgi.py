"""The HTTP/JSON door: takes a request through its checks to an operation and makes the answer.

One path for every operation, built from tables that are made once: route, CORS, token, rate, header
rules, body, rules, handler. `Edge.open` and `Exchange.finish` are that path; `Edge.__call__` is the
same for any ASGI server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import perf_counter
from typing import Any, Final
from urllib.parse import unquote

from pyservice.calls import Call, Caller, Operation
from pyservice.doors import DoorSettings, addresses, admit, check_idempotency_key, tracecontext
from pyservice.doors.addresses import TrustedProxies
from pyservice.doors.limits import Gate, Limits
from pyservice.edge.codec import decoder, encoder
from pyservice.edge.cors import Cors
from pyservice.edge.exchanges import JSON, Answer, Headers, Request, problem
from pyservice.edge.routes import Routes
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, OK, UNROUTED, Meter, RequestMetrics
from pyservice.schema.methods import METHODS, Method
from pyservice.schema.validation import refuse_invalid

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_METHOD_NAMES: Final = {name.encode(): name for name in ("GET", "PUT", "POST", "DELETE", "PATCH")}
_ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

log = get_logger("pyservice.edge")


class Endpoint:
    """One operation at this door: everything about it that does not depend on the request."""

    __slots__ = (
        "authorize",
        "body_limit_bytes",
        "decode",
        "encode",
        "gate",
        "meter",
        "method",
        "run",
        "slug",
        "takes_body",
        "takes_key",
    )

    def __init__(
        self, operation: Operation, method: Method, meter: Meter, gate: Gate | None, body_limit: int
    ) -> None:
        self.authorize = operation.authorize
        self.run = operation.run
        self.decode = decoder(method)
        self.encode = encoder(method)
        self.method = method
        self.meter = meter
        self.gate = gate
        self.slug = method.slug
        self.takes_body = bool(method.body_field)
        self.takes_key = method.http_method not in _SAFE_METHODS
        self.body_limit_bytes = method.body_limit_bytes or body_limit


class Exchange:
    """A request that passed every check, with its operation still to run."""

    __slots__ = ("_caller", "_edge", "_endpoint", "_headers", "_message", "_ray_id", "_started")

    def __init__(
        self,
        edge: Edge,
        endpoint: Endpoint,
        message: Any,
        caller: Caller,
        headers: Headers | None,
        started: float,
    ) -> None:
        self._edge = edge
        self._endpoint = endpoint
        self._message = message
        self._caller = caller
        self._ray_id = caller.call.ray_id
        self._headers = headers
        self._started = started

    async def finish(self) -> Answer:
        """Run the operation. Cancelling this tells the handler that its client went away."""
        endpoint = self._endpoint
        try:
            body = endpoint.encode(await endpoint.run(self._message, self._caller))
        except ServiceError as error:
            return self.refuse(error)
        except Exception:
            log.exception("operation failed", operation=endpoint.slug, ray_id=self._ray_id)
            return self.refuse(ServiceError("INTERNAL"))
        self._edge.count(endpoint.meter, OK, self._started)
        return Answer(200, body, self._ray_id, JSON, self._headers)

    def refuse(self, error: ServiceError) -> Answer:
        """The answer to a request that fails with this error."""
        self._edge.count(self._endpoint.meter, error.code, self._started)
        return problem(error, self._ray_id, self._headers)

    def abandon(self) -> None:
        """Nobody is there to be answered."""
        self._edge.count(self._endpoint.meter, CANCELLED, self._started)


class Edge:
    """The door: an ASGI application. `HttpProtocol` uses `open` directly, without ASGI between."""

    def __init__(
        self,
        operations: Mapping[str, Operation],
        door: DoorSettings,
        metrics: RequestMetrics,
        limits: Limits,
    ) -> None:
        self.door = door
        self.proxies = TrustedProxies(door.trusted_proxies)
        self._metrics = metrics.http
        self._unrouted = metrics.http.meter(UNROUTED)
        self._cors = Cors(door.cors_origins)
        self._routes = Routes(METHODS[name] for name in operations)
        self._endpoints: dict[str, Endpoint] = {}
        for name, operation in operations.items():
            method = METHODS[name]
            self._endpoints[name] = Endpoint(
                operation,
                method,
                metrics.http.meter(method.slug),
                limits.gate(method.slug),
                door.body_limit_bytes,
            )

    def body_limit_bytes(self, request: Request) -> int:
        """The largest body that a request may have, asked before the body is there."""
        try:
            endpoint, _ = self._find(request)
        except ServiceError:
            return self.door.body_limit_bytes
        return endpoint.body_limit_bytes

    def open(self, request: Request) -> Answer | Exchange:
        """Take a request through every check up to its operation; what fails is answered here."""
        started = perf_counter()
        self._metrics.in_flight += 1
        fields = request.headers
        traceparent = fields.get(b"traceparent")
        ray_id = (
            tracecontext.new_ray_id()
            if traceparent is None
            else tracecontext.ray_id(traceparent.decode("latin-1"))
        )
        meter = self._unrouted
        headers: Headers | None = None
        try:
            if b"origin" in fields:
                path = _decoded(request.path)
                headers = self._cors.headers(path, fields[b"origin"])
                if request.method == b"OPTIONS" and b"access-control-request-method" in fields:
                    answer = self._cors.preflight(headers, self._methods_of(path), ray_id)
                    self.count(meter, OK, started)
                    return answer
            if request.failure is not None and not request.is_routable:
                raise request.failure
            endpoint, parameters = self._find(request)
            meter = endpoint.meter
            call = self._call(request, endpoint, ray_id, parameters)
            caller = endpoint.authorize(call)
            if endpoint.gate is not None:
                admit(endpoint.gate, caller, meter)
            _check_form(request, endpoint, call)
            message, unread = endpoint.decode(request.body, request.query, parameters)
            refuse_invalid(endpoint.method, message, unread)
            return Exchange(self, endpoint, message, caller, headers, started)
        except ServiceError as error:
            failure = error
        except Exception:
            log.exception("request failed", ray_id=ray_id)
            failure = ServiceError("INTERNAL")
        self.count(meter, failure.code, started)
        return problem(failure, ray_id, headers)

    def count(self, meter: Meter, code: str, started: float) -> None:
        """One request less in flight."""
        self._metrics.in_flight -= 1
        meter.observe(code, perf_counter() - started)

    def _find(self, request: Request) -> tuple[Endpoint, dict[str, str]]:
        """The endpoint of a request and the parameters of its path. Looked up once per request."""
        known: tuple[Endpoint, dict[str, str]] | None = request.found
        if known is not None:
            return known
        path = _decoded(request.path)
        method = _METHOD_NAMES.get(request.method) or request.method.decode("latin-1")
        found, parameters = self._routes.match(method, path)
        request.found = known = (self._endpoints[found.name], parameters)
        return known

    def _methods_of(self, path: str) -> tuple[str, ...]:
        methods = self._routes.allowed(path)
        if not methods:
            raise ServiceError("NOT_FOUND")
        return methods

    def _call(
        self, request: Request, endpoint: Endpoint, ray_id: str, parameters: dict[str, str]
    ) -> Call:
        """The facts of a request. What is believed of its headers depends on who sent them."""
        fields = request.headers
        address, coords = request.source, None
        if self.proxies and self.proxies.trusts(request.peer):
            client = self.proxies.client(request.peer, _text(fields, b"x-forwarded-for"))
            address = addresses.pack(client)
            coords = addresses.coordinates(_text(fields, b"x-coords") or "")
        return Call(
            ray_id,
            address,
            _text(fields, b"authorization"),
            _text(fields, b"origin"),
            _text(fields, b"idempotency-key") if endpoint.takes_key else None,
            coords,
            None,
            _text(fields, b"user-agent"),
            parameters,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, for servers that are not `HttpProtocol`."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"this application does not speak {scope['type']}")
        request = await self._receive(scope, receive)
        if request is None:
            return
        exchange = self.open(request)
        answer = (
            exchange if isinstance(exchange, Answer) else await _finish_watched(exchange, receive)
        )
        if answer is not None:
            await _send(answer, send, with_body=request.method != b"HEAD")

    async def _receive(self, scope: Scope, receive: Receive) -> Request | None:
        """The request of a scope; None when the client went away before it was whole."""
        fields: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            fields[name] = fields[name] + b", " + value if name in fields else value
        client = scope.get("client")
        peer = addresses.parse(client[0]) if client else None
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        request = Request(scope["method"].encode(), target, fields, peer or addresses.LOCAL)
        limit = self.body_limit_bytes(request)
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            body += event.get("body", b"")
            if len(body) > limit:
                request.failure = ServiceError("BODY_TOO_LARGE")
                return request
            if not event.get("more_body", False):
                request.body = bytes(body)
                return request


def _decoded(path: bytes) -> str:
    """A path as its segments mean it: an encoded slash is part of a segment and divides nothing."""
    text = path.decode("latin-1")
    return unquote(_ENCODED_SLASH.sub("%252F", text)) if "%" in text else text


def _text(fields: dict[bytes, bytes], name: bytes) -> str | None:
    value = fields.get(name)
    return None if value is None else value.decode("latin-1")


def _check_form(request: Request, endpoint: Endpoint, call: Call) -> None:
    """Media type, size and headers, in this order."""
    if endpoint.takes_body:
        media_type = request.headers.get(b"content-type", JSON)
        if media_type != JSON and media_type.partition(b";")[0].strip().lower() != JSON:
            raise ServiceError("MEDIA_TYPE_UNSUPPORTED")
    if request.failure is not None:
        raise request.failure
    if call.idempotency_key is not None:
        check_idempotency_key(call.idempotency_key)


async def _finish_watched(exchange: Exchange, receive: Receive) -> Answer | None:
    """Finish an exchange while listening whether its client goes away; ASGI tells by `receive`."""
    finishing = asyncio.ensure_future(exchange.finish())
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({finishing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if finishing.done():
            return finishing.result()
        exchange.abandon()
        return None
    finally:
        for task in (finishing, leaving):
            task.cancel()
        await asyncio.gather(finishing, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(answer: Answer, send: Send, *, with_body: bool) -> None:
    await send(
        {"type": "http.response.start", "status": answer.status, "headers": answer.header_list()}
    )
    await send({"type": "http.response.body", "body": answer.body if with_body else b""})


async def _live(receive: Receive, send: Send) -> None:
    """Nothing is started or stopped with a server: the process owns that."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return


def create_app(
    operations: Mapping[str, Operation],
    door: DoorSettings,
    metrics: RequestMetrics,
    limits: Limits,
) -> Edge:
    """The door over these operations, by full proto name. One that is not given does not exist."""
    return Edge(operations, door, metrics, limits)
