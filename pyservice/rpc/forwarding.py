"""Forwarding of gRPC calls to the internal server of the control plane.

The public server handles client addresses, ray ids, sizes, deadlines and waiting long polls. The
internal server makes all other checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import grpc

from pyservice.auth.bearer_token import bearer_token
from pyservice.calls import WaitForChange
from pyservice.concurrency.fair_queue import FairQueue
from pyservice.errors import ServiceError
from pyservice.observability.rays import Rays, Trace
from pyservice.rpc.error_status import DETAILS, RAY_ID, Metadata, read_error
from pyservice.rpc.internal_grpc import unix_address
from pyservice.transport import request_headers
from pyservice.transport.client_address import Address, packed_client
from pyservice.transport.server_budgets import WAIT_MS, RequestPermits
from pyservice.watch import LongPolls, WaitingTask

_AT_ONCE: Final = 32
_SLOW_S: Final = 0.1
"""Age of a call at which another one may start beside it."""
_UNANSWERED_MAX: Final = 256
"""Upper bound of calls without a response."""
_SHARE: Final = 4
"""Fraction of that bound for one token, or for all calls without a token from one address."""
_NO_TOKEN: Final = b"-"
"""Key prefix of calls without a token. No token starts like this."""


class WokenCallQueue:
    """Queue for long polls that woke, and that a public server sends to the internal server again.

    Calls with the same token are sent in the order of waking. Different tokens take turns.
    """

    def __init__(self) -> None:
        self._unanswered = FairQueue(_UNANSWERED_MAX, _UNANSWERED_MAX // _SHARE)
        self._in_flight = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def permit(self, authorization: str | None, client: Address) -> AsyncIterator[None]:
        async with (
            self._unanswered.permit(None, _tenant(authorization, client)),
            _InFlightPermit(self._in_flight),
        ):
            yield


class _InFlightPermit:
    """Takes a permit for a call, and returns it at the end of the call or after 100 ms.

    Slow calls thus do not block others. Use it once with `async with`.
    """

    __slots__ = ("_permits", "_timer")

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self._permits = permits
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._permits.acquire()
        self._timer = asyncio.get_running_loop().call_later(_SLOW_S, self._release)

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._release()

    def _release(self) -> None:
        self._timer = None
        self._permits.release()


def _tenant(authorization: str | None, client: Address) -> bytes:
    try:
        return bearer_token(authorization)[0].encode()
    except ServiceError:
        return _NO_TOKEN + packed_client(client)


AT_ONCE: Final = 512
"""Forwarded calls at a time, without parked ones. A token or an address has a share of them. One more
waits for a moment and is then OVERLOADED."""
ANSWER_TIMEOUT_MS: Final = 60_000
_PARKED_BYTES: Final = 4 * 1024
"""Upper bound of the message and of the metadata of a parked call."""
_ENTRY_BYTES: Final = 32
"""Overhead of one metadata entry (RFC 9113, 6.5.2)."""
_CONNECT_TIMEOUT_S: Final = 2.0

_PASSED: Final = ("authorization", "idempotency-key", "user-agent")
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 256 * 1024),
    ("grpc.absolute_max_metadata_size", 256 * 1024),
    # Reconnects at once. The default back-off of grpcio grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class UpstreamError(Exception):
    """An error that the internal server returned, with its error code and gRPC status."""

    def __init__(self, code: str, failure: grpc.aio.AioRpcError, trailers: Metadata) -> None:
        super().__init__(code)
        self.code = code
        self.status = failure.code()
        self.detail = failure.details() or ""
        self.trailers = trailers


class ForwardedCall(NamedTuple):
    """One gRPC call that is forwarded to the internal server."""

    path: str
    data: bytes
    fields: dict[str, Any]
    client: Address
    trace: Trace
    check_parked: Callable[[], None]


class RpcForwarder:
    """Forwards the gRPC calls of one public server.

    Create it on the event loop of the server, and call `close` after the server has stopped.
    """

    def __init__(
        self,
        socket_path: Path,
        long_polls: LongPolls,
        rays: Rays | None = None,
        *,
        at_once: int = AT_ONCE,
        wait_ms: int = WAIT_MS,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
    ) -> None:
        self._channel = grpc.aio.insecure_channel(unix_address(socket_path), options=_OPTIONS)
        self._long_polls = long_polls
        self._rays = rays or Rays("rpc", queued_max=0)
        self._answer_timeout_s = answer_timeout_ms / 1000
        self._shares = RequestPermits(at_once, wait_ms)
        self._woken_calls = WokenCallQueue()
        self._connecting: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()

    async def answer(self, forwarded_call: ForwardedCall, time_left_s: float | None) -> bytes:
        loop = asyncio.get_running_loop()
        deadline = None if time_left_s is None else loop.time() + time_left_s
        metadata = _metadata(forwarded_call, self._rays.pass_on(forwarded_call.trace))
        async with self._shares.permit(
            forwarded_call.fields.get("authorization"), forwarded_call.client
        ):
            answer = await self._ask(forwarded_call, metadata, deadline)
        task = WaitingTask()
        while isinstance(answer, WaitForChange):
            forwarded_call.check_parked()
            forwarded_call.trace.has_waited = True
            is_over = await self._long_polls.wait(task, answer)
            repeat_metadata = (
                *metadata,
                (
                    request_headers.INTERNAL_HELD,
                    request_headers.HELD_EXPIRED if is_over else request_headers.HELD_WOKEN,
                ),
            )
            # Checked before the queue, so that all callers learn of an absent server at once.
            await self._wait_until_connected()
            async with self._woken_calls.permit(
                forwarded_call.fields.get("authorization"), forwarded_call.client
            ):
                answer = await self._ask(forwarded_call, repeat_metadata, deadline)
        return answer

    async def _wait_until_connected(self) -> None:
        if self._channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY:
            return
        if self._connecting is None or self._connecting.done():
            is_ready = self._is_ready = asyncio.Event()
            connect = self._channel.channel_ready()
            self._connecting = asyncio.get_running_loop().create_task(connect)
            self._connecting.add_done_callback(lambda _: is_ready.set())
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self._is_ready.wait()

    async def _ask(
        self, forwarded_call: ForwardedCall, metadata: Metadata, deadline: float | None
    ) -> bytes | WaitForChange:
        timeout_s = self._answer_timeout_s
        if deadline is not None:
            timeout_s = min(timeout_s, deadline - asyncio.get_running_loop().time())
        try:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            method = self._channel.unary_unary(forwarded_call.path)
            call = method(forwarded_call.data, metadata=metadata, timeout=timeout_s)
            began = perf_counter()
            try:
                response = await call
            finally:
                forwarded_call.trace.note("control plane", began)
            for key, value in await call.trailing_metadata() or ():
                if key == request_headers.INTERNAL_WAIT:
                    return request_headers.read_wait(str(value))
            return response
        except grpc.aio.AioRpcError as failure:
            raise _failure(failure) from None

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        await self._channel.close()


def check_parked(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    if len(data) > _PARKED_BYTES:
        detail = f"Send at most {_PARKED_BYTES} bytes with watch_index, not {len(data)}."
        raise ServiceError("BODY_TOO_LARGE", detail)
    metadata = context.invocation_metadata() or ()
    size = sum(len(name) + len(value) + _ENTRY_BYTES for name, value in metadata)
    if size > _PARKED_BYTES:
        detail = f"Send at most {_PARKED_BYTES} bytes of metadata with watch_index, not {size}."
        raise ServiceError("HEADERS_TOO_LARGE", detail)


def _metadata(forwarded_call: ForwardedCall, traceparent: str) -> Metadata:
    fields = forwarded_call.fields
    return (
        *((name, fields[name]) for name in _PASSED if name in fields),
        (request_headers.INTERNAL_CLIENT, str(forwarded_call.client)),
        ("traceparent", traceparent),
    )


def _failure(failure: grpc.aio.AioRpcError) -> Exception:
    error = read_error(failure)
    if error is not None:
        trailers = tuple(
            (key, value)
            for key, value in failure.trailing_metadata() or ()
            if key in (RAY_ID, DETAILS)
        )
        return UpstreamError(error.code, failure, trailers)
    if failure.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceError("DEADLINE_EXCEEDED")
    return ServiceError("CONTROL_PLANE_UNAVAILABLE")
