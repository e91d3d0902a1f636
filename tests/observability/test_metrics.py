from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyservice.errors import codes
from pyservice.observability.metrics import (
    DURATION_BOUNDS_S,
    FeedMetrics,
    RequestMetrics,
    join_expositions,
)
from pyservice.schema.methods import METHODS


def samples(text: bytes, name: str) -> dict[frozenset[str], float]:
    return {
        frozenset(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name
    }


def test_requests_are_counted_by_operation_code_and_transport() -> None:
    metrics = RequestMetrics()
    meter = metrics.http.meter("find")
    meter.observe("OK", 0.001)
    meter.observe("OK", 0.001)
    meter.observe("RATE_LIMITED", 0.001)
    counts = samples(metrics.render(), "hosting_requests_total")
    assert counts[frozenset({"find", "OK", "http"})] == 2
    assert counts[frozenset({"find", "RATE_LIMITED", "http"})] == 1


def test_operation_has_one_meter_per_transport() -> None:
    metrics = RequestMetrics()
    assert metrics.http.meter("find") is metrics.http.meter("find")
    assert metrics.http.meter("find") is not metrics.grpc.meter("find")


def test_unused_operations_are_counted_as_zero() -> None:
    metrics = RequestMetrics()
    metrics.grpc.meter("join")
    counts = samples(metrics.render(), "hosting_requests_total")
    assert counts[frozenset({"join", "OK", "grpc"})] == 0


def test_durations_are_cumulative_and_bounds_inclusive() -> None:
    metrics = RequestMetrics()
    meter = metrics.grpc.meter("connected")
    for seconds in (0.0, DURATION_BOUNDS_S[0], 0.0003, DURATION_BOUNDS_S[-1], 1000.0):
        meter.observe("OK", seconds)
    text = metrics.render()
    buckets = samples(text, "hosting_request_duration_seconds_bucket")
    counts = {
        bound: buckets[frozenset({"connected", "grpc", bound})] for bound in ("0.0001", "0.0005")
    }
    assert counts == {"0.0001": 2, "0.0005": 3}
    assert buckets[frozenset({"connected", "grpc", "45.0"})] == 4
    assert buckets[frozenset({"connected", "grpc", "+Inf"})] == 5
    labels = frozenset({"connected", "grpc"})
    assert samples(text, "hosting_request_duration_seconds_count")[labels] == 5
    total = samples(text, "hosting_request_duration_seconds_sum")[labels]
    assert total == pytest.approx(1045.0004)


def test_feed_is_counted_by_outcome() -> None:
    metrics = RequestMetrics()
    metrics.feed.count("applied", 100.0)
    metrics.feed.count("refused", 200.0)
    metrics.feed.namespaces = 4
    text = metrics.render()
    outcomes = samples(text, "hosting_feed_messages_total")
    assert outcomes[frozenset({"applied"})] == outcomes[frozenset({"refused"})] == 1
    assert samples(text, "hosting_feed_namespaces")[frozenset()] == 4
    assert samples(text, "hosting_feed_last_applied_timestamp_seconds")[frozenset()] == 100.0


def test_unknown_outcome_is_an_error() -> None:
    with pytest.raises(KeyError):
        FeedMetrics().count("ignored", 0.0)


def test_build_and_process_are_reported() -> None:
    text = RequestMetrics(version="1.2.3", build_profile="release").render()
    assert samples(text, "hosting_build_info")[frozenset({"1.2.3", "release"})] == 1
    assert samples(text, "process_resident_memory_bytes")[frozenset()] > 0


NATIVE = (
    b"# HELP hosting_lobbies Lobbies.\n# TYPE hosting_lobbies gauge\nhosting_lobbies 3\n"
    b"# HELP hosting_both Both.\n# TYPE hosting_both counter\nhosting_both_total 2\n"
)
OURS = (
    b"# HELP hosting_both Both.\n# TYPE hosting_both counter\n"
    b'hosting_both_total{door="http"} 1\n'
    b"# HELP hosting_ours Ours.\n# TYPE hosting_ours gauge\nhosting_ours 5\n"
)


def test_metrics_pages_with_different_families_are_joined() -> None:
    alone = NATIVE.partition(b"# HELP hosting_both")[0]
    assert join_expositions(OURS, alone) == OURS + alone
    assert join_expositions(OURS, alone.rstrip()) == OURS + alone
    assert join_expositions(OURS, b"") == OURS


def test_family_on_both_pages_appears_once() -> None:
    joined = join_expositions(OURS, NATIVE)
    assert joined.count(b"# TYPE hosting_both ") == joined.count(b"# HELP hosting_both ") == 1
    both = b'hosting_both_total{door="http"} 1\nhosting_both_total 2\n'
    assert both in joined
    for line in (*OURS.splitlines(), *NATIVE.splitlines()):
        assert line in joined.splitlines()


def test_internal_plane_counts_no_request_twice() -> None:
    outer = RequestMetrics(version="1", build_profile="release")
    inner = RequestMetrics(inner_plane="control")
    for metrics in (outer, inner):
        metrics.http.meter("find").observe("OK", 0.1)

    def families(text: bytes) -> set[str]:
        return {family.name for family in text_string_to_metric_families(text.decode())}

    ours, others = families(outer.render()), families(inner.render())
    assert "hosting_control_process_cpu_seconds" in others
    assert not ours & others


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: apt-get install prometheus")
def test_promtool_reports_no_problem() -> None:
    assert PROMTOOL is not None
    metrics = RequestMetrics(version="1", build_profile="release")
    for transport in (metrics.http, metrics.grpc):
        for method in METHODS.values():
            meter = transport.meter(method.slug)
            for code in codes():
                meter.observe(code, 0.01)
            meter.rate_limited["client"] = 1
    text = metrics.render(NATIVE.partition(b"# HELP hosting_both")[0])
    result = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
