"""The ASGI application of the API. It checks a request, runs its operation and builds the response.

The order is: route, CORS, token, rate limit, header rules, body, field rules, operation.
`HttpProtocol` calls `HttpApplication.open` directly. `__call__` does the same work for any ASGI
server.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from time import perf_counter
from typing import Any, Final
from urllib.parse import unquote

from pyservice.auth.bearer_token import bearer_token
from pyservice.calls import Call, Caller, Operation
from pyservice.edge import forwarding_headers, woken_batch_format
from pyservice.edge.endpoint import Endpoint, RequestExchange, UnknownCaller
from pyservice.edge.forwarding import ForwardedEndpoint, ForwardedExchange, HttpForwarder
from pyservice.edge.http_messages import Headers, HttpResponse, Request, problem
from pyservice.edge.parked_requests import ParkedRequest, ParkedSender
from pyservice.edge.static_document import StaticDocument
from pyservice.edge.woken_batch_endpoint import WokenBatchEndpoint, WokenBatchExchange
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import OK, UNROUTED, Meter, RequestMetrics
from pyservice.observability.rays import Rays, Trace
from pyservice.schema.methods import METHODS, Method
from pyservice.transport import (
    TransportSettings,
    client_address,
    large_body_worker,
    request_headers,
)
from pyservice.transport.client_address import Address, TrustedProxies
from pyservice.transport.rate_limits import Limits
from pyservice.transport.request_headers import NO_HOST_DETAIL, TWO_HOSTS_DETAIL
from pyservice.transport.server_budgets import SMALL_BYTES, BodyBudget, BodyReservation
from pyservice.transport.socket_owners import GameServerConnections
from pyservice.watch import LongPolls

_OPEN_PREFIXES: Final = ("/matchmaker/", "/events/")
_OPEN_PATHS: Final = frozenset({"/cloud/bootstrap"})
_ANY: Final = "*"

_EXPOSED: Final = (b"access-control-expose-headers", b"x-ray-id, retry-after")
_REQUEST_HEADERS: Final = (
    b"access-control-allow-headers",
    b"authorization, content-type, idempotency-key, traceparent",
)
_MAX_AGE: Final = (b"access-control-max-age", b"7200")
_VARY: Final = (b"vary", b"origin")
_FOR_ANY: Final = (b"access-control-allow-origin", b"*")


class Cors:
    """CORS rules, with the web origins that the operator allows.

    Responses never allow credentials, because the API has no cookies.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._is_any = _ANY.encode() in self._origins

    def headers(self, path: str, origin: bytes) -> Headers:
        if self._is_any or path.startswith(_OPEN_PREFIXES) or path in _OPEN_PATHS:
            return [_FOR_ANY, _EXPOSED]
        if origin in self._origins:
            return [(b"access-control-allow-origin", origin), _EXPOSED, _VARY]
        return [_VARY]

    def preflight(self, headers: Headers, methods: Iterable[str], ray_id: str) -> HttpResponse:
        fields = list(headers)
        if len(headers) > 1:
            allowed = (b"access-control-allow-methods", ", ".join(methods).encode())
            fields += [allowed, _REQUEST_HEADERS, _MAX_AGE]
        return HttpResponse(204, b"", ray_id, b"", fields)


class ClientAddresses:
    """Finds the client address of each request of one HTTP server.

    Forwarding headers count only if a trusted proxy sent them.
    """

    def __init__(self, proxies: TrustedProxies, *, is_internal: bool) -> None:
        self._proxies = proxies
        self._is_internal = is_internal

    def of(self, request: Request) -> tuple[Address, tuple[float, float] | None]:
        fields, peer = request.headers, request.peer
        if self._is_internal:
            return forwarding_headers.client_of(fields) or peer, None
        if request.is_game_server:
            return peer, None
        forwarded_for = fields.get(b"x-forwarded-for", b"").decode("latin-1")
        if request.is_fronted:
            # One address, because edge-guard replaces the header.
            client = client_address.parse_address(forwarded_for) or peer
        else:
            client = self._proxies.client(peer, forwarded_for or None)
        if not self._proxies.trusts(peer):
            return client, None
        return client, client_address.coordinates(fields.get(b"x-coords", b"").decode("latin-1"))


