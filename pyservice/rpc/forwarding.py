"""gRPC calls that another process answers: bytes and metadata go to it, and its answer or status back.

The door behind is an `RpcServer` too and does every check; here are the client's address, the ray id,
sizes, the deadline, and the time that parked calls wait. How many are passed on at once is bounded; those
that are woken take turns, which is `woken`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import grpc

from pyservice.calls import WaitForChange
from pyservice.errors import ServiceError
from pyservice.observability.rays import Rays, Trace
from pyservice.rpc.error_status import DETAILS, RAY_ID, Metadata, read_error
from pyservice.rpc.internal_grpc import unix_address
from pyservice.rpc.woken_call_queue import WokenCallQueue
from pyservice.transport import request_headers
from pyservice.transport.client_address import Address
from pyservice.transport.server_budgets import WAIT_MS, RequestPermits
from pyservice.watch import LongPolls, WaitingTask

AT_ONCE: Final = 512
"""Calls that are with the other side at one time, of which a token or an address has a share
(`doors.shares`); one more waits for a moment, and is OVERLOADED then. Parked ones are not with it."""
ANSWER_TIMEOUT_MS: Final = 60_000
_PARKED_BYTES: Final = 4 * 1024
"""The longest message of a parked call, and the most metadata. A watch needs a tenth of either."""
_ENTRY_BYTES: Final = 32
"""What an entry of metadata costs beside its name and value (RFC 9113, 6.5.2)."""
_READY_S: Final = 2.0

_PASSED: Final = ("authorization", "idempotency-key", "user-agent")
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 256 * 1024),
    ("grpc.absolute_max_metadata_size", 256 * 1024),
    # The other side may be started at any time: it is tried again at once, not in two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class Failed(Exception):
    """The other side's own word: `code` of the error table, and the status as it came."""

    def __init__(self, code: str, failure: grpc.aio.AioRpcError, trailers: Metadata) -> None:
        super().__init__(code)
        self.code = code
        self.status = failure.code()
        self.detail = failure.details() or ""
        self.trailers = trailers


class ForwardedCall(NamedTuple):
    """One call as it is passed on."""

    path: str
    data: bytes
    fields: dict[str, Any]
    """Metadata of the client's call."""
    client: Address
    trace: Trace
    check_parked: Callable[[], None]
    """Raises ServiceError when too much would be kept of it while it waits; see the function."""


class RpcForwarder:
    """The way to the other side, for one door. Make it on its loop; `close` it after the door."""

    def __init__(
        self,
        socket_path: Path,
        waiters: LongPolls,
        rays: Rays | None = None,
        *,
        at_once: int = AT_ONCE,
        wait_ms: int = WAIT_MS,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
    ) -> None:
        self._channel = grpc.aio.insecure_channel(unix_address(socket_path), options=_OPTIONS)
        self._waiters = waiters
        self._rays = rays or Rays("rpc", queued_max=0)
        self._answer_timeout_s = answer_timeout_ms / 1000
        self._shares = RequestPermits(at_once, wait_ms)
        self._turns = WokenCallQueue()
        self._looking: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()

    async def answer(self, asked: ForwardedCall, time_left_s: float | None) -> bytes:
        """The answer's bytes, after waiting for a change where the other side parks the call.

        A call that has to wait is refused as BODY_TOO_LARGE when its message has more than 4 KiB, and as
        HEADERS_TOO_LARGE when its metadata has: both are in memory until the call ends, up to 40 s (the metadata is the
        library's), and most are too small to be in the budget of bodies. Charging them to it would let a few thousand
        watches take the room of everybody's bodies; and no watch needs so much.

        Raises ServiceError of this side, Failed with the other's.
        """
        loop = asyncio.get_running_loop()
        deadline = None if time_left_s is None else loop.time() + time_left_s
        metadata = _metadata(asked, self._rays.pass_on(asked.trace))
        async with self._shares.permit(asked.fields.get("authorization"), asked.client):
            answer = await self._ask(asked, metadata, deadline)
        task = WaitingTask()
        while isinstance(answer, WaitForChange):
            asked.check_parked()
            asked.trace.is_held = True
            is_over = await self._waiters.wait(task, answer)
            again = (
                *metadata,
                (
                    request_headers.INTERNAL_HELD,
                    request_headers.HELD_EXPIRED if is_over else request_headers.HELD_WOKEN,
                ),
            )
            # Before its turn: while nobody is there, all find out at the same time.
            await self._look()
            async with self._turns.one(asked.fields.get("authorization"), asked.client):
                answer = await self._ask(asked, again, deadline)
        return answer

    async def _look(self) -> None:
        """Who woke a call may be there before this channel has seen it: give it a moment.

        Each call has the whole moment, and one task looks for all of them.
        """
        if self._channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY:
            return
        if self._looking is None or self._looking.done():
            is_ready = self._is_ready = asyncio.Event()
            looking = self._channel.channel_ready()
            self._looking = asyncio.get_running_loop().create_task(looking)
            self._looking.add_done_callback(lambda _: is_ready.set())
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                await self._is_ready.wait()

    async def _ask(
        self, asked: ForwardedCall, metadata: Metadata, deadline: float | None
    ) -> bytes | WaitForChange:
        timeout_s = self._answer_timeout_s
        if deadline is not None:
            timeout_s = min(timeout_s, deadline - asyncio.get_running_loop().time())
        try:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            method = self._channel.unary_unary(asked.path)
            call = method(asked.data, metadata=metadata, timeout=timeout_s)
            began = perf_counter()
            try:
                answer = await call
            finally:
                asked.trace.note("control plane", began)
            for key, value in await call.trailing_metadata() or ():
                if key == request_headers.INTERNAL_WAIT:
                    return request_headers.read_wait(str(value))
            return answer
        except grpc.aio.AioRpcError as failure:
            raise _failure(failure) from None

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self._channel.close()


def check_parked(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Of message and metadata of a call that is to be parked. Raises BODY_TOO_LARGE, HEADERS_TOO_LARGE."""
    if len(data) > _PARKED_BYTES:
        detail = f"Send at most {_PARKED_BYTES} bytes with watch_index, not {len(data)}."
        raise ServiceError("BODY_TOO_LARGE", detail)
    metadata = context.invocation_metadata() or ()
    size = sum(len(name) + len(value) + _ENTRY_BYTES for name, value in metadata)
    if size > _PARKED_BYTES:
        detail = f"Send at most {_PARKED_BYTES} bytes of metadata with watch_index, not {size}."
        raise ServiceError("HEADERS_TOO_LARGE", detail)


def _metadata(asked: ForwardedCall, traceparent: str) -> Metadata:
    fields = asked.fields
    return (
        *((name, fields[name]) for name in _PASSED if name in fields),
        (request_headers.INTERNAL_CLIENT, str(asked.client)),
        ("traceparent", traceparent),
    )


def _failure(failure: grpc.aio.AioRpcError) -> Exception:
    """Its own word when it is one of our errors; else what it means that there is none."""
    error = read_error(failure)
    if error is not None:
        trailers = tuple(
            (key, value)
            for key, value in failure.trailing_metadata() or ()
            if key in (RAY_ID, DETAILS)
        )
        return Failed(error.code, failure, trailers)
    if failure.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceError("DEADLINE_EXCEEDED")
    return ServiceError("CONTROL_PLANE_UNAVAILABLE")
