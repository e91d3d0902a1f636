from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter, time_ns
from typing import Any
from unittest import mock

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.errors import ServiceError
from pyservice.observability.metrics import CANCELLED, OK, RayMetrics
from pyservice.observability.otlp_spans import SpanExporter, spans_of
from pyservice.observability.rays import (
    ONE_IN,
    EndedTrace,
    RayDelivery,
    Rays,
    Trace,
    current,
    note,
    note_lobby,
    span_set,
)
from pyservice.pb.hosting.internal.v1 import rays_pb2 as pb
from tests.support.otlp_collector import running_collector
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

RAY = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
NAMESPACE = bytes(range(16))
MANY = 100 * ONE_IN


@pytest.fixture(autouse=True)
def nothing_is_sent_afterwards() -> Iterator[None]:
    """The exporter's thread uses the global random generator, which Hypothesis in later tests
    would report as an error.
    """
    yield
    for thread in threading.enumerate():
        if thread.name.startswith(("Otel", "rays-close")):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name


def a_trace(
    traceparent: str | None = None, *, took_s: float = 0.001, namespace: bytes = NAMESPACE
) -> Trace:
    trace = Trace(RAY, perf_counter() - took_s, traceparent)
    trace.caller = Caller(TokenKind.PUBLIC, namespace, b"", b"", Call(RAY, b"\x7f\0\0\1"))
    return trace


def end(rays: Rays, trace: Trace, code: str = OK) -> bool:
    rays.end(trace, "http", "find", code, perf_counter())
    return bool(rays.take_all())


def make_rays(service: str = "data-plane", **options: Any) -> Rays:
    """Returns rays of which the random selection draws none of the next 3,600 requests."""
    with mock.patch("random.random", return_value=1.0 - 2.0**-53):
        return Rays(service, **options)


@asynccontextmanager
async def running(delivery: RayDelivery) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(delivery.run()), asyncio.create_task(delivery.store())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def fail(rays: Rays, operation: str = "find", trace: Trace | None = None) -> None:
    rays.end(trace or a_trace(), "http", operation, "INTERNAL", perf_counter())


def test_failed_slow_or_traced_requests_are_stored() -> None:
    rays = make_rays()
    assert not end(rays, a_trace())
    assert end(rays, a_trace(), "NOT_FOUND")
    assert end(rays, a_trace(took_s=0.11))
    assert end(rays, a_trace(PARENT))
    assert not end(rays, a_trace(took_s=0.09))
    assert not end(rays, a_trace(), CANCELLED)


def test_lobby_is_named_only_in_kept_requests() -> None:
    rays = make_rays()
    named: list[str] = []

    def name() -> str:
        named.append("lobby-1")
        return "lobby-1"

    def placed_trace(traceparent: str | None = None) -> Trace:
        token = current.set(trace := a_trace(traceparent))
        note_lobby(name)
        current.reset(token)
        return trace

    assert not end(rays, placed_trace())
    assert named == []
    rays.end(placed_trace(PARENT), "http", "find", OK, perf_counter())
    (ended,) = rays.take_all()
    assert named == ["lobby-1"]
    # A waiting record does not keep the response.
    assert ended.trace.name_lobby is None
    labels = [mark.label for mark in span_set(ended, "data-plane").marks]
    assert labels == ["lobby lobby-1", "answered OK"]


def test_time_in_a_watch_does_not_count_as_slow() -> None:
    rays = make_rays()
    trace = a_trace(took_s=40.0)
    trace.has_waited = True
    assert not end(rays, trace)
    assert end(rays, trace, "INTERNAL")


def test_one_in_a_hundred_other_requests_is_stored() -> None:
    rays = Rays("data-plane", per_second=MANY)
    stored_numbers = [number for number in range(MANY) if end(rays, a_trace())]
    # Binomial: 100 of 10,000, with seven standard deviations.
    assert 30 < len(stored_numbers) < 170
    assert len({after - before for before, after in itertools.pairwise(stored_numbers)}) > 10


def test_rays_over_rate_or_queue_limit_are_dropped_and_counted() -> None:
    count = RayMetrics()
    rays = make_rays(per_second=5, count=count)
    assert sum(end(rays, a_trace(), "INTERNAL") for _ in range(8)) == 5
    # Requested rays have a separate quota.
    assert end(rays, a_trace(PARENT))
    assert (count.stored, count.dropped) == (6, 3)

    rays = make_rays(queued_max=2, count=(count := RayMetrics()))
    for _ in range(3):
        fail(rays)
    assert (count.stored, count.dropped) == (2, 1)


def test_namespace_with_many_refusals_leaves_room_for_others() -> None:
    rays = make_rays(per_second=5)
    for _ in range(20):
        fail(rays)
    fail(rays, trace=a_trace(namespace=bytes(16)))
    kept = [ended.trace.namespace_id for ended in rays.take_all()]
    assert kept == [NAMESPACE] * 5 + [bytes(16)]


def test_times_are_wall_clock_times() -> None:
    before_ns = time_ns()
    trace = Trace(RAY, perf_counter())
    trace.handled = perf_counter()
    token = current.set(trace)
    began = perf_counter()
    note("engine", began)
    current.reset(token)
    rays = Rays("data-plane")
    fail(rays, trace=trace)
    spans = span_set(rays.take_all()[0], "data-plane")
    slack_ns = 5_000_000
    assert before_ns - slack_ns <= spans.start_ns <= spans.end_ns <= time_ns() + slack_ns
    handler, engine = spans.spans
    assert (handler.label, engine.label) == ("handler", "engine")
    assert (handler.parent_span_id, engine.parent_span_id) == (spans.span_id, handler.span_id)
    assert spans.start_ns <= handler.start_ns <= engine.start_ns <= engine.end_ns <= spans.end_ns
    assert not spans.HasField("caller")


