"""Prometheus metrics of the control plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyservice.control.feeder import Feeder
from pyservice.runtime.run_folder import DroppedOutput


def render_metrics(
    feed: Feeder,
    changes: int,
    dropped_output: DroppedOutput,
    *,
    unexpected_errors: Mapping[str, int],
    is_database_up: bool,
    is_object_store_up: bool,
    owner_epoch: int,
    backup_age_s: float | None,
) -> bytes:
    """`backup_age_s` is None if no backup was made."""
    lines = [
        *gauge("feed_waiting", "Namespaces that the data plane has not stored yet.", feed.waiting),
        *gauge("feed_lag_seconds", "Age of the oldest waiting namespace.", feed.lag_s),
        *gauge(
            "feed_refused", "Namespaces that the data plane refuses.", len(feed.refused_reasons())
        ),
        *gauge("feed_orphans", "Namespaces of the data plane without a record.", feed.orphans),
        *gauge("feed_connected", "Whether the data plane answers.", int(feed.is_connected)),
        *counter(
            "feed_acknowledged",
            "Configurations that the data plane stored.",
            feed.acknowledged_count,
        ),
        *counter("feed_refusals", "Configurations that the data plane refused.", feed.refusals),
        *counter("watch_changes", "Changes reported to long polls.", changes),
        *counter(
            "log_lines_dropped",
            "Lines of game servers that the rate limit of their log dropped.",
            dropped_output.line_count,
        ),
        *counter("log_bytes_dropped", "Bytes of these.", dropped_output.byte_count),
        *gauge(
            "database_up", "Whether the database accepts reads and changes.", int(is_database_up)
        ),
        *gauge("object_store_up", "Whether the object store can be used.", int(is_object_store_up)),
        *gauge("owner_epoch", "Owner epoch of this service in its database.", owner_epoch),
        *counter(
            "unforeseen_errors", "Unexpected errors of background jobs.", unexpected_errors, "work"
        ),
        *gauge("backup_age_seconds", "Time since the last backup began.", backup_age_s),
    ]
    return "".join(lines).encode()


def gauge(name: str, text: str, value: float | None) -> Iterator[str]:
    """Yields a family, without a sample if `value` is None."""
    yield from _head(name, "gauge", text)
    if value is not None:
        yield f"hosting_control_{name} {value}\n"


def counter(name: str, text: str, value: int | Mapping[str, int], label: str = "") -> Iterator[str]:
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
