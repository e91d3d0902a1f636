"""Prometheus metrics of the CDN."""

from __future__ import annotations

from collections.abc import Mapping

from pyservice.control.metrics import counter, gauge
from pyservice.storage.objects import ObjectCounts


def render_metrics(
    objects: ObjectCounts, answers: Mapping[str, int], sent_bytes: int, cache_bytes: int
) -> bytes:
    lines = [
        *counter("object_puts", "Stored uploads.", objects.puts),
        *counter("object_put_bytes", "Bytes of stored uploads.", objects.put_bytes),
        *counter("object_gets", "Read objects.", objects.gets),
        *counter("object_get_bytes", "Bytes of read objects.", objects.get_bytes),
        *counter("object_failures", "Uploads and reads that failed.", objects.failures, "code"),
        *counter("cdn_answers", "Responses of the CDN.", answers, "status_class"),
        *counter("cdn_bytes", "Bytes of the responses of the CDN.", sent_bytes),
        *gauge("cdn_cache_bytes", "Memory of the caches of the CDN.", cache_bytes),
    ]
    return "".join(lines).encode()
