"""Messages of gRPC calls while they come: grpcio holds what arrived of each, however many there are.

Owns who may take his time: a message that takes longer than a moment has one of a few places, some of them for each
client address, and an end. Large messages that are whole count against a budget until their call is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

from pyservice.doors import DoorSettings, tracecontext
from pyservice.doors.bodies import SMALL_BYTES, BodyBudget
from pyservice.errors import ServiceError
from pyservice.observability.metrics import DoorMetrics
from pyservice.rpc.status import status_code, trailers

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any
"""A `grpc.RpcMethodHandler`, of any messages."""
ClientOf = Callable[[Context], bytes]
"""The packed address of who calls."""

_MOMENT_S: Final = 0.5
"""What arrives within it is bounded by the network."""
_LOOK_S: Final = 0.1
_PLACES_MIN: Final = 4
_OF_ONE_ADDRESS: Final = 4
"""One address has one in so many places."""


class Reading:
    """Of one server. Make it on its loop; `close` it when the server has stopped."""

    def __init__(
        self, door: DoorSettings, largest_bytes: int, metrics: DoorMetrics, client_of: ClientOf
    ) -> None:
        """`largest_bytes` is the largest message that grpcio takes."""
        limit_bytes = door.bodies_limit_bytes
        self._places = max(limit_bytes // largest_bytes, _PLACES_MIN)
        self._places_of_one = max(self._places // _OF_ONE_ADDRESS, 1)
        self._budget = BodyBudget(limit_bytes, largest_bytes, metrics)
        self._timeout_s = door.receive_timeout_ms / 1000
        self._client_of = client_of
        self._loop = asyncio.get_running_loop()
        self._coming: dict[asyncio.Task[Any], tuple[float, Context]] = {}
        """Since when, in the order of beginning."""
        self._refused: dict[asyncio.Task[Any], ServiceError] = {}
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Nothing is read any more."""
        if self._timer is not None:
            self._timer.cancel()

    def first(self, handler: Handler, *, is_told: bool = False) -> Handler:
        """The handler of one message, which is read here and not by grpcio. `is_told`: what prevents
        the reading is given to the handler in the message's place, as the ServiceError that it is.
        """
        serve: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

        async def read_first(_: Any, context: Context) -> Any:
            message = await self._message(context)
            if message is grpc.aio.EOF:
                message = ServiceError("BODY_INVALID", "Send one message.")
            if isinstance(message, bytes) and len(message) > SMALL_BYTES:
                return await self._serve_large(serve, message, context)
            if not is_told and isinstance(message, ServiceError):
                ray_id = tracecontext.new_ray_id()
                await context.abort(status_code(message), message.detail, trailers(message, ray_id))
            return await serve(message, context)

        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(read_first, handler.request_deserializer, handler.response_serializer)

    async def messages(self, context: Context) -> AsyncIterator[Any]:
        """All messages of a call, until it ends or is too slow."""
        while True:
            message = await self._message(context)
            if message is grpc.aio.EOF or isinstance(message, ServiceError):
                return
            yield message

    async def _serve_large(self, serve: Any, message: bytes, context: Context) -> Any:
        loan = self._budget.loan(self._client_of(context))
        given: bytes | ServiceError = message
        try:
            loan.grow_to(len(message))
        except ServiceError as error:
            given = error
        del message
        try:
            return await serve(given, context)
        finally:
            loan.give_back()

    async def _message(self, context: Context) -> Any:
        """The next message, `grpc.aio.EOF`, or a ServiceError."""
        task = asyncio.current_task(self._loop)
        assert task is not None, "grpcio runs every handler in a task"
        self._coming[task] = self._loop.time(), context
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        try:
            return await context.read()
        except asyncio.CancelledError:
            refusal = self._refused.pop(task, None)
            if refusal is None:
                raise
            task.uncancel()
            return refusal
        finally:
            del self._coming[task]

    def _look(self) -> None:
        """Refuses who is too slow, and of those who take their time the last ones that have no place."""
        self._timer = None
        now_s = self._loop.time()
        taken: dict[bytes, int] = {}
        for number, (task, (since_s, context)) in enumerate(tuple(self._coming.items())):
            if now_s - since_s < _MOMENT_S:
                break
            client = self._client_of(context)
            taken[client] = taken.get(client, 0) + 1
            if now_s - since_s >= self._timeout_s:
                self._refuse(task, ServiceError("REQUEST_TIMEOUT"))
            elif taken[client] > self._places_of_one or number >= self._places:
                self._refuse(task, ServiceError("OVERLOADED"))
        if self._coming:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _refuse(self, task: asyncio.Task[Any], error: ServiceError) -> None:
        if task not in self._refused:
            self._refused[task] = error
            task.cancel()
