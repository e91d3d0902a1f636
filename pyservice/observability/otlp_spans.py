"""Conversion of rays (request records) to OpenTelemetry spans, and their export over OTLP/HTTP.

No other module imports opentelemetry.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pyservice.observability.metrics import CANCELLED, OK
from pyservice.pb.hosting.internal.v1 import rays_pb2 as pb

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SCOPE: Final = InstrumentationScope("pyservice")
_KINDS: Final = {
    "webhook": SpanKind.CLIENT,
    "captcha": SpanKind.CLIENT,
    "control plane": SpanKind.CLIENT,
    "token check": SpanKind.CLIENT,
    "feed check": SpanKind.CLIENT,
}


class SpanExporter:
    """Sends spans to an OpenTelemetry collector. `close` blocks, so do not call it on the event
    loop.
    """

    def __init__(self, endpoint: str, *, queued_max: int = 8_192, every_ms: int = 1_000) -> None:
        self._processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=endpoint),
            max_queue_size=queued_max,
            schedule_delay_millis=every_ms,
        )

    def send(self, span_set: pb.SpanSet) -> None:
        """Queues the spans for the collector. Drops them if the queue is full."""
        for span in spans_of(span_set):
            self._processor.on_end(span)

    def close(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def spans_of(span_set: pb.SpanSet) -> list[ReadableSpan]:
    resource = Resource({"service.name": span_set.service})
    trace_id = int(span_set.ray_id, 16)

    def context(span_id: str) -> SpanContext:
        return SpanContext(trace_id, int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)

    attributes = {"hosting.operation": span_set.operation, "hosting.code": span_set.code}
    if span_set.caller.namespace_id:
        attributes["hosting.namespace_id"] = span_set.caller.namespace_id
    has_failed = span_set.code not in (OK, CANCELLED)
    request = ReadableSpan(
        label_of(span_set),
        context=context(span_set.span_id),
        parent=_parent(span_set, trace_id),
        resource=resource,
        attributes=attributes,
        events=[Event(mark.label, timestamp=mark.at_ns) for mark in span_set.marks],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, span_set.code) if has_failed else Status(),
        start_time=span_set.start_ns,
        end_time=span_set.end_ns,
        instrumentation_scope=_SCOPE,
    )
    return [request] + [
        ReadableSpan(
            span.label,
            context=context(span.span_id),
            parent=context(span.parent_span_id),
            resource=resource,
            kind=_KINDS.get(span.label, SpanKind.INTERNAL),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=_SCOPE,
        )
        for span in span_set.spans
    ]


def label_of(span_set: pb.SpanSet) -> str:
    return f"{span_set.door} {span_set.operation}"


def _parent(span_set: pb.SpanSet, trace_id: int) -> SpanContext | None:
    if not span_set.parent_span_id:
        return None
    parent_id = int(span_set.parent_span_id, 16)
    return SpanContext(trace_id, parent_id, is_remote=True, trace_flags=_SAMPLED)
