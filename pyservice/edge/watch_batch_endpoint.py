"""Endpoint of the internal server for batches of long polls that woke after a change.

Each request of a batch is authorized, recorded and counted on its own. Equal requests are decoded
once, and a response that they share is encoded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import count
from time import perf_counter
from typing import Final

from google.protobuf.message import Message

from pyservice.calls import Call, Caller
from pyservice.edge import forwarding_headers, watch_batch_format
from pyservice.edge.endpoint import Count, Endpoint, RequestExchange, UnknownCaller
from pyservice.edge.http_json_codec import Encode
from pyservice.edge.http_messages import Answer, Request, problem
from pyservice.edge.watch_batch_format import BatchedRequest
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import Meter, TransportMetrics
from pyservice.observability.rays import Trace
from pyservice.transport import client_address, request_headers
from pyservice.transport.client_address import Address

_MESSAGE_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Larger than one request with the longest allowed head."""
_SIDE_BY_SIDE: Final = 64
"""Requests of a batch that run at a time."""
_MOMENT_S: Final = 0.02
"""Wait after which finished responses are sent without the slow ones."""
_ENOUGH_BYTES: Final = 4 * 1024 * 1024
"""Response bytes after which no more requests of the batch start."""
_MOST_BYTES: Final = 32 * 1024 * 1024
"""Upper bound of response bytes in one part. One response is always sent."""

Find = Callable[[Request], tuple[Endpoint, dict[str, str]]]
"""The endpoint of a request and its path parameters. Raises ServiceError."""

log = get_logger("pyservice.edge")


class WatchBatchEndpoint:
    """Receives a batch of woken long polls as one HTTP request."""

    def __init__(
        self, find: Find, count: Count, metrics: TransportMetrics, unrouted: Meter
    ) -> None:
        self.body_limit_bytes = _MESSAGE_LIMIT_BYTES
        self.needs_token = False
        self.find = find
        self.count = count
        self.metrics = metrics
        self.meter = unrouted

    def open(self, request: Request) -> Answer | WatchBatchExchange:
        try:
            if request.failure is not None:
                raise request.failure
            return WatchBatchExchange(self, watch_batch_format.read_asked(request.body))
        except ServiceError as error:
            failure = error
        except ValueError:
            log.exception("watch batch not read")
            failure = ServiceError("INTERNAL")
        return self.refused(failure)

    def refused(self, error: ServiceError) -> Answer:
        self.metrics.in_flight -= 1
        return problem(error, request_headers.new_ray_id())


