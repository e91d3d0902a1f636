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
    samples = {} if value is None else {"": value}
    return family(f"hosting_control_{name}", "gauge", text, samples)


def counter(name: str, text: str, value: int | Mapping[str, int], label: str = "") -> Iterator[str]:
    labelled = {"": value} if isinstance(value, int) else labels(label, value)
    return family(f"hosting_control_{name}_total", "counter", text, labelled)


def labels(label: str, values: Mapping[str, float]) -> dict[str, float]:
    """Returns the samples of a family with one label."""
    return {f'{{{label}="{value}"}}': count for value, count in sorted(values.items())}


def family(name: str, kind: str, text: str, samples: Mapping[str, float]) -> Iterator[str]:
    """Yields a family. The keys of `samples` are labels in braces, or empty."""
    # One scrape returns the metrics of both planes, so those of each have their own prefix.
    yield f"# HELP {name} {text}\n"
    yield f"# TYPE {name} {kind}\n"
    for labelled, value in samples.items():
        yield f"{name}{labelled} {value}\n"
