"""Endpoint of the internal server for batches of long polls that woke after a change.

Each request of a batch is authorized, recorded and counted on its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import count
from time import perf_counter
from typing import Final

from google.protobuf.message import Message

from pyservice.calls import Call, Caller
from pyservice.edge import forwarding_headers, woken_batch_format
from pyservice.edge.endpoint import Count, Endpoint, RequestExchange, UnknownCaller
from pyservice.edge.http_json_codec import Encode
from pyservice.edge.http_messages import HttpResponse, Request, problem
from pyservice.edge.woken_batch_format import WokenRequest
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import Meter, TransportMetrics
from pyservice.observability.rays import Trace
from pyservice.transport import client_address, request_headers
from pyservice.transport.client_address import Address

_MESSAGE_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Larger than one request with the longest allowed head."""
_CONCURRENT_MAX: Final = 64
_SLOW_AFTER_S: Final = 0.02
"""Wait after which finished responses are sent without the slow ones."""
_START_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""Response bytes after which no more requests of the batch start."""
_PART_MAX_BYTES: Final = 32 * 1024 * 1024
"""Upper bound of response bytes in one part. One response is always sent."""

Find = Callable[[Request], tuple[Endpoint, dict[str, str]]]
"""The endpoint of a request and its path parameters. Raises ServiceError."""

log = get_logger("pyservice.edge")


class WokenBatchEndpoint:
    """Receives a batch of long polls as one HTTP request, after a change woke them."""

    def __init__(
        self, find: Find, count: Count, metrics: TransportMetrics, unrouted: Meter
    ) -> None:
        self.body_limit_bytes = _MESSAGE_LIMIT_BYTES
        self.needs_token = False
        self.find = find
        self.count = count
        self.metrics = metrics
        self.meter = unrouted

    def open(self, request: Request) -> HttpResponse | WokenBatchExchange:
        try:
            if request.failure is not None:
                raise request.failure
            return WokenBatchExchange(self, woken_batch_format.read_requests(request.body))
        except ServiceError as error:
            failure = error
        except ValueError:
            log.exception("watch batch not read")
            failure = ServiceError("INTERNAL")
        return self.refusal(failure)

    def refusal(self, error: ServiceError) -> HttpResponse:
        self.metrics.in_flight -= 1
        return problem(error, request_headers.new_ray_id())


class WokenBatchExchange:
    """The requests of one batch. `parts` runs them and yields their responses as they finish."""

    def __init__(self, endpoint: WokenBatchEndpoint, requests: list[WokenRequest]) -> None:
        self._endpoint = endpoint
        self._requests = requests
        self._shared: dict[tuple[bytes, bytes], _SharedEndpoint] = {}
        self._clients: dict[str, tuple[Address, bytes]] = {}
        self._encoded = _EncodedBodies()
        self._started_count = 0
        self._running: dict[asyncio.Task[HttpResponse], int] = {}

    async def finish(self) -> HttpResponse:
        body = b"".join([part async for part in self.parts()])
        return HttpResponse(200, body, request_headers.new_ray_id())

    async def parts(self) -> AsyncGenerator[bytes, None]:
        sent_bytes = 0
        try:
            while responses := await self._finished_responses(sent_bytes):
                finished_count = len(responses)
                while len(responses) > 1 and sent_bytes + _size_bytes(responses) > _PART_MAX_BYTES:
                    del responses[len(responses) // 2 :]
                sent_bytes += _size_bytes(responses)
                yield woken_batch_format.write_responses(responses)
                # A slow request must not delay the finished ones.
                self._encoded.forget()
                if len(responses) < finished_count or sent_bytes > _PART_MAX_BYTES:
                    break
        finally:
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.gather(*self._running, return_exceptions=True)
        self._endpoint.metrics.in_flight -= 1

    async def _finished_responses(self, sent_bytes: int) -> list[tuple[int, HttpResponse]]:
        responses: list[tuple[int, HttpResponse]] = []
        while True:
            fresh = []
            if sent_bytes + _size_bytes(responses) <= _START_LIMIT_BYTES:
                fresh = self._start_some()
            if fresh:
                # Slow requests are awaited after all others have started.
                await asyncio.wait(fresh, timeout=_SLOW_AFTER_S)
            elif self._running:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in self._running if task.done()]:
                responses.append((self._running.pop(task), task.result()))
            if (responses and self._running) or not (fresh or self._running):
                return responses

    def _start_some(self) -> list[asyncio.Task[HttpResponse]]:
        start = self._started_count
        requests = self._requests[start : start + _CONCURRENT_MAX]
        self._started_count += len(requests)
        fresh = [asyncio.create_task(self._answer(request)) for request in requests]
        self._running.update(zip(fresh, count(start), strict=False))
        return fresh

    def refuse(self, error: ServiceError) -> HttpResponse:
        return self._endpoint.refusal(error)

    def abandon(self) -> None:
        self._endpoint.metrics.in_flight -= 1

    async def _answer(self, request: WokenRequest) -> HttpResponse:
        exchange = self._open(request)
        if isinstance(exchange, HttpResponse):
            return exchange
        try:
            return await exchange.finish()
        except asyncio.CancelledError:
            exchange.abandon()
            raise

    def _open(self, request: WokenRequest) -> HttpResponse | RequestExchange | UnknownCaller:
        endpoint = self._endpoint
        endpoint.metrics.in_flight += 1
        ray_id, parent_span = request_headers.read_traceparent(request.traceparent)
        trace = Trace(ray_id, perf_counter(), parent_span)
        meter = endpoint.meter
        try:
            shared = self._shared_endpoint(request)
            meter = shared.meter
            caller = shared.authorize(self._call(request, ray_id, shared.parameters))
            if not isinstance(caller, Caller):
                return UnknownCaller(endpoint.count, shared, shared.request, caller, None, trace)
            trace.caller = caller
            trace.authorized = perf_counter()
            message = shared.check(shared.request, caller, shared.parameters)
            return RequestExchange(endpoint.count, shared, message, caller, None, trace)
        except ServiceError as error:
            failure = error
        except Exception:
            log.exception("request of a watch batch failed", ray_id=ray_id)
            failure = ServiceError("INTERNAL")
        endpoint.count(meter, failure.code, trace)
        return problem(failure, ray_id)

    def _call(self, request: WokenRequest, ray_id: str, parameters: dict[str, str]) -> Call:
        addresses = self._clients.get(request.client)
        if addresses is None:
            client = client_address.parse_address(request.client) or client_address.LOCAL
            addresses = self._clients[request.client] = client, client_address.packed_client(client)
        client, packed = addresses
        authorization = request.request_key.authorization
        return Call(
            ray_id,
            packed,
            None if authorization is None else authorization.decode("latin-1"),
            path=parameters,
            client=client,
            long_poll_expired=request.is_over,
        )

    def _shared_endpoint(self, request: WokenRequest) -> _SharedEndpoint:
        key = request.request_key.method, request.request_key.target
        shared = self._shared.get(key)
        if shared is None:
            fields = {forwarding_headers.HELD: forwarding_headers.WOKEN}
            http_request = Request(*key, fields, client_address.LOCAL)
            shared = self._shared[key] = _SharedEndpoint(
                self._endpoint.find, http_request, self._encoded
            )
        return shared


class _SharedEndpoint(Endpoint):
    """Endpoint for the equal requests of a batch. It decodes and validates their message only once."""

    def __init__(self, find: Find, request: Request, encoded: _EncodedBodies) -> None:
        endpoint, self.parameters = request.match = find(request)
        vars(self).update(vars(endpoint))
        self.encode = lambda response: encoded.body_of(response, endpoint.encode)
        self.request = request
        self._message: Message | None = None

    def _read(self, request: Request, parameters: dict[str, str]) -> Message:
        if self._message is None:
            self._message = super()._read(request, parameters)
        return self._message


class _EncodedBodies:
    """Encoded bodies of responses, so that a response that several requests share is encoded once."""

    def __init__(self) -> None:
        self._bodies: dict[int, tuple[Message, bytes]] = {}

    def body_of(self, response: Message, encode: Encode) -> bytes:
        entry = self._bodies.get(id(response))
        if entry is None:
            # Keeps the message, so that its id is not reused.
            entry = self._bodies[id(response)] = (response, encode(response))
        return entry[1]

    def forget(self) -> None:
        self._bodies.clear()


def _size_bytes(responses: list[tuple[int, HttpResponse]]) -> int:
    bodies = {id(response.body): response.body for _, response in responses}
    return sum(map(len, bodies.values()))
