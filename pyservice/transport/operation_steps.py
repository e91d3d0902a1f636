"""Steps of a request after its transport has received it: rules, token, rate limit, content, handler."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from google.protobuf.message import Message

from pyservice.calls import Caller, EncodedRequest, Operation, Reply, Unanswered, WaitForChange
from pyservice.observability.metrics import Meter
from pyservice.observability.rays import Trace
from pyservice.transport import large_body_worker
from pyservice.transport.rate_limits import OperationLimit, check_rate_limit

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

    async def answer(
        self, request: EncodedRequest, read: Read, *, is_complete: bool
    ) -> Reply | None:
        """Returns the response of a native operation, or None if `run` must answer.

        A request that is not complete is for `run`, which reports its failure.
        """
        answer = self._operation.answer
        if answer is None or not is_complete:
            return None
        reply = await answer(request)
        if reply is Unanswered.UNCHECKED:
            request.form, request.body = "checked", read().SerializeToString(deterministic=True)
            reply = await answer(request)
        return None if isinstance(reply, Unanswered) else reply

    async def run(
        self, request: EncodedRequest, read: Read, trace: Trace
    ) -> tuple[Caller, Message | WaitForChange]:
        authorization = self._operation.authorize(request.call)
        caller = authorization if isinstance(authorization, Caller) else await authorization
        trace.caller = caller
        trace.authorized = perf_counter()
        if self._rate_limit is not None and not request.is_paid:
            check_rate_limit(self._rate_limit, caller, self._meter)
        if len(request.body) <= large_body_worker.LARGE_BYTES:
            message = read()
        else:
            message = await large_body_worker.WORKER.run(caller.identity, read)
        trace.message = message
        trace.handled = perf_counter()
        return caller, await self._operation.run(message, caller)