def test_shared_span_ends_with_the_request() -> None:
    trace = a_trace()
    ended = perf_counter()
    trace.spans.append(("webhook", None, trace.started, ended + 5.0))
    spans = span_set(EndedTrace(trace, "http", "find", "DEADLINE_EXCEEDED", ended, 0), "data-plane")
    assert spans.spans[0].end_ns == spans.end_ns


def test_nothing_is_recorded_outside_of_a_request() -> None:
    assert current.get() is None
    note("engine", perf_counter())


def test_collector_spans_form_a_tree_below_the_client_span() -> None:
    trace = a_trace(PARENT)
    trace.handled = perf_counter()
    trace.note("webhook", perf_counter(), "00000000000000aa")
    spans = span_set(
        EndedTrace(trace, "http", "find", "NOT_FOUND", perf_counter(), 0), "data-plane"
    )
    root, handler, webhook = spans_of(spans)
    assert root.parent is not None
    assert root.parent.span_id == int(PARENT, 16)
    assert root.context is not None
    assert root.context.trace_id == int(RAY, 16)
    assert handler.parent is not None
    assert handler.parent.span_id == root.context.span_id
    assert webhook.context is not None
    assert webhook.context.span_id == 0xAA
    assert (root.status.description, root.status.is_ok) == ("NOT_FOUND", False)


class Store:
    def __init__(self) -> None:
        self.stored: list[pb.SpanSet] = []
        self.failures: list[str] = []
        self.call_count = 0

    async def __call__(self, span_sets: Sequence[pb.SpanSet]) -> None:
        self.call_count += 1
        if self.failures:
            raise ServiceError(self.failures.pop(0))
        self.stored += span_sets


async def until(is_so: object, timeout_s: float = PATIENCE_S) -> None:
    assert callable(is_so)
    async with asyncio.timeout(timeout_s):
        while not is_so():
            await asyncio.sleep(0.005)


async def test_failed_store_is_retried_and_rejected_spans_are_dropped() -> None:
    count, store = RayMetrics(), Store()
    rays = make_rays(count=count)
    delivery = RayDelivery(rays, store, None, 10)
    async with running(delivery):
        store.failures = ["CONTROL_PLANE_UNAVAILABLE", "CONTROL_PLANE_UNAVAILABLE"]
        fail(rays)
        await until(lambda: store.stored)
        assert (store.call_count, count.dropped) == (3, 0)
        store.failures = ["BODY_INVALID"]
        fail(rays)
        await until(lambda: count.dropped == 1)
        fail(rays, "join")
        await until(lambda: len(store.stored) == 2)
        assert [one.operation for one in store.stored] == ["find", "join"]


async def test_oldest_spans_are_dropped_and_counted_during_an_outage() -> None:
    count, gate, is_storing = RayMetrics(), asyncio.Event(), asyncio.Event()
    stored: list[pb.SpanSet] = []

    async def store(span_sets: Sequence[pb.SpanSet]) -> None:
        is_storing.set()
        await gate.wait()
        stored.extend(span_sets)

    rays = make_rays(count=count, per_second=1_000)
    delivery = RayDelivery(rays, store, None, 3)
    async with running(delivery):
        fail(rays, "first")
        await until(is_storing.is_set)
        for number in range(5):
            fail(rays, f"n{number}")
        await until(lambda: count.dropped == 2)
        gate.set()
        await until(lambda: len(stored) == 4)
        assert [one.operation for one in stored] == ["first", "n2", "n3", "n4"]


async def test_private_spans_are_exported_and_not_stored() -> None:
    store, rays = Store(), make_rays()
    with running_collector() as collector:
        delivery = RayDelivery(rays, store, collector.url, 10)
        async with running(delivery):
            rays.end(Trace("1" * 32, perf_counter()), "http", "none", "NOT_FOUND", perf_counter())
            await until(lambda: collector.of_ray("1" * 32))
        # The queue is exported at shutdown.
        fail(rays)
        await delivery.close()
        assert [span.name for span in collector.of_ray("1" * 32)] == ["http none"]
        assert [span.name for span in collector.of_ray(RAY)] == ["http find"]
    assert store.call_count == 0


@pytest.mark.full
async def test_unreachable_collector_blocks_nothing() -> None:
    rays = make_rays()
    delivery = RayDelivery(rays, Store(), "http://127.0.0.1:9/v1/traces", 10)
    fail(rays)
    async with asyncio.timeout(PATIENCE_S):
        await delivery.close()


def test_exporter_queue_is_limited() -> None:
    rays = Rays("data-plane")
    fail(rays)
    spans = span_set(rays.take_all()[0], "data-plane")
    with running_collector() as collector:
        collector.is_open.clear()
        exporter = SpanExporter(collector.url, queued_max=512, every_ms=60_000)
        for _ in range(2_000):
            exporter.send(spans)
        collector.is_open.set()
        exporter.close()
        # A full queue, and one batch on its way.
        assert 512 <= len(collector.of_ray(RAY)) <= 1_024
