"""An HTTP operation: the checks that depend on the caller, and the call of the operation."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Final

from google.protobuf.message import Message

from pyservice.calls import Call, Caller, EncodedRequest, Operation, Unanswered, WaitForChange
from pyservice.edge.http_json_codec import decoder, encoder
from pyservice.edge.http_messages import JSON, TEXT, HttpResponse, Request
from pyservice.errors import ServiceError
from pyservice.front import internal_headers
from pyservice.observability.metrics import Meter
from pyservice.observability.rays import Trace
from pyservice.schema.methods import METHODS
from pyservice.schema.validation import refuse_invalid
from pyservice.transport import TransportSettings, large_body_worker
from pyservice.transport.native import check_idempotency_key
from pyservice.transport.rate_limits import OperationLimit, check_rate_limit
from pyservice.watch import LongPolls, run_until_changed

_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_REPEAT: Final = internal_headers.INTERNAL_REPEAT.encode()
_PAID: Final = frozenset({_REPEAT, internal_headers.INTERNAL_ADMITTED.encode()})
"""A request with one of these headers has paid its rate limits."""
_PARK: Final = internal_headers.INTERNAL_WAIT.encode()
_SHARE: Final = internal_headers.INTERNAL_SHARE.encode()


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
        self.slug = method.slug
        self.takes_key = method.http_method not in _SAFE_METHODS
        self.body_limit_bytes = method.body_limit_bytes or settings.body_limit_bytes
        self._method = method
        self._authorize = operation.authorize
        self._run = operation.run
        self._answer = operation.answer
        self._decode = decoder(method)
        self._encode = encoder(method)
        self._meter = meter
        self._rate_limit = rate_limit
        self._takes_body = bool(method.body_field)
        self._is_internal = settings.is_internal
        self._long_polls = long_polls

    async def respond(self, request: Request, call: Call, trace: Trace) -> HttpResponse:
        """Checks a request and runs its operation. Raises ServiceError."""
        if self._answer is not None and request.failure is None:
            encoded = self._encoded(request, call)
            reply = await self._answer(encoded)
            if reply is Unanswered.UNCHECKED:
                message = self._read(request, call)
                encoded.form, encoded.body = (
                    "checked",
                    message.SerializeToString(deterministic=True),
                )
                reply = await self._answer(encoded)
            if not isinstance(reply, Unanswered):
                return HttpResponse(200, reply.json())
            is_paid = encoded.is_paid
        else:
            is_paid = self._has_paid(request)
        authorization = self._authorize(call)
        caller = authorization if isinstance(authorization, Caller) else await authorization
        trace.caller = caller
        trace.authorized = perf_counter()
        if self._rate_limit is not None and not is_paid:
            check_rate_limit(self._rate_limit, caller, self._meter)
        self._check_headers(request, call)
        if len(request.body) <= large_body_worker.LARGE_BYTES:
            message = self._read(request, call)
        else:
            message = await large_body_worker.WORKER.run(
                caller.identity, partial(self._read, request, call)
            )
        trace.message = message
        trace.handled = perf_counter()
        result = await self._run(message, caller)
        if isinstance(result, WaitForChange):
            if self._is_internal:
                headers = [(_PARK, internal_headers.wait_text(result).encode())]
                if caller.share is not None:
                    share = f"{caller.share.key} {','.join(caller.share.rights)}"
                    headers.append((_SHARE, share.encode()))
                return HttpResponse(200, b"", headers=headers)
            trace.has_waited = True
            result = await run_until_changed(self._run, message, caller, result, self._long_polls)
        response = self._response(result)
        is_repeat = self._is_internal and _REPEAT in request.headers
        if is_repeat and caller.share is not None and self._long_polls is not None:
            # The operation has read its data before, so it has no later change.
            share = f"{caller.share.key} {self._long_polls.position}"
            response.headers = [(_SHARE, share.encode())]
        return response

    def _encoded(self, request: Request, call: Call) -> EncodedRequest:
        return EncodedRequest(
            self.slug,
            call,
            "json" if self.takes_key else "target",
            request.body,
            request.path.decode("latin-1"),
            request.query.decode("latin-1"),
            request.headers.get(b"content-type"),
            self._has_paid(request),
        )

    def _has_paid(self, request: Request) -> bool:
        return self._is_internal and not _PAID.isdisjoint(request.headers)

    def _check_headers(self, request: Request, call: Call) -> None:
        if self._takes_body:
            media_type = request.headers.get(b"content-type", JSON)
            if media_type != JSON and media_type.partition(b";")[0].strip().lower() != JSON:
                raise ServiceError("MEDIA_TYPE_UNSUPPORTED")
        if request.failure is not None:
            raise request.failure
        if call.idempotency_key is not None:
            check_idempotency_key(call.idempotency_key)

    def _read(self, request: Request, call: Call) -> Message:
        message, unread = self._decode(request.body, request.query, call.path or {})
        refuse_invalid(self._method, message, unread)
        return message

    def _response(self, message: Message) -> HttpResponse:
        text_field = self._method.text_field
        if text_field and message.HasField(text_field):
            return HttpResponse(200, getattr(message, text_field).encode(), TEXT)
        return HttpResponse(200, self._encode(message))
