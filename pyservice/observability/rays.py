"""Rays: timed records of requests. A part of them is kept for the database and the trace collector.

Recording must be cheap, because most records are dropped. Records contain only validated ids and
names, and no other client input.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from time import monotonic, perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid, random_hex
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, OK, RayMetrics
from pyservice.pb.hosting.internal.v1 import rays_pb2 as pb

if TYPE_CHECKING:
    from pyservice.observability.otlp_spans import SpanExporter

log = get_logger("rays")

SLOW_S: Final = 0.1
ONE_IN: Final = 100
"""Of this many ordinary requests, one is kept."""

LOBBY_MARK: Final = "lobby "
"""Start of the label with the lobby of a request's players. The command `why` reads it."""

_NS: Final = 1_000_000_000
_SPAN_ID_DIGITS: Final = 16


# Call it only on the event loop's thread.
new_span_id = random_hex(_SPAN_ID_DIGITS).__next__


class Trace:
    """Record of one request, with times of `perf_counter`.

    Attributes that most requests do not set are class attributes, which saves time.
    """

    authorized = 0.0
    """Time of the authorization. 0 before."""
    handled = 0.0
    """Start of the handler. 0 before."""
    caller: Any = None
    message: Any = None
    """The request message, until the request ends."""
    namespace_id = b""
    """Namespace of a kept request, or of a request without a caller."""
    lobby_id = b""
    """Lobby of the server that sent the request, if the request has no caller."""
    upload_id = ""
    game = ""
    has_waited = False
    """True for a request that waited for a change. The request then does not count as slow."""
    is_sampled = False
    name_lobby: Callable[[], str] | None = None
    """Returns the id of the lobby in which the request placed its players, or wanted to."""
    placed_lobby = ""
    """Result of `name_lobby` of a kept request."""
    _span_id: str | None = None

    def __init__(self, ray_id: str, started: float, parent_span: str | None = None) -> None:
        self.ray_id = ray_id
        self.started = started
        self.parent_span = parent_span
        self.spans: list[tuple[str, str | None, float, float]] = []

    @property
    def span_id(self) -> str:
        if self._span_id is None:
            self._span_id = new_span_id()
        return self._span_id

    @property
    def parent_span_id(self) -> str:
        """Span ID from the request's traceparent header, or empty."""
        return self.parent_span or ""

    def note(self, label: str, begin: float, span_id: str | None = None) -> None:
        """Adds a span from `begin` until now to the record."""
        self.spans.append((label, span_id, begin, perf_counter()))


current: ContextVar[Trace | None] = ContextVar("trace", default=None)


def note(label: str, begin: float, span_id: str | None = None) -> None:
    """Adds a span from `begin` until now to the record of the current request, if there is one."""
    trace = current.get()
    if trace is not None:
        trace.spans.append((label, span_id, begin, perf_counter()))


def note_lobby(name: Callable[[], str]) -> None:
    """Sets the lobby of the players of the current request. Calls `name` only if the record is kept."""
    trace = current.get()
    if trace is not None:
        trace.name_lobby = name


class EndedTrace(NamedTuple):
    trace: Trace
    door: str
    operation: str
    code: str
    ended_at: float
    wall_ns: int
    """Offset from `perf_counter` to Unix time, in nanoseconds."""


class _Allowance:
    """Number of records that each namespace has left in a second.

    Requests without a namespace share one allowance.
    """

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._taken: Counter[bytes] = Counter()
        self._until = 0.0

    def takes(self, namespace_id: bytes) -> bool:
        now = monotonic()
        if now >= self._until:
            self._until = now + 1.0
            self._taken.clear()
        self._taken[namespace_id] += 1
        return self._taken[namespace_id] <= self._per_second


