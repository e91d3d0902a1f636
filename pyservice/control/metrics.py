"""Prometheus metrics of the control plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyservice.control.feeder import Feeder
from pyservice.storage.objects import ObjectCounts


def render_metrics(
    feed: Feeder,
    changes: int,
    objects: ObjectCounts,
    cdn_answers: Mapping[str, int],
    cdn_bytes: int,
    cdn_cache_bytes: int,
    *,
    unexpected_errors: Mapping[str, int],
    is_database_up: bool,
) -> bytes:
    lines = [
        *_gauge("feed_waiting", "Namespaces that the data plane has not stored yet.", feed.waiting),
        *_gauge("feed_lag_seconds", "Age of the oldest waiting namespace.", feed.lag_s),
        *_gauge(
            "feed_refused", "Namespaces that the data plane refuses.", len(feed.refused_reasons())
        ),
        *_gauge("feed_orphans", "Namespaces of the data plane without a record.", feed.orphans),
        *_gauge("feed_connected", "Whether the data plane answers.", int(feed.is_connected)),
        *_counter(
            "feed_acknowledged",
            "Configurations that the data plane stored.",
            feed.acknowledged_count,
        ),
        *_counter("feed_refusals", "Configurations that the data plane refused.", feed.refusals),
        *_counter("watch_changes", "Changes reported to long polls.", changes),
        *_counter("object_puts", "Stored uploads.", objects.puts),
        *_counter("object_put_bytes", "Bytes of stored uploads.", objects.put_bytes),
        *_counter("object_gets", "Read objects.", objects.gets),
        *_counter("object_get_bytes", "Bytes of read objects.", objects.get_bytes),
        *_counter("object_failures", "Uploads and reads that failed.", objects.failures, "code"),
        *_counter("cdn_answers", "Responses of the CDN.", cdn_answers, "status_class"),
        *_counter("cdn_bytes", "Bytes of the responses of the CDN.", cdn_bytes),
        *_gauge("cdn_cache_bytes", "Memory of the caches of the CDN.", cdn_cache_bytes),
        *_gauge(
            "database_up", "Whether the database accepts reads and changes.", int(is_database_up)
        ),
        *_counter(
            "unforeseen_errors", "Unexpected errors of background jobs.", unexpected_errors, "work"
        ),
    ]
    return "".join(lines).encode()


def _gauge(name: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, "gauge", text)
    yield f"hosting_control_{name} {value}\n"


def _counter(
    name: str, text: str, value: int | Mapping[str, int], label: str = ""
) -> Iterator[str]:
    name = f"{name}_total"
    yield from _head(name, "counter", text)
    if isinstance(value, int):
        yield f"hosting_control_{name} {value}\n"
        return
    for labelled, count in sorted(value.items()):
        yield f'hosting_control_{name}{{{label}="{labelled}"}} {count}\n'


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    # One scrape returns the metrics of both planes, so these have their own prefix.
    yield f"# HELP hosting_control_{name} {text}\n"
    yield f"# TYPE hosting_control_{name} {kind}\n"
