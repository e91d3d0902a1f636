"""Configuration file of edge-guard, from the settings of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyservice.edge_guard.configuration import edge_guard_config, edge_guard_report
from pyservice.settings import load


@pytest.mark.parametrize(
    ("edge", "expected"),
    [
        ({}, ([], "optional")),
        ({"proxies": ["10.0.0.5"]}, (["10.0.0.5/32"], "optional")),
        ({"proxies": ["10.0.0.5"], "proxy_header": "required"}, (["10.0.0.5/32"], "required")),
    ],
)
def test_edge_guard_is_given_its_proxies(
    edge: dict[str, Any], expected: tuple[list[str], str], tmp_path: Path
) -> None:
    settings = load({"data_dir": str(tmp_path), "edge": edge}, environ={})
    config = edge_guard_config(settings, tmp_path)
    assert (config["proxies"], config["proxy_header"]) == expected
    assert edge_guard_report(settings) == ([], [], [])


def test_only_a_node_of_a_cluster_refuses_sessions_in_a_silence(tmp_path: Path) -> None:
    alone = load({"data_dir": str(tmp_path)}, environ={})
    assert "silence_ms" not in edge_guard_config(alone, tmp_path)
    runtime = alone.runtime.model_copy(update={"placement": "kubernetes"})
    node = alone.model_copy(update={"runtime": runtime})
    assert edge_guard_config(node, tmp_path)["silence_ms"] == 30_000
    assert edge_guard_report(node) == ([], [], [])
