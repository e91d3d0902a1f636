"""Steps of a request after its transport has received it: rules, token, rate limit, content, handler."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from google.protobuf.message import Message

from pyservice.calls import (
    Answer,
    Caller,
    EncodedRequest,
    Need,
    Operation,
    Reply,
    WaitForChange,
)
from pyservice.errors import ServiceError
from pyservice.observability.metrics import Meter
from pyservice.observability.rays import Trace
from pyservice.transport import large_body_worker
from pyservice.transport.rate_limits import OperationLimit

Read = Callable[[], Message]
"""Returns the message of a request. Raises ServiceError for invalid headers or content."""


class OperationSteps:
    """One operation with its rate limit."""

    def __init__(
        self, operation: Operation, rate_limit: OperationLimit | None, meter: Meter
    ) -> None:
        self._operation = operation
        self._rate_limit = rate_limit
        self._meter = meter

    async def answer(self, request: EncodedRequest, read: Read) -> Reply | None:
        """Returns the response of a native operation, or None if `run` must answer."""
        answer = self._operation.answer
        if answer is None:
            return None
        try:
            reply = await answer(request)
            if reply == "invalid_request":
                message = await _message(request, read, request.call.address)
                reply = await self._answer_checked(answer, request, message)
        except ServiceError as error:
            if error.code == "RATE_LIMITED" and "limit" in error.metadata:
                self._meter.count_refusal(error.metadata["limit"])
            raise
        return None if isinstance(reply, str) else reply

    async def _answer_checked(
        self, answer: Answer, request: EncodedRequest, message: Message
    ) -> Reply | Need:
        request.form, request.body = "checked", message.SerializeToString(deterministic=True)
        reply = await answer(request)
        if reply == "invalid_request":
            # Protobuf keeps a field of another wire type as unknown. Native code does not read it.
            message.DiscardUnknownFields()
            request.body = message.SerializeToString(deterministic=True)
            reply = await answer(request)
        if reply == "invalid_request":
            raise RuntimeError("Python and native code do not agree about a valid request")
        return reply

    async def run(
        self, request: EncodedRequest, read: Read, trace: Trace
    ) -> tuple[Caller, Message | WaitForChange]:
        authorization = self._operation.authorize(request.call)
        caller = authorization if isinstance(authorization, Caller) else await authorization
        trace.caller = caller
        trace.authorized = perf_counter()
        if self._rate_limit is not None and not request.is_paid:
            self._rate_limit.check(caller, self._meter)
        message = await _message(request, read, caller.identity)
        trace.message = message
        trace.handled = perf_counter()
        return caller, await self._operation.run(message, caller)


async def _message(request: EncodedRequest, read: Read, tenant: bytes) -> Message:
    """Reads a request. A large one is read on the worker thread, in turns by tenant."""
    if len(request.body) <= large_body_worker.LARGE_BYTES:
        return read()
    return await large_body_worker.WORKER.run(tenant, read)
