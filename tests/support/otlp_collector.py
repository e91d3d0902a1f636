"""OTLP collector for tests: an HTTP server on loopback that stores the received spans."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True)
class ExportedSpan:
    service: str
    name: str
    ray_id: str
    span_id: str
    parent_span_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str]

    @property
    def ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


@dataclass
class Collector:
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    is_open: threading.Event = field(default_factory=threading.Event)
    """Clear it to let requests wait."""
    _spans: list[ExportedSpan] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: bytes) -> None:
        assert self.is_open.wait(PATIENCE_S)
        request = ExportTraceServiceRequest.FromString(body)
        spans = [
            ExportedSpan(
                service=next(
                    one.value.string_value
                    for one in of_resource.resource.attributes
                    if one.key == "service.name"
                ),
                name=span.name,
                ray_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_span_id=span.parent_span_id.hex(),
                start_ns=span.start_time_unix_nano,
                end_ns=span.end_time_unix_nano,
                attributes={one.key: one.value.string_value for one in span.attributes},
            )
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]
        with self._lock:
            self.bodies.append(body)
            self._spans += spans

    def of_ray(self, ray_id: str) -> list[ExportedSpan]:
        with self._lock:
            return [span for span in self._spans if span.ray_id == ray_id]


@contextlib.contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()
    collector.is_open.set()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
