"""Prometheus metrics of servers, feed and process. No other module imports prometheus_client.

Requests update plain numbers on the event loop. Prometheus objects are created only when metrics
are scraped. The engine writes its own metrics as text, which this module merges with the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from pyservice.settings.sections import RateLimits

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OK: Final = "OK"
CANCELLED: Final = "CANCELLED"
"""Code of a request if its client disconnects before the response."""
UNROUTED: Final = "none"

DURATION_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 45.0),
)
_DURATION_LABELS: Final = (*map(str, DURATION_BOUNDS_S), "+Inf")


class Meter:
    """Counts of one operation's requests on one server, by error code and by duration."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.codes: dict[str, int] = {OK: 0}
        self.counts = [0] * (len(DURATION_BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.rate_limited: dict[str, int] = {}
        """Number of refused requests, by rate limit."""

    def count_refusal(self, limit: str) -> None:
        """Counts one request that this rate limit refused."""
        self.rate_limited[limit] = self.rate_limited.get(limit, 0) + 1

    def observe(self, code: str, seconds: float) -> None:
        """Counts one request. `code` is `OK`, an error code, or `CANCELLED` for a disconnected
        client.
        """
        codes = self.codes
        codes[code] = codes.get(code, 0) + 1
        self.counts[bisect_left(DURATION_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class TransportMetrics:
    """Metrics of one server, with a meter for each operation.

    The server itself updates `in_flight` and `body_bytes`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = 0
        self.body_bytes = 0
        self.meters: dict[str, Meter] = {}

    def meter(self, operation: str) -> Meter:
        return self.meters.setdefault(operation, Meter(operation))


class FeedMetrics:
    """Number of feed messages by outcome, number of namespaces, and time of the last change."""

    def __init__(self) -> None:
        self.namespaces = 0
        self.outcomes = {"applied": 0, "stale": 0, "refused": 0, "removed": 0}
        self.last_applied_ts_s = 0.0

    def count(self, outcome: str, now_s: float) -> None:
        """Counts a feed message as `applied`, `stale`, `refused` or `removed`.

        After `applied` and `removed`, `now_s` (Unix time) is the time of the last change.
        """
        self.outcomes[outcome] += 1
        if outcome in ("applied", "removed"):
            self.last_applied_ts_s = now_s


class RayMetrics:
    """Number of rays (request records) that were queued, and of rays that were dropped."""

    def __init__(self) -> None:
        self.stored = 0
        self.dropped = 0


def _nothing() -> None:
    pass


class FrontMetrics:
    """State of the front when the metrics are read."""

    def __init__(self) -> None:
        self.passed: Counter[tuple[str, str, str]] = Counter()
        """Number of requests that the front has passed on to Python, by operation, door and reason."""
        self.limited_failures: Counter[str] = Counter()
        """Number of requests that were refused because of failed authentications, by door."""
        self.in_flight = {"http": 0, "grpc": 0}
        self.parked = 0
        """Number of requests that wait for a change."""
        self.body_bytes = {"http": 0, "grpc": 0}
        self.certificate_end_s: int | None = None
        """End of the validity of the certificate in Unix time. None: no certificate."""


class RequestMetrics:
    def __init__(
        self,
        *,
        version: str = "unknown",
        build_profile: str = "unknown",
        inner_plane: str | None = None,
    ) -> None:
        """Creates the metrics of a public server, or of the internal server of `inner_plane`.
        The public server already counts forwarded requests, so an internal server omits request
        metrics. The names of its other metrics contain `inner_plane`.
        """
        self.http = TransportMetrics("http")
        self.grpc = TransportMetrics("grpc")
        self.feed = FeedMetrics()
        self.rays = RayMetrics()
        self.front = FrontMetrics()
        self.before_scrape: Callable[[], None] = _nothing
        """Called on the event loop, before any part of the page is written."""
        self.capacity_refusals: Mapping[str, int] = {}
        """Finds and creates without capacity for a new lobby, by tier."""
        self._registry = CollectorRegistry()
        prefix = "hosting" if inner_plane is None else f"hosting_{inner_plane}"
        self._registry.register(_RayFamilies(self.rays, prefix))
        if inner_plane is not None:
            ProcessCollector(namespace=f"hosting_{inner_plane}", registry=self._registry)
            return
        self._registry.register(_Families(self, {"version": version, "profile": build_profile}))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, *others: bytes) -> bytes:
        return join_expositions(generate_latest(self._registry), *others)


class _Families(Collector):
    def __init__(self, metrics: RequestMetrics, build: dict[str, str]) -> None:
        self._metrics = metrics
        self._build = build

    def collect(self) -> Iterator[Metric]:
        transports = (self._metrics.http, self._metrics.grpc)
        yield from _request_families(transports, self._metrics.front)
        yield from _front_families(self._metrics.front)
        yield from _feed_families(self._metrics.feed)
        refusals = CounterMetricFamily(
            "hosting_capacity_refusals",
            "Finds and creates without capacity for a new lobby.",
            labels=("tier",),
        )
        for tier, count in self._metrics.capacity_refusals.items():
            refusals.add_metric((tier,), count)
        yield refusals
        yield InfoMetricFamily(
            "hosting_build", "Version of the running service.", value=self._build
        )


class _RayFamilies(Collector):
    def __init__(self, metrics: RayMetrics, prefix: str) -> None:
        self._metrics = metrics
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            f"{self._prefix}_rays", "Requests with a stored ray.", value=self._metrics.stored
        )
        yield CounterMetricFamily(
            f"{self._prefix}_rays_dropped",
            "Requests without their ray, because the buffer of rays was full.",
            value=self._metrics.dropped,
        )


def _request_families(
    transports: Sequence[TransportMetrics], front: FrontMetrics
) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "hosting_requests",
        "Requests by operation, code (an error code or OK) and door (the transport).",
        labels=("operation", "code", "door"),
    )
    durations = HistogramMetricFamily(
        "hosting_request_duration_seconds",
        "Time from the complete request to its response, including the wait for durability.",
        labels=("operation", "door"),
    )
    limited = CounterMetricFamily(
        "hosting_requests_rate_limited",
        "Requests that a rate limit refused.",
        labels=("operation", "door"),
    )
    by_limit = CounterMetricFamily(
        "hosting_rate_limit_refusals",
        "Requests that a rate limit refused, by the limit's name in the settings.",
        labels=("limit", "door"),
    )
    in_flight = GaugeMetricFamily(
        "hosting_requests_in_flight", "Requests in progress.", labels=("door",)
    )
    bodies = GaugeMetricFamily(
        "hosting_request_bodies_bytes",
        "Request bodies in memory: incomplete ones, and large ones until their response.",
        labels=("door",),
    )
    for transport in transports:
        body_bytes, in_progress = front.body_bytes[transport.name], front.in_flight[transport.name]
        bodies.add_metric((transport.name,), transport.body_bytes + body_bytes)
        in_flight.add_metric((transport.name,), transport.in_flight + in_progress)
        refusals = Counter(dict.fromkeys(RateLimits.model_fields, 0))
        for meter in transport.meters.values():
            for code, count in meter.codes.items():
                requests.add_metric((meter.operation, code, transport.name), count)
            limited_count = meter.codes.get("RATE_LIMITED", 0)
            limited.add_metric((meter.operation, transport.name), limited_count)
            refusals.update(meter.rate_limited)
            if not any(meter.counts):
                continue  # a histogram without observations is 17 lines without information
            buckets = list(zip(_DURATION_LABELS, accumulate(map(float, meter.counts)), strict=True))
            durations.add_metric((meter.operation, transport.name), buckets, meter.sum_s)
        refusals["failed_authentication"] += front.limited_failures[transport.name]
        for limit, count in sorted(refusals.items()):
            by_limit.add_metric((limit, transport.name), count)
    return iter((requests, durations, limited, by_limit, in_flight, bodies))


def _front_families(front: FrontMetrics) -> Iterator[Metric]:
    passed = CounterMetricFamily(
        "hosting_front_passed",
        "Requests that the front has passed on to Python.",
        labels=("operation", "door", "reason"),
    )
    for labels, count in front.passed.items():
        passed.add_metric(labels, count)
    yield passed
    end = GaugeMetricFamily(
        "hosting_certificate_end_timestamp_seconds",
        "End of the validity of the certificate of the public listeners, in Unix time.",
        labels=(),
    )
    if front.certificate_end_s is not None:
        end.add_metric((), front.certificate_end_s)
    yield end


def _feed_families(feed: FeedMetrics) -> Iterator[Metric]:
    messages = CounterMetricFamily(
        "hosting_feed_messages",
        "Namespace configurations received, by outcome.",
        labels=("outcome",),
    )
    for outcome, count in feed.outcomes.items():
        messages.add_metric((outcome,), count)
    yield messages
    yield GaugeMetricFamily(
        "hosting_feed_namespaces", "Namespaces with a stored configuration.", value=feed.namespaces
    )
    yield GaugeMetricFamily(
        "hosting_feed_last_applied_timestamp_seconds",
        "Unix time of the last stored configuration, 0 before the first.",
        value=feed.last_applied_ts_s,
    )


_TYPE: Final = b"\n# TYPE "


def join_expositions(*texts: bytes) -> bytes:
    """Merges Prometheus texts into one. A metric family of several texts has one header in the
    result.
    """
    pages = [text if text.endswith(b"\n") else text + b"\n" for text in texts if text]
    families = [family for page in pages for family in _families(page)]
    if len(set(families)) == len(families):
        return b"".join(pages)
    blocks: dict[bytes, bytes] = {}
    for family, block in _blocks(pages):
        if family in blocks:
            samples = [line for line in block.splitlines(True) if not line.startswith(b"#")]
            blocks[family] += b"".join(samples)
        else:
            blocks[family] = block
    return b"".join(blocks.values())


def _families(page: bytes) -> Iterator[bytes]:
    """Yields the names of the metric families in a Prometheus text.

    Searches bytes without splitting lines, because the text can have a megabyte of samples.
    """
    if page.startswith(_TYPE[1:]):
        yield _word(page, len(_TYPE) - 1)
    at = page.find(_TYPE)
    while at >= 0:
        at += len(_TYPE)
        yield _word(page, at)
        at = page.find(_TYPE, at)


def _word(page: bytes, at: int) -> bytes:
    return page[at : page.index(b" ", at)]


def _blocks(texts: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for text in texts:
        family, lines = b"", list[bytes]()
        for line in text.splitlines(True):
            words = line.split(maxsplit=3)
            is_head = len(words) > 2 and words[0] == b"#" and words[1] in (b"HELP", b"TYPE")
            if is_head and words[2] != family:
                if lines:
                    yield family, b"".join(lines)
                family, lines = words[2], []
            lines.append(line)
        if lines:
            yield family, b"".join(lines)