MethodTables = list[tuple[dict[str, Method], dict[str, str]]]
"""Methods of a path by HTTP method, with the parameters of the path."""

_NO_PARAMETERS: Final[dict[str, str]] = {}
_NO_METHODS: Final[dict[str, Method]] = {}
_ENCODED_SLASH: Final = re.compile("%2f", re.IGNORECASE)
# Stands for an encoded slash during matching. No decoding produces this lone surrogate.
_SLASH: Final = "\udc2f"


class _Node:
    """Node of a tree of path templates, which contains all templates with the same first segments.

    For each template that ends here, `tables` maps its parameter names to its operations by HTTP
    method.
    """

    __slots__ = ("fixed", "parameter", "tables")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.tables: dict[tuple[str, ...], dict[str, Method]] = {}

    def below(self, segment: str) -> _Node:
        if not segment.startswith("{"):
            return self.fixed.setdefault(segment, _Node())
        if self.parameter is None:
            self.parameter = _Node()
        return self.parameter


class RouteTable:
    """Mapping from paths and HTTP methods to all operations of a server."""

    def __init__(self, methods: Iterable[Method]) -> None:
        self._by_path: dict[str, dict[str, Method]] = {}
        self._root = _Node()
        for method in methods:
            table = self._table_of(method)
            if method.http_method in table:
                raise ValueError(f"{method.name}: {method.http_method} {method.template} is taken")
            table[method.http_method] = method

    def _table_of(self, method: Method) -> dict[str, Method]:
        if not method.path_fields:
            return self._by_path.setdefault(method.template, {})
        node = self._root
        for segment in method.template.split("/"):
            node = node.below(segment)
        return node.tables.setdefault(tuple(method.path_fields), {})

    def match(self, http_method: str, path: str) -> tuple[Method, dict[str, str]]:
        method = self._by_path.get(path, _NO_METHODS).get(http_method)
        if method is not None:
            return method, _NO_PARAMETERS
        tables = self._tables(path)
        for table, parameters in tables:
            if http_method in table:
                # The test for the wide character is free if the path has none.
                if _SLASH in path:
                    parameters = {
                        name: value.replace(_SLASH, "/") for name, value in parameters.items()
                    }
                return table[http_method], parameters
        if not tables:
            raise ServiceError("NOT_FOUND")
        raise ServiceError(
            "METHOD_NOT_ALLOWED", headers={"allow": ", ".join(self.allowed_methods(path))}
        )

    def allowed_methods(self, path: str) -> tuple[str, ...]:
        return tuple(sorted({verb for table, _ in self._tables(path) for verb in table}))

    def _tables(self, path: str) -> MethodTables:
        tables: MethodTables = []
        if path in self._by_path:
            tables.append((self._by_path[path], _NO_PARAMETERS))
        _collect(self._root, path.split("/"), 0, (), tables)
        return tables


def decode_path(path: bytes) -> str:
    text = path.decode("latin-1")
    return unquote(_ENCODED_SLASH.sub(_SLASH, text)) if "%" in text else text


def _collect(
    node: _Node, segments: list[str], at: int, values: tuple[str, ...], tables: MethodTables
) -> None:
    for number in range(at, len(segments)):
        segment = segments[number]
        fixed, parameter = node.fixed.get(segment), node.parameter
        if parameter is not None and segment:
            if fixed is not None:
                _collect(fixed, segments, number + 1, values, tables)
            values += (segment,)
            node = parameter
        elif fixed is not None:
            node = fixed
        else:
            return
    for names, table in node.tables.items():
        tables.append((table, dict(zip(names, values, strict=True))))


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_METHOD_NAMES: Final = {name.encode(): name for name in ("GET", "PUT", "POST", "DELETE", "PATCH")}
_LENGTH_DIGITS: Final = 20

