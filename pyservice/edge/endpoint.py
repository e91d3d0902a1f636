"""An HTTP operation: the checks that depend on the caller, and the call of the operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Final

from google.protobuf.message import Message

from pyservice.calls import Caller, Operation, WaitForChange
from pyservice.edge import forwarding_headers
from pyservice.edge.http_json_codec import decoder, encoder
from pyservice.edge.http_messages import JSON, TEXT, Headers, HttpResponse, Request, problem
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, OK, Meter
from pyservice.observability.rays import Trace, current
from pyservice.schema.methods import METHODS
from pyservice.schema.validation import refuse_invalid
from pyservice.transport import TransportSettings, large_body_worker
from pyservice.transport.rate_limits import OperationLimit, check_rate_limit
from pyservice.transport.request_headers import check_idempotency_key
from pyservice.watch import LongPolls, run_until_changed

_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

Count = Callable[[Meter, str, Trace], None]
"""Counts an answered request: meter of its operation, error code, trace."""

log = get_logger("pyservice.edge")


class Endpoint:
    """One operation that is called over HTTP. It holds all data that does not depend on a single
    request.
    """

    def __init__(
        self,
        operation: Operation,
        meter: Meter,
        rate_limit: OperationLimit | None,
        settings: TransportSettings,
        long_polls: LongPolls | None,
    ) -> None:
        method = METHODS[operation.method]
        self.authorize = operation.authorize
        self.run = operation.run
        self.decode = decoder(method)
        self.encode = encoder(method)
        self.method = method
        self.meter = meter
        self.rate_limit = rate_limit
        self.slug = method.slug
        self.takes_body = bool(method.body_field)
        self.takes_key = method.http_method not in _SAFE_METHODS
        self.body_limit_bytes = method.body_limit_bytes or settings.body_limit_bytes
        self.needs_token = method.needs_token
        self.is_internal = settings.is_internal
        self.long_polls = long_polls

    def check(self, request: Request, caller: Caller, parameters: dict[str, str]) -> Message:
        self._admit(request, caller)
        return self._read(request, parameters)

    async def check_in_worker(
        self, request: Request, caller: Caller, parameters: dict[str, str]
    ) -> Message:
        self._admit(request, caller)
        if len(request.body) <= large_body_worker.LARGE_BYTES:
            return self._read(request, parameters)
        return await large_body_worker.WORKER.run(
            caller.identity, partial(self._read, request, parameters)
        )

    def encode_response(self, response: Message) -> tuple[bytes, bytes]:
        """Returns body and content type."""
        text_field = self.method.text_field
        if text_field and response.HasField(text_field):
            return getattr(response, text_field).encode(), TEXT
        return self.encode(response), JSON

    def _admit(self, request: Request, caller: Caller) -> None:
        if self.rate_limit is not None and not (
            self.is_internal and forwarding_headers.HELD in request.headers
        ):
            check_rate_limit(self.rate_limit, caller, self.meter)
        if self.takes_body:
            media_type = request.headers.get(b"content-type", JSON)
            if media_type != JSON and media_type.partition(b";")[0].strip().lower() != JSON:
                raise ServiceError("MEDIA_TYPE_UNSUPPORTED")
        if request.failure is not None:
            raise request.failure
        key = caller.call.idempotency_key
        if key is not None:
            check_idempotency_key(key)

    def _read(self, request: Request, parameters: dict[str, str]) -> Message:
        message, unread = self.decode(request.body, request.query, parameters)
        refuse_invalid(self.method, message, unread)
        return message


class RequestExchange:
    """A request that has passed all checks. `finish` runs its operation and returns the response."""

    __slots__ = ("_caller", "_count", "_endpoint", "_headers", "_message", "_ray_id", "_trace")

    def __init__(
        self,
        count: Count,
        endpoint: Endpoint,
        message: Message,
        caller: Caller,
        headers: Headers | None,
        trace: Trace,
    ) -> None:
        self._count = count
        self._endpoint = endpoint
        self._message = message
        self._caller = caller
        self._ray_id = trace.ray_id
        self._headers = headers
        self._trace = trace

    async def finish(self) -> HttpResponse:
        endpoint, trace = self._endpoint, self._trace
        trace.message = self._message
        current.set(trace)
        trace.handled = perf_counter()
        try:
            response = await endpoint.run(self._message, self._caller)
            if isinstance(response, WaitForChange):
                if endpoint.is_internal:
                    return self._park_response(response)
                trace.has_waited = True
                response = await run_until_changed(
                    endpoint.run, self._message, self._caller, response, endpoint.long_polls
                )
            body, content_type = endpoint.encode_response(response)
        except ServiceError as error:
            return self.refuse(error)
        except Exception:
            log.exception("operation failed", operation=endpoint.slug, ray_id=self._ray_id)
            return self.refuse(ServiceError("INTERNAL"))
        self._count(endpoint.meter, OK, self._trace)
        return HttpResponse(200, body, self._ray_id, content_type, self._headers)

    def _park_response(self, park: WaitForChange) -> HttpResponse:
        self._count(self._endpoint.meter, OK, self._trace)
        return HttpResponse(200, b"", self._ray_id, JSON, [forwarding_headers.park_field(park)])

    def refuse(self, error: ServiceError) -> HttpResponse:
        self._count(self._endpoint.meter, error.code, self._trace)
        return problem(error, self._ray_id, self._headers)

    def abandon(self) -> None:
        self._count(self._endpoint.meter, CANCELLED, self._trace)


class UnknownCaller:
    """A request with a slow check. `finish` completes the check, runs the operation and responds.

    The check is slow because another process verifies the token, or because the body is large.
    """

    __slots__ = ("_caller", "_count", "_endpoint", "_headers", "_request", "_trace")

    def __init__(
        self,
        count: Count,
        endpoint: Endpoint,
        request: Request,
        caller: Caller | Awaitable[Caller],
        headers: Headers | None,
        trace: Trace,
    ) -> None:
        self._count = count
        self._endpoint = endpoint
        self._request = request
        self._caller = caller
        self._headers = headers
        self._trace = trace

    async def finish(self) -> HttpResponse:
        endpoint, request, trace = self._endpoint, self._request, self._trace
        current.set(trace)
        try:
            pending = self._caller
            caller = pending if isinstance(pending, Caller) else await pending
            trace.caller = caller
            trace.authorized = perf_counter()
            message = await endpoint.check_in_worker(request, caller, request.match[1])
        except ServiceError as error:
            return self.refuse(error)
        except Exception:
            log.exception("request failed", operation=endpoint.slug, ray_id=self._trace.ray_id)
            return self.refuse(ServiceError("INTERNAL"))
        exchange = RequestExchange(self._count, endpoint, message, caller, self._headers, trace)
        return await exchange.finish()

    def refuse(self, error: ServiceError) -> HttpResponse:
        self._count(self._endpoint.meter, error.code, self._trace)
        return problem(error, self._trace.ray_id, self._headers)

    def abandon(self) -> None:
        self._count(self._endpoint.meter, CANCELLED, self._trace)
