"""Limits on gRPC messages that arrive slowly, because grpcio buffers the received part of each.

Slow messages need one of a limited number of permits, and they have a deadline. If all permits are
in use, messages are evicted. Their order depends on the token, on the number of messages from the
same address, and on their age. Large complete messages count against a budget until their call
ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from pyservice.auth.bearer_token import bearer_token
from pyservice.errors import ServiceError
from pyservice.observability.metrics import TransportMetrics
from pyservice.rpc.error_status import status_code, trailers
from pyservice.transport import TransportSettings, request_headers
from pyservice.transport.server_budgets import SMALL_BYTES, BodyBudget

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any
"""A `grpc.RpcMethodHandler` for any messages."""
ClientOf = Callable[[Context], bytes]
"""Returns the packed client address of a call."""

_MOMENT_S: Final = 0.5
"""A message that arrives within this time needs no permit."""
_GRACE_S: Final = 2.0
"""Age before which no message is evicted, unless the number of messages exceeds `_AT_MOST` times the permits."""
_AT_MOST: Final = 2
_LOOK_S: Final = 0.1
_PLACES_OF_LIMIT: Final = 4
"""Number of permits as a multiple of the largest messages that fit the limit. Most messages are small."""
_PLACES_MIN: Final = 16

# Eviction classes, first to go first.
_IDLE: Final = 0
"""A stream that waits for its next message. Opening it again costs the client nothing."""
_STRANGER: Final = 1
"""A client without a well-formed token."""
_OTHER: Final = 2


@dataclass(slots=True)
class _Coming:
    """A message that has not arrived completely."""

    since_s: float
    context: Context
    is_first: bool


class SlowMessageLimits:
    """Limits on slow messages of one gRPC server.

    Create it on the event loop of the server, and call `close` after the server has stopped.
    """

    def __init__(
        self,
        settings: TransportSettings,
        largest_bytes: int,
        metrics: TransportMetrics,
        client_of: ClientOf,
    ) -> None:
        limit_bytes = settings.bodies_limit_bytes
        self._places = max(_PLACES_OF_LIMIT * limit_bytes // largest_bytes, _PLACES_MIN)
        self._budget = BodyBudget(limit_bytes, largest_bytes, metrics)
        self._timeout_s = settings.receive_timeout_ms / 1000
        self._client_of = client_of
        self._loop = asyncio.get_running_loop()
        self._coming: dict[asyncio.Task[Any], _Coming] = {}
        self._refused: dict[asyncio.Task[Any], ServiceError] = {}
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def first(
        self, handler: Handler, *, is_told: bool = False, needs_token: bool = False
    ) -> Handler:
        is_stream = handler.response_streaming
        serve: Any = handler.unary_stream if is_stream else handler.unary_unary
        parse = handler.request_deserializer

        async def serve_one(message: bytes | ServiceError, context: Context) -> Any:
            given = _parsed(parse, message)
            if not is_told and isinstance(given, ServiceError):
                ray_id = request_headers.new_ray_id()
                await context.abort(status_code(given), given.detail, trailers(given, ray_id))
            return await serve(given, context)

        async def read_first(_: Any, context: Context) -> Any:
            message = await self._first(context, needs_token=needs_token)
            if isinstance(message, bytes) and len(message) > SMALL_BYTES:
                if not is_stream:
                    return await self._serve_large(serve_one, message, context)
                # Released early, because a stream may last for long.
                detail = f"Send at most {SMALL_BYTES} bytes, not {len(message)}."
                message = ServiceError("BODY_TOO_LARGE", detail)
            return await serve_one(message, context)

        make = (
            grpc.stream_stream_rpc_method_handler
            if is_stream
            else grpc.stream_unary_rpc_method_handler
        )
        return make(read_first, None, handler.response_serializer)

    async def messages(self, context: Context) -> AsyncIterator[Any]:
        is_first = True
        while True:
            message = await self._message(context, is_first=is_first)
            if message is grpc.aio.EOF or isinstance(message, ServiceError):
                return
            is_first = False
            yield message

    async def _serve_large(self, serve: Any, message: bytes, context: Context) -> Any:
        loan = self._budget.reserve(self._client_of(context))
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

    async def _first(self, context: Context, *, needs_token: bool) -> bytes | ServiceError:
        if needs_token:
            try:
                bearer_token(_authorization(context))
            except ServiceError as error:
                return error
        message = await self._message(context)
        if message is grpc.aio.EOF:
            return ServiceError("BODY_INVALID", "Send one message.")
        found: bytes | ServiceError = message
        return found

    async def _message(self, context: Context, *, is_first: bool = True) -> Any:
        task = asyncio.current_task(self._loop)
        assert task is not None, "grpcio runs every handler in a task"
        self._coming[task] = _Coming(self._loop.time(), context, is_first)
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
        self._timer = None
        now_s = self._loop.time()
        slow: list[tuple[asyncio.Task[Any], _Coming]] = []
        for task, coming in self._coming.items():
            if now_s - coming.since_s < _MOMENT_S:
                break
            if task not in self._refused:
                slow.append((task, coming))
        while slow and now_s - slow[0][1].since_s >= self._timeout_s:
            self._refuse(slow.pop(0)[0], ServiceError("REQUEST_TIMEOUT"))
        too_many = len(slow) - _AT_MOST * self._places
        for number, (task, coming) in enumerate(self._giving_way(slow)):
            is_graced = coming.is_first and now_s - coming.since_s < _GRACE_S
            if not is_graced or number < too_many:
                self._refuse(task, ServiceError("OVERLOADED"))
        if self._coming:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _giving_way(
        self, slow: list[tuple[asyncio.Task[Any], _Coming]]
    ) -> list[tuple[asyncio.Task[Any], _Coming]]:
        over = len(slow) - self._places
        if over <= 0:
            return []
        later: dict[tuple[int, bytes], int] = {}
        ranks: list[tuple[int, int]] = []
        for _, coming in reversed(slow):
            who = _who(coming), self._client_of(coming.context)
            later[who] = later.get(who, 0) + 1
            # Waits until its address has fewer messages.
            ranks.append((who[0], -later[who]))
        ranks.reverse()
        order = sorted(range(len(slow)), key=ranks.__getitem__)
        return [slow[number] for number in order[:over]]

    def _refuse(self, task: asyncio.Task[Any], error: ServiceError) -> None:
        self._refused[task] = error
        task.cancel()


def _parsed(parse: Any, message: bytes | ServiceError) -> Any:
    if parse is None or isinstance(message, ServiceError):
        return message
    try:
        return parse(message)
    except DecodeError:
        return ServiceError("BODY_INVALID", "The message is not one of this method.")


def _who(coming: _Coming) -> int:
    if not coming.is_first:
        return _IDLE
    try:
        bearer_token(_authorization(coming.context))
    except ServiceError:
        return _STRANGER
    return _OTHER


def _authorization(context: Context) -> str | None:
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return ", ".join(map(str, found)) or None