OpenExchange = RequestExchange | UnknownCaller | ForwardedExchange | WokenBatchExchange
"""A request that is not answered yet. Call `finish`, `refuse` or `abandon` once."""

Match = tuple[Endpoint | ForwardedEndpoint | WokenBatchEndpoint, dict[str, str]]

log = get_logger("pyservice.edge")


class HttpApplication:
    def __init__(
        self,
        operations: Mapping[str, Operation],
        settings: TransportSettings,
        metrics: RequestMetrics,
        limits: Limits,
        forwarder: HttpForwarder | None = None,
        forwarded: Iterable[str] = (),
        long_polls: LongPolls | None = None,
        documents: Iterable[StaticDocument] = (),
        rays: Rays | None = None,
    ) -> None:
        self.settings = settings
        self._rays = rays or Rays("edge", queued_max=0, is_internal=settings.is_internal)
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self.game_servers = GameServerConnections(settings.game_server_ids)
        self.front_proxies = TrustedProxies(settings.front_proxies)
        self._clients = ClientAddresses(self.proxies, is_internal=settings.is_internal)
        self._metrics = metrics.http
        self._unrouted = metrics.http.meter(UNROUTED)
        self._cors = Cors(settings.cors_origins)
        names = frozenset(forwarded)
        if forwarder is None and names:
            raise ValueError("forwarded operations need a forwarder")
        self._forwarder = forwarder
        self._documents = {document.path: document for document in documents}
        self._count = self.count
        self._trusts_headers = settings.is_internal or bool(self.proxies)
        self._routes = RouteTable(METHODS[name] for name in (*operations, *names))
        self._endpoints: dict[str, Endpoint | ForwardedEndpoint] = {
            name: ForwardedEndpoint(METHODS[name], self._meter_of(name), settings.body_limit_bytes)
            for name in names
        }
        for name, operation in operations.items():
            slug = METHODS[name].slug
            rate_limit = (
                limits.control_plane_limit(slug)
                if settings.is_internal
                else limits.data_plane_limit(slug)
            )
            self._endpoints[name] = Endpoint(
                operation, self._meter_of(name), rate_limit, settings, long_polls
            )
            # Batches of woken long polls come from the public server.
        self._woken = (
            WokenBatchEndpoint(self._own, self._count, self._metrics, self._unrouted)
            if settings.is_internal
            else None
        )
        limits_bytes = (endpoint.body_limit_bytes for endpoint in self._endpoints.values())
        self.bodies = BodyBudget(
            # The public server has already counted a forwarded body.
            sys.maxsize if settings.is_internal else settings.bodies_limit_bytes,
            max(limits_bytes, default=settings.body_limit_bytes),
            metrics.http,
        )

    def _meter_of(self, name: str) -> Meter:
        return self._metrics.meter(METHODS[name].slug)

    def body_limit_bytes(self, request: Request) -> int:
        try:
            endpoint, _ = self._find(request)
        except ServiceError:
            return self.settings.body_limit_bytes
        return endpoint.body_limit_bytes

    def check_announced(self, request: Request, limit_bytes: int) -> None:
        length = request.headers.get(b"content-length", b"")
        if length.isdigit() and len(length) <= _LENGTH_DIGITS:
            self.check_size(request, 0, int(length), limit_bytes)

    def check_size(self, request: Request, had_bytes: int, size: int, limit_bytes: int) -> None:
        if size > limit_bytes:
            raise ServiceError("BODY_TOO_LARGE")
            # The public server has already checked a forwarded request.
        if had_bytes <= SMALL_BYTES < size and not self.settings.is_internal:
            endpoint, _ = self._find(request)
            if endpoint.needs_token:
                bearer_token(_text(request.headers, b"authorization"))

    def reserve_body(self, request: Request) -> BodyReservation:
        source = request.source
        if self.proxies or request.is_fronted:
            source = client_address.packed_client(self._clients.of(request)[0])
        return self.bodies.reserve(source)

    def open(self, request: Request) -> HttpResponse | OpenExchange:
        started = perf_counter()
        self._metrics.in_flight += 1
        fields = request.headers
        traceparent = fields.get(b"traceparent")
        if traceparent is None:
            ray_id = request_headers.new_ray_id()
            trace = Trace(ray_id, started)
        else:
            ray_id, parent_span = request_headers.read_traceparent(traceparent.decode("latin-1"))
            trace = Trace(ray_id, started, parent_span)
        meter = self._unrouted
        headers: Headers | None = None
        try:
            if request.path in self._documents:
                response = self._documents[request.path].answer(request, ray_id)
                self.count(meter, OK, trace)
                return response
            if b"origin" in fields:
                path = decode_path(request.path)
                headers = self._cors.headers(path, fields[b"origin"])
                if request.method == b"OPTIONS" and b"access-control-request-method" in fields:
                    response = self._cors.preflight(headers, self._methods_of(path), ray_id)
                    self.count(meter, OK, trace)
                    return response
            if request.failure is not None and not request.is_routable:
                raise request.failure
            endpoint, parameters = self._find(request)
            meter = endpoint.meter
            if isinstance(endpoint, WokenBatchEndpoint):
                return endpoint.open(request)
            if not isinstance(endpoint, Endpoint):
                return self._pass(request, endpoint, headers, trace)
            call = self._call(request, endpoint, ray_id, parameters)
            caller = endpoint.authorize(call)
            if not isinstance(caller, Caller) or len(request.body) > large_body_worker.LARGE_BYTES:
                return UnknownCaller(self._count, endpoint, request, caller, headers, trace)
            trace.caller = caller
            trace.authorized = perf_counter()
            message = endpoint.check(request, caller, parameters)
            return RequestExchange(self._count, endpoint, message, caller, headers, trace)
        except ServiceError as error:
            failure = error
        except Exception:
            log.exception("request failed", ray_id=ray_id)
            failure = ServiceError("INTERNAL")
        self.count(meter, failure.code, trace)
        return problem(failure, ray_id, headers)

    def count(self, meter: Meter, code: str, trace: Trace) -> None:
        self._metrics.in_flight -= 1
        ended = perf_counter()
        meter.observe(code, ended - trace.started)
        self._rays.end(trace, "http", meter.operation, code, ended)

    def _pass(
        self, request: Request, endpoint: ForwardedEndpoint, headers: Headers | None, trace: Trace
    ) -> ForwardedExchange:
        if request.failure is not None:
            raise request.failure
        assert self._forwarder is not None, "a forwarded operation needs a forwarder"
        client, _ = self._clients.of(request)
        sender = ParkedSender(client, trace, headers, self._count, endpoint.meter)
        return ForwardedExchange(self._forwarder, endpoint, request, sender)

    def _find(self, request: Request) -> Match:
        match: Match | None = request.match
        if match is not None:
            return match
        if self._woken is not None and request.path == woken_batch_format.PATH:
            request.match = match = self._woken, {}
            return match
        path = decode_path(request.path)
        method = _METHOD_NAMES.get(request.method) or request.method.decode("latin-1")
        operation, parameters = self._routes.match(method, path)
        request.match = match = (self._endpoints[operation.name], parameters)
        return match

    def _own(self, request: Request) -> tuple[Endpoint, dict[str, str]]:
        endpoint, parameters = self._find(request)
        if not isinstance(endpoint, Endpoint):
            raise ServiceError("NOT_FOUND")
        return endpoint, parameters

    def _methods_of(self, path: str) -> tuple[str, ...]:
        methods = self._routes.allowed_methods(path)
        if not methods:
            raise ServiceError("NOT_FOUND")
        return methods

    def _call(
        self, request: Request, endpoint: Endpoint, ray_id: str, parameters: dict[str, str]
    ) -> Call:
        fields = request.headers
        client, address, coords, long_poll_expired = request.peer, request.source, None, False
        if self._trusts_headers or request.is_fronted:
            client, coords = self._clients.of(request)
            address = client_address.packed_client(client)
            long_poll_expired = (
                self.settings.is_internal
                and fields.get(forwarding_headers.HELD) == forwarding_headers.OVER
            )
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
            client,
            long_poll_expired,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"this application does not speak {scope['type']}")
        request = self._head(scope)
        reservation = self.reserve_body(request)
        try:
            if request.failure is None and not await self._receive(request, reservation, receive):
                return
            exchange = self.open(request)
            if isinstance(exchange, HttpResponse):
                response: HttpResponse | None = exchange
            else:
                response = await _finish_watched(exchange, receive, reservation)
        finally:
            reservation.give_back()
        if response is not None:
            await _send(response, send, with_body=request.method != b"HEAD")

    def _head(self, scope: Scope) -> Request:
        fields: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            fields[name] = fields[name] + b", " + value if name in fields else value
        client = scope.get("client")
        peer = client_address.parse_address(client[0]) if client else None
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        if hosts > 1 or (not hosts and scope["http_version"] == "1.1"):
            request = Request(b"", b"", fields, peer or client_address.LOCAL)
            request.failure = ServiceError(
                "HEADER_INVALID", TWO_HOSTS_DETAIL if hosts else NO_HOST_DETAIL
            )
            return request
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        return Request(scope["method"].encode(), target, fields, peer or client_address.LOCAL)

    async def _receive(
        self, request: Request, reservation: BodyReservation, receive: Receive
    ) -> bool:
        limit = self.body_limit_bytes(request)
        body = bytearray()
        try:
            self.check_announced(request, limit)
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    return False
                piece, is_more = event.get("body", b""), event.get("more_body", False)
                size = len(body) + len(piece)
                if size > SMALL_BYTES or is_more:
                    self.check_size(request, len(body), size, limit)
                    reservation.grow_to(size)
                body += piece
                if not is_more:
                    break
        except ServiceError as error:
            request.failure = error
        else:
            request.body = bytes(body)
        return True


