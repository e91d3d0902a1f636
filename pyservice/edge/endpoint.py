"""An HTTP operation: the checks that depend on the caller, and the call of the operation."""

from __future__ import annotations

from functools import partial
from typing import Final

from google.protobuf.message import Message

from pyservice.calls import Call, EncodedRequest, Form, Operation, WaitForChange
from pyservice.edge.http_json_codec import decoder, encoder
from pyservice.edge.http_messages import TEXT, HttpResponse, Request
from pyservice.front import internal_headers
from pyservice.observability.metrics import Meter
from pyservice.observability.rays import Trace
from pyservice.schema.methods import METHODS
from pyservice.schema.validation import refuse_invalid
from pyservice.transport import TransportSettings
from pyservice.transport.native import check_body_form, check_idempotency_key
from pyservice.transport.operation_steps import OperationSteps
from pyservice.transport.rate_limits import OperationLimit
from pyservice.watch import LongPolls, run_until_changed

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
        self.takes_key = method.takes_key
        self._method = method
        self._steps = OperationSteps(operation, rate_limit, meter)
        self._run = operation.run
        self._decode = decoder(method)
        self._encode = encoder(method)
        self._takes_body = bool(method.body_field)
        self._is_internal = settings.is_internal
        self._long_polls = long_polls

    async def respond(self, request: Request, call: Call, trace: Trace) -> HttpResponse:
        """Checks a request and runs its operation. Raises ServiceError."""
        encoded = self._encoded(request, call)
        read = partial(self._read, request, call)
        reply = await self._steps.answer(encoded, read)
        if reply is not None:
            return HttpResponse(200, reply.json())
        caller, result = await self._steps.run(encoded, read, trace)
        if isinstance(result, WaitForChange):
            if self._is_internal:
                headers = [(_PARK, internal_headers.wait_text(result).encode())]
                if caller.share is not None:
                    share = f"{caller.share.key} {','.join(caller.share.rights)}"
                    headers.append((_SHARE, share.encode()))
                return HttpResponse(200, b"", headers=headers)
            trace.has_waited = True
            result = await run_until_changed(
                self._run, trace.message, caller, result, self._long_polls
            )
        response = self._response(result)
        is_repeat = self._is_internal and _REPEAT in request.headers
        if is_repeat and caller.share is not None and self._long_polls is not None:
            # The operation has read its data before, so it has no later change.
            share = f"{caller.share.key} {self._long_polls.position}"
            response.headers = [(_SHARE, share.encode())]
        return response

    def _encoded(self, request: Request, call: Call) -> EncodedRequest:
        form: Form = "json" if self.takes_key else "target"
        # Native code reads either a body or a query.
        if self.takes_key and request.query:
            form = "other"
        return EncodedRequest(
            self.slug,
            call,
            form,
            request.body,
            request.path.decode("latin-1"),
            request.query.decode("latin-1"),
            request.headers.get(b"content-type"),
            request.headers.get(b"content-encoding"),
            is_paid=self._is_internal and not _PAID.isdisjoint(request.headers),
        )

    def _read(self, request: Request, call: Call) -> Message:
        if self._takes_body:
            headers = request.headers
            check_body_form(headers.get(b"content-type"), headers.get(b"content-encoding"))
        if call.idempotency_key is not None:
            check_idempotency_key(call.idempotency_key)
        message, unread = self._decode(request.body, request.query, call.path or {})
        refuse_invalid(self._method, message, unread)
        return message

    def _response(self, message: Message) -> HttpResponse:
        text_field = self._method.text_field
        if text_field and message.HasField(text_field):
            return HttpResponse(200, getattr(message, text_field).encode(), TEXT)
        return HttpResponse(200, self._encode(message))
