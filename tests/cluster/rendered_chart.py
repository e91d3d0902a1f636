"""Output of the chart for values, as Helm renders it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.cluster_files import BIN, CHART

VALUES: Final[dict[str, Any]] = {
    "image": {"service": "localhost/service:1", "runner": "localhost/runner:1"},
    "certificates": {"nodes": ["n1", "n2"]},
}
EVERYTHING: Final[dict[str, Any]] = {
    **VALUES,
    "configuration": 'public_url = "https://api.example.com"\n',
    "image": {**VALUES["image"], "pullSecrets": ["registry"]},
    "database": {"existingSecret": "database"},
    "s3": {"bucket": "objects", "existingSecret": "bucket"},
    "api": {"type": "NodePort", "nodePorts": {"http": 30_080, "grpc": 30_081, "cdn": 30_092}},
    "node": {"metrics": "node"},
    "games": {
        "quota": {"requests.cpu": "100"},
        "pullSecrets": {"00000000-0000-4000-8000-000000000001": ["team"]},
        "regions": [{"region": "local", "node_selector": {"pool": "games"}}],
    },
}


def rendered(
    values: dict[str, Any], folder: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    path = folder / "values.json"
    path.write_text(json.dumps(values))
    command: list[str | Path] = [
        BIN / "helm",
        "template",
        "hosting",
        CHART,
        "--namespace=hosting",
        "--values",
        path,
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def objects(values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    ended = rendered(values, folder)
    assert ended.returncode == 0, ended.stderr
    return [one for one in yaml.safe_load_all(ended.stdout) if one is not None]


def of_kind(kind: str, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (one for one in found if one["kind"] == kind)