class WatchBatchExchange:
    """The requests of one batch. `parts` runs them and yields their responses as they finish."""

    def __init__(self, endpoint: WatchBatchEndpoint, asked: list[BatchedRequest]) -> None:
        self._endpoint = endpoint
        self._asked = asked
        self._common: dict[tuple[bytes, bytes], _Common] = {}
        self._clients: dict[str, tuple[Address, bytes]] = {}
        self._written = _Written()
        self._begun = 0
        self._running: dict[asyncio.Task[Answer], int] = {}

    async def finish(self) -> Answer:
        body = b"".join([part async for part in self.parts()])
        return Answer(200, body, request_headers.new_ray_id())

    async def parts(self) -> AsyncGenerator[bytes, None]:
        told_bytes = 0
        try:
            while answers := await self._some(told_bytes):
                made = len(answers)
                while len(answers) > 1 and told_bytes + _size_bytes(answers) > _MOST_BYTES:
                    del answers[len(answers) // 2 :]
                told_bytes += _size_bytes(answers)
                yield watch_batch_format.write_answers(answers)
                # A slow request must not delay the finished ones.
                self._written.forget()
                if len(answers) < made or told_bytes > _MOST_BYTES:
                    break
        finally:
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.gather(*self._running, return_exceptions=True)
        self._endpoint.metrics.in_flight -= 1

    async def _some(self, told_bytes: int) -> list[tuple[int, Answer]]:
        answers: list[tuple[int, Answer]] = []
        while True:
            fresh = []
            if told_bytes + _size_bytes(answers) <= _ENOUGH_BYTES:
                fresh = self._begin()
            if fresh:
                # Slow requests are awaited after all others have started.
                await asyncio.wait(fresh, timeout=_MOMENT_S)
            elif self._running:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in self._running if task.done()]:
                answers.append((self._running.pop(task), task.result()))
            if (answers and self._running) or not (fresh or self._running):
                return answers

    def _begin(self) -> list[asyncio.Task[Answer]]:
        start = self._begun
        together = self._asked[start : start + _SIDE_BY_SIDE]
        self._begun += len(together)
        fresh = [asyncio.create_task(self._answer(asked)) for asked in together]
        self._running.update(zip(fresh, count(start), strict=False))
        return fresh

    def refuse(self, error: ServiceError) -> Answer:
        return self._endpoint.refused(error)

    def abandon(self) -> None:
        self._endpoint.metrics.in_flight -= 1

    async def _answer(self, asked: BatchedRequest) -> Answer:
        exchange = self._open(asked)
        if isinstance(exchange, Answer):
            return exchange
        try:
            return await exchange.finish()
        except asyncio.CancelledError:
            exchange.abandon()
            raise

    def _open(self, asked: BatchedRequest) -> Answer | RequestExchange | UnknownCaller:
        endpoint = self._endpoint
        endpoint.metrics.in_flight += 1
        ray_id, given = request_headers.read_traceparent(asked.traceparent)
        trace = Trace(ray_id, perf_counter(), given)
        meter = endpoint.meter
        try:
            common = self._common_of(asked)
            meter = common.meter
            caller = common.authorize(self._call(asked, ray_id, common.parameters))
            if not isinstance(caller, Caller):
                return UnknownCaller(endpoint.count, common, common.request, caller, None, trace)
            trace.caller = caller
            trace.authorized = perf_counter()
            message = common.checked(common.request, caller, common.parameters)
            return RequestExchange(endpoint.count, common, message, caller, None, trace)
        except ServiceError as error:
            failure = error
        except Exception:
            log.exception("request of a watch batch failed", ray_id=ray_id)
            failure = ServiceError("INTERNAL")
        endpoint.count(meter, failure.code, trace)
        return problem(failure, ray_id)

    def _call(self, asked: BatchedRequest, ray_id: str, parameters: dict[str, str]) -> Call:
        known = self._clients.get(asked.client)
        if known is None:
            client = client_address.parse_address(asked.client) or client_address.LOCAL
            known = self._clients[asked.client] = client, client_address.packed_client(client)
        client, packed = known
        authorization = asked.wish.authorization
        return Call(
            ray_id,
            packed,
            None if authorization is None else authorization.decode("latin-1"),
            path=parameters,
            client=client,
            long_poll_expired=asked.is_over,
        )

    def _common_of(self, asked: BatchedRequest) -> _Common:
        key = asked.wish.method, asked.wish.target
        common = self._common.get(key)
        if common is None:
            fields = {forwarding_headers.HELD: forwarding_headers.WOKEN}
            request = Request(*key, fields, client_address.LOCAL)
            common = self._common[key] = _Common(self._endpoint.find, request, self._written)
        return common


class _Common(Endpoint):
    """Endpoint for the equal requests of a batch. It decodes and validates the message only once."""

    def __init__(self, find: Find, request: Request, written: _Written) -> None:
        endpoint, self.parameters = request.found = find(request)
        vars(self).update(vars(endpoint))
        self.encode = lambda response: written.body_of(response, endpoint.encode)
        self.request = request
        self._message: Message | None = None

    def _read(self, request: Request, parameters: dict[str, str]) -> Message:
        if self._message is None:
            self._message = super()._read(request, parameters)
        return self._message


class _Written:
    """Encoded bodies of responses, so that a response that several requests share is encoded once."""

    def __init__(self) -> None:
        self._bodies: dict[int, tuple[Message, bytes]] = {}

    def body_of(self, response: Message, encode: Encode) -> bytes:
        known = self._bodies.get(id(response))
        if known is None:
            # Keeps the message, so that its id is not reused.
            known = self._bodies[id(response)] = (response, encode(response))
        return known[1]

    def forget(self) -> None:
        self._bodies.clear()


def _size_bytes(answers: list[tuple[int, Answer]]) -> int:
    bodies = {id(answer.body): answer.body for _, answer in answers}
    return sum(map(len, bodies.values()))