def _text(fields: dict[bytes, bytes], name: bytes) -> str | None:
    value = fields.get(name)
    return None if value is None else value.decode("latin-1")


async def _finish_watched(
    exchange: OpenExchange, receive: Receive, reservation: BodyReservation
) -> HttpResponse | None:
    response = asyncio.ensure_future(exchange.finish())
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    futures: set[asyncio.Future[Any]] = {response, disconnect}
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if not response.done():
            exchange.abandon()
            return None
        outcome = response.result()
        if isinstance(outcome, HttpResponse):
            return outcome
        # A parked request is sent again without its body.
        reservation.give_back()
        return await _park(outcome, disconnect)
    finally:
        for task in (response, disconnect):
            task.cancel()
        await asyncio.gather(response, disconnect, return_exceptions=True)


async def _park(request: ParkedRequest, disconnect: asyncio.Future[None]) -> HttpResponse | None:
    response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
    request.begin(response.set_result)
    futures: set[asyncio.Future[Any]] = {response, disconnect}
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    if response.done():
        return response.result()
    request.abandon()
    return None


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(response: HttpResponse, send: Send, *, with_body: bool) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": response.header_list(),
        }
    )
    await send({"type": "http.response.body", "body": response.body if with_body else b""})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return


def create_app(
    operations: Mapping[str, Operation],
    settings: TransportSettings,
    metrics: RequestMetrics,
    limits: Limits,
    *,
    forwarder: HttpForwarder | None = None,
    forwarded: Iterable[str] = (),
    long_polls: LongPolls | None = None,
    documents: Iterable[StaticDocument] = (),
    rays: Rays | None = None,
) -> HttpApplication:
    return HttpApplication(
        operations, settings, metrics, limits, forwarder, forwarded, long_polls, documents, rays
    )