class Rays:
    """Selects the request records for the database and the trace collector, and queues them."""

    def __init__(
        self,
        service: str,
        *,
        per_second: int = 100,
        queued_max: int = 2_000,
        count: RayMetrics | None = None,
        namespace_of_lobby: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        """Keeps the records of at most `per_second` failed or slow requests of each namespace.

        Keeps as many other records. Both numbers are for each second.
        """
        self._namespace_of_lobby = namespace_of_lobby
        self.service = service
        self.count = count or RayMetrics()
        self.per_second = per_second
        self._errors = _Allowance(per_second)
        self._samples = _Allowance(per_second)
        self._queue: deque[EndedTrace] = deque()
        self._queued_max = queued_max
        self._until_sample = _sampling_gap()
        self._has_rays = asyncio.Event()

    def end(self, trace: Trace, transport: str, operation: str, code: str, ended_at: float) -> None:
        """Ends the record of a request. `code` is OK, CANCELLED or an error code."""
        self._until_sample -= 1
        if (
            code != OK
            or trace.parent_span is not None
            or self._until_sample <= 0
            or trace.is_sampled
            or ended_at - trace.started > SLOW_S
        ):
            self._store_if_sampled(trace, transport, operation, code, ended_at)

    def _store_if_sampled(
        self, trace: Trace, transport: str, operation: str, code: str, ended_at: float
    ) -> None:
        is_slow = ended_at - trace.started > SLOW_S and not trace.has_waited
        if code not in (OK, CANCELLED) or is_slow:
            allowance = self._errors
        elif trace.is_sampled or trace.parent_span is not None or self._samples_next():
            allowance = self._samples
        else:
            return
        trace.namespace_id = self._namespace_of(trace)
        if len(self._queue) >= self._queued_max or not allowance.takes(trace.namespace_id):
            self.count.dropped += 1
            return
        self.count.stored += 1
        trace.game = _game_of(trace)
        if trace.name_lobby is not None:
            trace.placed_lobby = trace.name_lobby()
        # The queue must not hold messages, which may be whole configurations.
        trace.message = trace.name_lobby = None
        wall_ns = time_ns() - int(perf_counter() * _NS)
        self._queue.append(EndedTrace(trace, transport, operation, code, ended_at, wall_ns))
        self._has_rays.set()

    def _namespace_of(self, trace: Trace) -> bytes:
        sender: Any = trace if trace.caller is None else trace.caller
        if sender.lobby_id and not sender.namespace_id and self._namespace_of_lobby is not None:
            return self._namespace_of_lobby(sender.lobby_id) or b""
        namespace_id: bytes = sender.namespace_id
        return namespace_id

    def _samples_next(self) -> bool:
        if self._until_sample > 0:
            return False
        self._until_sample = _sampling_gap()
        return True

    async def take(self, at_most: int) -> list[EndedTrace]:
        await self._has_rays.wait()
        return self._dequeue(at_most)

    def take_all(self) -> list[EndedTrace]:
        return self._dequeue(len(self._queue))

    def _dequeue(self, at_most: int) -> list[EndedTrace]:
        batch = [self._queue.popleft() for _ in range(min(at_most, len(self._queue)))]
        if not self._queue:
            self._has_rays.clear()
        return batch


def _game_of(trace: Trace) -> str:
    game_id = getattr(trace.message, "game_id", None)
    if game_id is None and trace.caller is not None and trace.caller.call.path is not None:
        game_id = trace.caller.call.path.get("game_id")
    return game_id or ""


def _sampling_gap() -> int:
    return 1 + int(math.log(1.0 - random.random()) / math.log(1.0 - 1.0 / ONE_IN))


def span_set(trace_end: EndedTrace, service: str) -> pb.SpanSet:
    trace, wall_ns = trace_end.trace, trace_end.wall_ns

    def at_ns(moment: float) -> int:
        return int(moment * _NS) + wall_ns

    record = pb.SpanSet(
        ray_id=trace.ray_id,
        span_id=trace.span_id,
        parent_span_id=trace.parent_span_id,
        service=service,
        operation=trace_end.operation,
        door=trace_end.door,
        code=trace_end.code,
        start_ns=at_ns(trace.started),
        end_ns=at_ns(trace_end.ended_at),
        caller=_ray_caller(trace),
    )
    if trace.authorized:
        record.marks.add(label="authorized", at_ns=at_ns(trace.authorized))
    if trace.placed_lobby:
        label = f"{LOBBY_MARK}{trace.placed_lobby}"
        record.marks.add(label=label, at_ns=at_ns(trace_end.ended_at))
    record.marks.add(label=f"answered {trace_end.code}", at_ns=at_ns(trace_end.ended_at))
    handler_id = ""
    if trace.handled:
        handler_id = new_span_id()
        record.spans.add(
            label="handler",
            span_id=handler_id,
            parent_span_id=trace.span_id,
            start_ns=at_ns(trace.handled),
            end_ns=at_ns(trace_end.ended_at),
        )
    for label, span_id, begin, end in sorted(trace.spans, key=lambda span: span[2]):
        is_within_handler = trace.handled and begin >= trace.handled
        record.spans.add(
            label=label,
            span_id=span_id or new_span_id(),
            parent_span_id=handler_id if is_within_handler else trace.span_id,
            start_ns=at_ns(begin),
            # A shared call may outlive this request.
            end_ns=at_ns(min(end, trace_end.ended_at)),
        )
    return record


def _ray_caller(trace: Trace) -> pb.RayCaller | None:
    caller = trace.caller
    if caller is not None and caller.scope is not None:
        scope = caller.scope
        return pb.RayCaller(
            identity_id=scope.identity_id,
            group_id=scope.group_id or "",
            game_id=scope.game_id or "",
            named_game=trace.game,
        )
    if trace.namespace_id:
        return pb.RayCaller(namespace_id=format_uuid(trace.namespace_id))
    return pb.RayCaller(upload_id=trace.upload_id) if trace.upload_id else None


_GATHER_S: Final = 0.2
_AT_ONCE: Final = 256
_RETRY_DELAYS_S: Final = doubling(0.1, 2.0)
_CLOSE_S: Final = 2.0


class RayDelivery:
    """Delivers rays to the trace collector and the database.

    Run `run` and `store` as tasks. Call `close` after both have ended.
    """

    def __init__(
        self,
        rays: Rays,
        store: Callable[[Sequence[pb.SpanSet]], Awaitable[None]],
        otlp_endpoint: str | None,
        waiting_max: int,
    ) -> None:
        """`store` saves rays to the database. At most `waiting_max` rays wait for it.

        If it raises a ServiceError with a retry time, it is called again. A ray without a known
        caller is not saved. The trace collector receives all rays.
        """
        self._rays = rays
        self._store = store
        self._exporter = None if otlp_endpoint is None else _exporter(otlp_endpoint)
        self._waiting: deque[pb.SpanSet] = deque()
        self._waiting_max = waiting_max
        self._are_waiting = asyncio.Event()

    async def run(self) -> None:
        while True:
            for trace_end in await self._rays.take(_AT_ONCE):
                self._deliver(trace_end)
            await asyncio.sleep(_GATHER_S)

    def _deliver(self, trace_end: EndedTrace) -> None:
        record = span_set(trace_end, self._rays.service)
        if self._exporter is not None:
            self._exporter.send(record)
        if not record.HasField("caller"):
            return
        if len(self._waiting) >= self._waiting_max:
            self._waiting.popleft()
            self._rays.count.dropped += 1
        self._waiting.append(record)
        self._are_waiting.set()

    async def store(self) -> None:
        while True:
            await self._are_waiting.wait()
            batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            if not self._waiting:
                self._are_waiting.clear()
            await self._store_all(batch)
            await asyncio.sleep(_GATHER_S)

    async def _store_all(self, batch: Sequence[pb.SpanSet]) -> None:
        backoff = Backoff(_RETRY_DELAYS_S)
        while True:
            try:
                await self._store(batch)
                return
            except ServiceError as error:
                if error.retry_after_s is None:
                    log.error("rays not stored", code=error.code, count=len(batch))
                    break
            except Exception:
                log.exception("rays not stored", count=len(batch))
                break
            await asyncio.sleep(backoff.next_s())
        self._rays.count.dropped += len(batch)

    async def close(self) -> None:
        """Sends the remaining rays to the trace collector, within 2 s."""
        if self._exporter is None:
            return
        for trace_end in self._rays.take_all():
            self._exporter.send(span_set(trace_end, self._rays.service))
        # A daemon thread, so that a hanging collector does not block the exit.
        closing = threading.Thread(target=self._exporter.close, name="rays-close", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _CLOSE_S)


def _exporter(endpoint: str) -> SpanExporter:
    # Imported on use: the module takes a twentieth of a start, and few services have a collector.
    from pyservice.observability.otlp_spans import SpanExporter

    return SpanExporter(endpoint)
