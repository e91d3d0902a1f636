"""The ASGI application of the API. It checks a request, runs its operation and sends the response.

The order is: route, token, rate limit, header rules, body, field rules, operation. Behind the
front, the application trusts the headers `x-hosting-*` (pyservice/front/internal_headers.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Final

from pyservice.calls import Call, Operation
from pyservice.edge.endpoint import Endpoint
from pyservice.edge.http_messages import HttpResponse, Receive, Request, Scope, Send, problem
from pyservice.edge.route_table import RouteTable
from pyservice.edge.static_document import StaticDocument
from pyservice.errors import ServiceError
from pyservice.front import internal_headers
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, OK, UNROUTED, RequestMetrics
from pyservice.observability.rays import Rays, Trace, current
from pyservice.schema.methods import METHODS
from pyservice.transport import TransportSettings, client_address, trace_context
from pyservice.transport.client_address import Address
from pyservice.transport.rate_limits import LimitOf
from pyservice.watch import LongPolls

_CLIENT: Final = internal_headers.INTERNAL_CLIENT.encode()
_RAY: Final = internal_headers.INTERNAL_RAY.encode()
_CODE: Final = internal_headers.INTERNAL_CODE.encode()
_REPEAT: Final = internal_headers.INTERNAL_REPEAT.encode()
_EXPIRED: Final = internal_headers.EXPIRED.encode()
_OTHER_PLANE: Final = "The other plane serves this operation, at an address of its own."

Match = tuple[Endpoint, dict[str, str]] | StaticDocument | ServiceError
"""Endpoint of a request with its path parameters, or a document, or the error of the route."""

log = get_logger("pyservice.edge")


class HttpApplication:
    """Serves the operations of one plane, and knows the paths of both.

    Requests of an internal server (`settings.is_internal`) come from the front. It holds long
    polls, so a request that must wait gets an empty response with `x-hosting-park`. Other requests
    come from clients, and wait here with the help of `long_polls`.
    """

    def __init__(
        self,
        operations: Mapping[str, Operation],
        settings: TransportSettings,
        metrics: RequestMetrics,
        limit_of: LimitOf,
        *,
        long_polls: LongPolls | None = None,
        documents: Iterable[StaticDocument] = (),
        rays: Rays | None = None,
    ) -> None:
        self._settings = settings
        self._rays = rays or Rays("edge", queued_max=0)
        self._routes = RouteTable(METHODS.values())
        self._documents = {document.path: document for document in documents}
        self._endpoints: dict[str, Endpoint] = {}
        for name, operation in operations.items():
            slug = METHODS[name].slug
            self._endpoints[name] = Endpoint(
                operation, metrics.http.meter(slug), limit_of(slug), settings, long_polls
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application does not speak {scope['type']}")
        request = _request(scope)
        trace = self._trace(request)
        current.set(trace)
        slug, response = UNROUTED, None
        try:
            match = self._match(request)
            if isinstance(match, tuple):
                slug = match[0].slug
            request.body = await _body(receive)
            async with _WhileConnected(receive):
                response = await self._respond(request, match, trace)
        except _ClientDisconnected:
            return
        finally:
            code = CANCELLED if response is None else response.code
            self._rays.end(trace, "http", slug, code, perf_counter())
        await self._send(response, trace.ray_id, send)

    def _trace(self, request: Request) -> Trace:
        started = perf_counter()
        fields = request.headers
        if self._settings.is_internal and _RAY in fields:
            return Trace(fields[_RAY].decode("latin-1"), started)
        ray_id, parent_span = trace_context.read_traceparent(request.text(b"traceparent"))
        return Trace(ray_id, started, parent_span)

    def _match(self, request: Request) -> Match:
        document = self._documents.get(request.path)
        if document is not None:
            return document
        try:
            path = request.path.decode("latin-1")
            method, parameters = self._routes.match(request.method, path)
        except ServiceError as error:
            return error
        endpoint = self._endpoints.get(method.name)
        if endpoint is None:
            return ServiceError("NOT_FOUND", _OTHER_PLANE)
        return endpoint, parameters

    async def _respond(self, request: Request, match: Match, trace: Trace) -> HttpResponse:
        try:
            if isinstance(match, StaticDocument):
                return match.answer(request)
            if isinstance(match, ServiceError):
                raise match
            endpoint, parameters = match
            call = self._call(request, endpoint, trace.ray_id, parameters)
            return await endpoint.respond(request, call, trace)
        except ServiceError as error:
            return problem(error, trace.ray_id)
        except Exception:
            slug = match[0].slug if isinstance(match, tuple) else UNROUTED
            log.exception("operation failed", operation=slug, ray_id=trace.ray_id)
            return problem(ServiceError("INTERNAL"), trace.ray_id)

    def _call(
        self, request: Request, endpoint: Endpoint, ray_id: str, parameters: dict[str, str]
    ) -> Call:
        # A HEAD never waits: its response cannot show a change.
        client, coords, long_poll_expired = request.peer, None, request.method == "HEAD"
        if self._settings.is_internal:
            fields = request.headers
            client = _client(fields) or client
            coords_text = request.text(b"x-coords")
            coords = None if coords_text is None else client_address.coordinates(coords_text)
            long_poll_expired |= fields.get(_REPEAT) == _EXPIRED
        return Call(
            ray_id,
            client_address.packed_client(client),
            request.text(b"authorization"),
            request.text(b"origin"),
            request.text(b"idempotency-key") if endpoint.takes_key else None,
            coords,
            None,
            request.text(b"user-agent"),
            parameters,
            client,
            long_poll_expired,
        )

    async def _send(self, response: HttpResponse, ray_id: str, send: Send) -> None:
        headers = response.header_list(ray_id)
        if response.code != OK and self._settings.is_internal:
            headers.append((_CODE, response.code.encode()))
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": response.body})


def _request(scope: Scope) -> Request:
    client = scope.get("client")
    peer = client_address.parse_address(client[0]) if client else None
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    return Request(
        scope["method"],
        path,
        scope["query_string"],
        scope["headers"],
        peer or client_address.LOCAL,
    )


def _client(fields: Mapping[bytes, bytes]) -> Address | None:
    text = fields.get(_CLIENT)
    return None if text is None else client_address.parse_address(text.decode("latin-1"))


class _ClientDisconnected(Exception):
    pass


class _WhileConnected:
    """Cancels the current task if the client disconnects, and then raises `_ClientDisconnected`.

    Use it once with `async with`, after the body was received.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._has_ended = False
        self._has_disconnected = False
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server runs each request in a task"
        self._task = task
        # Most requests end in one turn of the event loop, and need no second task.
        self._start = asyncio.get_running_loop().call_soon(self._start_watch)

    def _start_watch(self) -> None:
        self._watch = asyncio.create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._has_ended:
            self._has_disconnected = True
            self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._has_ended = True
        self._start.cancel()
        if self._watch is not None:
            self._watch.cancel()
        if self._has_disconnected and self._task.uncancel() == 0:
            raise _ClientDisconnected


async def _body(receive: Receive) -> bytes:
    """Receives a body of any length. The front has limited it."""
    pieces: list[bytes] = []
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _ClientDisconnected
        pieces.append(event.get("body", b""))
        if not event.get("more_body", False):
            return b"".join(pieces)
