"""Shipped rules, runbooks and dashboard: they fit together, and each slow rule fires."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from pyservice.pb.errors import TABLE
from tests.support.doc_pages import DOCS, code, table_of
from tests.support.prometheus import FOLDER, program
from tests.support.tracked_files import ROOT

HEADINGS: Final = ["Meaning", "What players notice", "Commands", "When to worry"]
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "dashboard.json"
SEEN_IN_A_REAL_PROMETHEUS: Final = {
    *("HostingDown", "HostingControlPlaneDown", "HostingDatabaseDown"),
    *("HostingObjectStoreDown", "HostingEdgeGuardDown", "HostingCdnDown", "HostingDiskFull"),
    *(
        "HostingEdgeGuardDisconnected",
        "HostingDiskStuck",
        "HostingNoNewSlots",
        "HostingChangesHang",
    ),
}
"""Alerts of tests/observability/test_alerts.py."""
NOT_CAUSED: Final = {
    "HostingLedgerViolation": "only a defect of the program causes it",
    "HostingFactsLost": "100,000 facts must wait before one is lost, which takes minutes",
}
"""Outages that promtool alone tests. tests/dataplane/test_facts_outbox.py loses facts in an engine."""
FIRES_WITHIN_S: Final = 120
NOTICED_WITHIN_S: Final = 15
"""Time until a metric shows a fault. The store of objects is checked every 10 s, for at most 3 s."""
SCRAPE_TIMEOUT_S: Final = 10
"""Default of Prometheus. A target that hangs is down after it."""
BEFORE_AN_OUTAGE: Final = {
    "HostingErrorBudgetBurnsFast": "its objective is for a month, and an outage has an alert of its own",
    "HostingCapacityRefusals": "a machine that is full works",
    "HostingOpenFilesLow": "it warns at 70 % of the descriptors",
    "HostingCertificateExpires": "it warns a day before",
}
"""Alerts that page, and are not about an outage."""


def rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS: Final = {rule["alert"]: rule for rule in rules("alerts.yml")}
RECORDED: Final = {rule["record"]: rule["expr"] for rule in rules("recording.yml")}


def runbook(alert: str) -> Path:
    return ROOT / str(ALERTS[alert]["annotations"]["runbook_url"])


RUNBOOKS: Final = sorted(set(map(runbook, ALERTS)))
"""Pages of alerts. The other pages of the folder are about incidents."""


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_has_a_severity_a_summary_and_a_runbook(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "runbook_url"}
    assert runbook(alert).parent == DOCS / "runbooks"


@pytest.mark.parametrize("path", RUNBOOKS, ids=[path.stem for path in RUNBOOKS])
def test_runbook_has_the_headings_and_names_its_alerts(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == HEADINGS
    parts = re.split(r"^## .+$", text, flags=re.M)[1:]
    assert all(part.strip() for part in parts)
    (named,) = re.findall(r"^Alerts: (.+)$", text, re.M)
    assert named.split(", ") == [f"`{alert}`" for alert in ALERTS if runbook(alert) == path]


def test_page_lists_every_alert_with_its_runbook() -> None:
    rows = table_of("how-to/monitor.md", "alerts")
    listed = {code(row[0]): (row[1], *re.findall(r"\]\(\.\./(.+)\)", row[2])) for row in rows}
    assert list(listed) == list(ALERTS)
    assert listed == {
        alert: (rule["labels"]["severity"], runbook(alert).relative_to(DOCS).as_posix())
        for alert, rule in ALERTS.items()
    }


def test_page_lists_every_alert_that_differs_in_a_cluster() -> None:
    rows = table_of("kubernetes/failures.md", "alerts of clusters")
    listed = [alert for row in rows for alert in re.findall(r"`(Hosting\w+)`", row[0])]
    # The service of a cluster has no edge-guard, no runtime of its own, and no limit of capacity.
    absent = re.compile(r"hosting_edge_|hosting_runtime_(?!failed_starts)|hosting_capacity_")
    assert sorted(listed) == sorted(name for name in ALERTS if absent.search(ALERTS[name]["expr"]))


def seconds(duration: str) -> int:
    parts = re.findall(r"(\d+)([smhd])", duration)
    return sum(
        int(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in parts
    )


def worst_case_s(rule: Mapping[str, Any]) -> int:
    """Returns the longest time from a fault to its alert."""
    times = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["global"]
    scrape_s, evaluation_s = (
        seconds(times[f"{name}_interval"]) for name in ("scrape", "evaluation")
    )
    windows_s = [seconds(one) for one in re.findall(r"\[(\w+)\]", rule["expr"])]
    # The alert waits for the first evaluation that sees the fault, and for the first after `for`.
    waiting_s = math.ceil(seconds(rule.get("for", "0s")) / evaluation_s) * evaluation_s
    seen_s = NOTICED_WITHIN_S + scrape_s + SCRAPE_TIMEOUT_S + evaluation_s
    return seen_s + waiting_s + max(windows_s, default=0)


def test_each_outage_pages_within_two_minutes() -> None:
    late = {
        alert: worst_case_s(rule)
        for alert, rule in ALERTS.items()
        if rule["labels"]["severity"] == "page" and worst_case_s(rule) > FIRES_WITHIN_S
    }
    assert late.keys() == BEFORE_AN_OUTAGE.keys(), late


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in ALERTS.values())
    yield from RECORDED.values()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for path in RUNBOOKS:
        yield from re.findall(r"`(hosting_\w+)`", path.read_text())


def test_rules_dashboard_and_runbooks_name_existing_metrics() -> None:
    tables = ("metrics", "edge metrics")
    families = {code(row[0]) for name in tables for row in table_of("reference/metrics.md", name)}
    used = {name for query in queries() for name in re.findall(r"\bhosting_\w+", query)}
    assert len(used) > 50
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} <= families
    recorded = {name for query in queries() for name in re.findall(r"\bhosting:[\w:]+", query)}
    assert recorded <= set(RECORDED)


def test_dashboard_shows_each_part() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    titles = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert len(titles) == 7
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel.get("targets") for panel in panels if panel["type"] != "row")


def test_failed_requests_are_those_that_the_service_caused() -> None:
    (codes,) = re.findall(r'code=~"([^"]+)"', RECORDED["hosting:requests_failed:rate5m"])
    assert set(codes.split("|")) == {
        name for name, row in TABLE.items() if row.http >= 500 and row.fault == "server"
    }


def promtool(*words: str | Path) -> None:
    ended = subprocess.run(
        [program("promtool"), *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_promtool_accepts_rules_and_configuration() -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")
    promtool("check", "rules", FOLDER / "recording.yml", FOLDER / "alerts.yml")


class Case(NamedTuple):
    """Series with a value for each minute, and when their alert is quiet and when it fires."""

    alert: str
    series: Mapping[str, str]
    quiet: str
    firing: str | None = None
    labels: Mapping[str, str] = {}


OK: Final = 'hosting_requests_total{code="OK"}'
INTERNAL: Final = 'hosting_requests_total{code="INTERNAL"}'
NOT_FOUND: Final = 'hosting_requests_total{code="LOBBY_NOT_FOUND"}'
UDP_PORTS: Final = 'hosting_ports{protocol="udp",state='
PROCESS_PORTS: Final = "hosting_runtime_ports{state="
SYNC: Final = "hosting_journal_sync_seconds_bucket{le="
OF_PROD: Final = {"namespace": "g/prod"}
CERTIFICATE: Final = "hosting_certificate_end_timestamp_seconds"
CASES: Final = (
    Case("HostingEdgeGuardDisconnected", {"hosting_edge_source_connected": "1x4 0x9"}, "5m", "6m"),
    Case("HostingRestarts", {"hosting_control_owner_epoch": "1x4 2+1x9"}, "7m", "8m"),
    Case("HostingRestarts", {"hosting_journal_epoch": "1x4 2+1x9"}, "7m", "8m"),
    Case("HostingErrorBudgetBurnsFast", {OK: "0+600x99", INTERNAL: "0x59 0+60x40"}, "64m", "80m"),
    Case("HostingErrorBudgetBurnsFast", {OK: "0+600x99", INTERNAL: "0+6x99"}, "90m"),
    Case("HostingErrorBudgetBurnsFast", {OK: "0+600x99", NOT_FOUND: "0+600x99"}, "90m"),
    Case("HostingErrorBudgetBurns", {OK: "0+600x99", INTERNAL: "0+6x99"}, "10m", "20m"),
    Case("HostingErrorBudgetBurns", {OK: "0+600x99", NOT_FOUND: "0+600x99"}, "90m"),
    Case("HostingLedgerViolation", {"hosting_ledger_violations_total": "0x4 1x9"}, "4m", "5m"),
    Case(
        "HostingDefect",
        {'hosting_control_unforeseen_errors_total{work="usage"}': "0x4 1x9"},
        *("4m", "6m"),
        {"work": "usage"},
    ),
    Case("HostingDefect", {INTERNAL: "0x4 1x9"}, "4m", "6m", {"code": "INTERNAL"}),
    Case(
        "HostingDiskFull",
        {"hosting_storage_free_bytes": "900x4 99x9", "hosting_storage_reserve_bytes": "100x20"},
        *("5m", "6m"),
    ),
    Case("HostingDiskFull", {"hosting_journal_stalled": "0x4 1x9"}, "5m", "6m"),
    Case(
        "HostingDiskLow",
        {"hosting_storage_free_bytes": "900x4 399x30", "hosting_storage_reserve_bytes": "100x40"},
        *("19m", "20m"),
    ),
    Case(
        "HostingNoNewSlots",
        {"hosting_journal_credit_bytes": "9x4 5x9", "hosting_journal_reserve_bytes": "5x20"},
        *("5m", "6m"),
    ),
    Case("HostingDiskStuck", {"hosting_journal_stalled_seconds": "0x4 3x9"}, "5m", "6m"),
    Case(
        "HostingDiskSlow",
        {
            f'{SYNC}"0.1"}}': "0+90x30",
            f'{SYNC}"0.5"}}': "0+99.5x30",
            f'{SYNC}"+Inf"}}': "0+100x30",
        },
        *("9m", "12m"),
    ),
    Case("HostingCompactionFails", {"hosting_journal_compaction_failed": "0x4 1x30"}, "19m", "20m"),
    Case(
        "HostingCapacityRefusals",
        {'hosting_capacity_refusals_total{tier="basic-1d1"}': "0x4 1+1x20"},
        *("9m", "11m"),
        {"tier": "basic-1d1"},
    ),
    *(
        Case(
            "HostingRuntimeNearlyFull",
            {
                f"hosting_runtime_{resource.format('_requested')}": "89x4 91x40",
                f"hosting_runtime_{resource.format('')}": "100x60",
            },
            *("19m", "20m"),
        )
        for resource in ("processor{}_cores", "memory{}_bytes")
    ),
    Case("HostingProcessorBusy", {"hosting_event_loop_lag_seconds": "0x4 0.3x20"}, "9m", "10m"),
    Case(
        "HostingPortsLow",
        {
            f'{UDP_PORTS}"free"}}': "50x4 9x20",
            f'{UDP_PORTS}"leased"}}': "50x4 90x20",
            f'{UDP_PORTS}"resting"}}': "0x4 1x20",
        },
        *("9m", "10m"),
        {"protocol": "udp"},
    ),
    Case(
        "HostingPortsLow",
        {f'{PROCESS_PORTS}"free"}}': "50x4 9x20", f'{PROCESS_PORTS}"leased"}}': "50x4 91x20"},
        *("9m", "10m"),
    ),
    *(
        Case("HostingOpenFilesLow", {used: "69x4 71x20", most: "100x30"}, "9m", "10m")
        for used, most in (
            ("hosting_open_files", "hosting_open_files_max"),
            ("hosting_control_process_open_fds", "hosting_control_process_max_fds"),
            ("hosting_cdn_process_open_fds", "hosting_cdn_process_max_fds"),
        )
    ),
    Case("HostingOpenFilesLow", {"hosting_edge_accept_pauses_total": "0x4 1+1x20"}, "9m", "11m"),
    Case(
        "HostingFailedStarts",
        {'hosting_runtime_failed_starts_total{reason="exited"}': "0x4 6x20"},
        *("4m", "6m"),
    ),
    Case("HostingBackupOld", {"hosting_control_backup_age_seconds": "0+60x300"}, "3h", "3h12m"),
    # Restarts and failed scrapes do not delay the alert.
    *(
        Case("HostingBackupMissing", {"hosting_control_plane_up": up}, "25h59m", "26h11m")
        for up in ("1x1700", "1x2 _x20 0x9 1x800 _x20 1x900")
    ),
    Case(
        "HostingBackupMissing",
        {"hosting_control_plane_up": "1x1700", "hosting_control_backup_age_seconds": "60x1700"},
        "27h",
    ),
    Case("HostingCertificateExpiresSoon", {CERTIFICATE: "867600x200"}, "1h59m", "2h2m"),
    Case("HostingCertificateExpires", {CERTIFICATE: "90000x200"}, "1h4m", "1h7m"),
    *(
        Case(
            alert,
            {'hosting_edge_certificate_end_timestamp_seconds{server_name="a.example"}': end},
            *times,
            {"server_name": "a.example"},
        )
        for alert, end, times in (
            ("HostingCertificateExpiresSoon", "867600x200", ("1h59m", "2h2m")),
            ("HostingCertificateExpires", "90000x200", ("1h4m", "1h7m")),
        )
    ),
    Case("HostingFactsWait", {"hosting_facts_waiting": "0x4 20001x20"}, "9m", "10m"),
    Case("HostingFactsLost", {"hosting_facts_lost": "0x4 1x9"}, "4m", "5m"),
    Case("HostingConfigurationRefused", {"hosting_control_feed_refused": "0x4 1x9"}, "5m", "6m"),
    Case(
        "HostingConfigurationRefused",
        {'hosting_feed_messages_total{outcome="refused"}': "0x4 1x9"},
        *("5m", "7m"),
        {"outcome": "refused"},
    ),
    Case("HostingChangesHang", {"hosting_control_feed_lag_seconds": "0x4 6x9"}, "5m", "6m"),
    Case("HostingChangesHang", {"hosting_control_feed_connected": "1x4 0x9"}, "5m", "6m"),
    Case(
        "HostingRateLimited",
        {'hosting_requests_rate_limited_total{operation="find",door="http"}': "0+120x30"},
        *("10m", "14m"),
        {"operation": "find"},
    ),
    Case(
        "HostingTokensExpire",
        {
            'hosting_slot_ends_total{cause="expired",namespace="g/prod"}': "0+60x60",
            'hosting_player_tokens_total{outcome="issued",namespace="g/prod"}': "0+60x60",
        },
        *("15m", "17m"),
        OF_PROD,
    ),
    Case(
        "HostingLobbiesSilent",
        {'hosting_lobbies{namespace="g/prod",state="silent"}': "0x4 1x9"},
        *("6m", "7m"),
        {**OF_PROD, "state": "silent"},
    ),
)


def test_every_alert_is_tested() -> None:
    assert {case.alert for case in CASES} | SEEN_IN_A_REAL_PROMETHEUS == set(ALERTS)


def test_each_outage_is_caused_for_real() -> None:
    paging = {alert for alert, rule in ALERTS.items() if rule["labels"]["severity"] == "page"}
    others = {*BEFORE_AN_OUTAGE, *NOT_CAUSED}
    assert paging - others == SEEN_IN_A_REAL_PROMETHEUS
    assert others <= {case.alert for case in CASES}


def promtool_test(case: Case) -> dict[str, Any]:
    rule = ALERTS[case.alert]
    fired = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": rule["annotations"],
    }
    expected: list[tuple[str, list[Any]]] = [(case.quiet, [])]
    if case.firing is not None:
        expected.append((case.firing, [fired]))
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in case.series.items()
        ],
        "alert_rule_test": [
            {"eval_time": time, "alertname": case.alert, "exp_alerts": alerts}
            for time, alerts in expected
        ],
    }


@pytest.mark.full
def test_each_slow_rule_waits_and_fires(tmp_path: Path) -> None:
    files = [str(FOLDER / name) for name in ("recording.yml", "alerts.yml")]
    suite = {"rule_files": files, "tests": [promtool_test(case) for case in CASES]}
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(suite))
    promtool("test", "rules", path)
