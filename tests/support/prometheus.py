"""Real Prometheus with the files of `deploy/prometheus/`. A test replaces only the targets."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S, until

FOLDER: Final = ROOT / "deploy" / "prometheus"
_TARGETS: Final = '["127.0.0.1:8090"]'


def program(name: str) -> str:
    """Returns the path of `prometheus` or `promtool`, or skips the test."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing: apt-get install prometheus")
    return path


class Prometheus:
    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=f"http://{address}/api/v1", timeout=PATIENCE_S)

    def close(self) -> None:
        self._client.close()

    def _data(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self._client.get("/status/runtimeinfo").status_code == 200
        return False

    def value(self, query: str, instance: str) -> float | None:
        """Returns the value of a query for one service, or None if it has no sample."""
        for sample in self._data("/query", query=query)["result"]:
            if sample["metric"].get("instance") == instance:
                return float(sample["value"][1])
        return None

    def alerts(self, *states: str) -> set[tuple[str, str]]:
        """Returns service and name of each alert in one of these states: `pending`, `firing`."""
        return {
            (alert["labels"].get("instance", ""), alert["labels"]["alertname"])
            for alert in self._data("/alerts")["alerts"]
            if alert["state"] in states
        }


@contextlib.contextmanager
def running_prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    binary = program("prometheus")
    shutil.copytree(FOLDER, folder)
    configuration = folder / "prometheus.yml"
    text = configuration.read_text()
    assert text.count(_TARGETS) == 1
    configuration.write_text(text.replace(_TARGETS, json.dumps(list(targets))))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        *(binary, f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"),
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    prometheus = Prometheus(address)
    try:
        until(prometheus.is_ready)
        yield prometheus
    finally:
        prometheus.close()
        process.kill()
        process.wait()
