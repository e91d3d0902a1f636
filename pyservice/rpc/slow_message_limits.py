"""Limits on gRPC messages that arrive slowly, because grpcio buffers the received part of each.

Slow messages need one of a limited number of permits, and they have a deadline. If all permits are
in use, messages are evicted. The order of eviction depends on the token, on the number of messages
from the same address, and on their age. Large complete messages count against a budget until their
call ends.
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

_FREE_S: Final = 0.5
"""A message that arrives within this time needs no permit."""
_GRACE_S: Final = 2.0
"""Age before which no message is evicted, unless the number of messages exceeds `_GRACE_FACTOR`
times the permits.
"""
_GRACE_FACTOR: Final = 2
_POLL_INTERVAL_S: Final = 0.1
_PERMITS_PER_LARGEST: Final = 4
"""Number of permits as a multiple of the largest messages that fit the limit. Most messages are small."""
_PERMITS_MIN: Final = 16

# Eviction classes, first to go first.
_IDLE_STREAM: Final = 0
"""A stream that waits for its next message. Opening it again costs the client nothing."""
_WITHOUT_TOKEN: Final = 1
"""A client without a well-formed token."""
_WITH_TOKEN: Final = 2


@dataclass(slots=True)
class _PartialMessage:
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
        self._permits = max(_PERMITS_PER_LARGEST * limit_bytes // largest_bytes, _PERMITS_MIN)
        self._budget = BodyBudget(limit_bytes, largest_bytes, metrics)
        self._timeout_s = settings.receive_timeout_ms / 1000
        self._client_of = client_of
        self._loop = asyncio.get_running_loop()
        self._partial: dict[asyncio.Task[Any], _PartialMessage] = {}
        self._refusals: dict[asyncio.Task[Any], ServiceError] = {}
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def limit_first_message(
        self, handler: Handler, *, takes_errors: bool = False, needs_token: bool = False
    ) -> Handler:
        is_stream = handler.response_streaming
        serve: Any = handler.unary_stream if is_stream else handler.unary_unary
        parse = handler.request_deserializer

        async def serve_one(message: bytes | ServiceError, context: Context) -> Any:
            request = _parse(parse, message)
            if not takes_errors and isinstance(request, ServiceError):
                ray_id = request_headers.new_ray_id()
                await context.abort(status_code(request), request.detail, trailers(request, ray_id))
            return await serve(request, context)

        async def read_first(_: Any, context: Context) -> Any:
            message = await self._read_first(context, needs_token=needs_token)
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
            message = await self._read(context, is_first=is_first)
            if message is grpc.aio.EOF or isinstance(message, ServiceError):
                return
            is_first = False
            yield message

    async def _serve_large(self, serve: Any, message: bytes, context: Context) -> Any:
        reservation = self._budget.reserve(self._client_of(context))
        request: bytes | ServiceError = message
        try:
            reservation.grow_to(len(message))
        except ServiceError as error:
            request = error
        del message
        try:
            return await serve(request, context)
        finally:
            reservation.give_back()

    async def _read_first(self, context: Context, *, needs_token: bool) -> bytes | ServiceError:
        if needs_token:
            try:
                bearer_token(_authorization(context))
            except ServiceError as error:
                return error
        message = await self._read(context)
        if message is grpc.aio.EOF:
            return ServiceError("BODY_INVALID", "Send one message.")
        complete: bytes | ServiceError = message
        return complete

    async def _read(self, context: Context, *, is_first: bool = True) -> Any:
        task = asyncio.current_task(self._loop)
        assert task is not None, "grpcio runs every handler in a task"
        self._partial[task] = _PartialMessage(self._loop.time(), context, is_first)
        if self._timer is None:
            self._timer = self._loop.call_later(_POLL_INTERVAL_S, self._evict)
        try:
            return await context.read()
        except asyncio.CancelledError:
            refusal = self._refusals.pop(task, None)
            if refusal is None:
                raise
            task.uncancel()
            return refusal
        finally:
            del self._partial[task]

    def _evict(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        slow: list[tuple[asyncio.Task[Any], _PartialMessage]] = []
        for task, partial in self._partial.items():
            if now_s - partial.since_s < _FREE_S:
                break
            if task not in self._refusals:
                slow.append((task, partial))
        while slow and now_s - slow[0][1].since_s >= self._timeout_s:
            self._refuse(slow.pop(0)[0], ServiceError("REQUEST_TIMEOUT"))
        too_many = len(slow) - _GRACE_FACTOR * self._permits
        for number, (task, partial) in enumerate(self._to_evict(slow)):
            is_graced = partial.is_first and now_s - partial.since_s < _GRACE_S
            if not is_graced or number < too_many:
                self._refuse(task, ServiceError("OVERLOADED"))
        if self._partial:
            self._timer = self._loop.call_later(_POLL_INTERVAL_S, self._evict)

    def _to_evict(
        self, slow: list[tuple[asyncio.Task[Any], _PartialMessage]]
    ) -> list[tuple[asyncio.Task[Any], _PartialMessage]]:
        over = len(slow) - self._permits
        if over <= 0:
            return []
        later: dict[tuple[int, bytes], int] = {}
        ranks: list[tuple[int, int]] = []
        for _, partial in reversed(slow):
            key = _eviction_class(partial), self._client_of(partial.context)
            later[key] = later.get(key, 0) + 1
            # Waits until its address has fewer messages.
            ranks.append((key[0], -later[key]))
        ranks.reverse()
        order = sorted(range(len(slow)), key=ranks.__getitem__)
        return [slow[number] for number in order[:over]]

    def _refuse(self, task: asyncio.Task[Any], error: ServiceError) -> None:
        self._refusals[task] = error
        task.cancel()


def _parse(parse: Any, message: bytes | ServiceError) -> Any:
    if parse is None or isinstance(message, ServiceError):
        return message
    try:
        return parse(message)
    except DecodeError:
        return ServiceError(
            "BODY_INVALID", "The message does not have the request type of this method."
        )


def _eviction_class(partial: _PartialMessage) -> int:
    if not partial.is_first:
        return _IDLE_STREAM
    try:
        bearer_token(_authorization(partial.context))
    except ServiceError:
        return _WITHOUT_TOKEN
    return _WITH_TOKEN


def _authorization(context: Context) -> str | None:
    values = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return ", ".join(map(str, values)) or None
