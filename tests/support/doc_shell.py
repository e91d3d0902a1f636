"""Shell and service for the examples of the documentation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.doc_pages import (
    CDN,
    GRPC,
    HTTP,
    METRICS,
    ROOM,
    ROOT,
    Shell,
    free_port,
    help_of_curl,
    port_of,
)
from tests.support.example_run import Run


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    # The command line of a page finds only the service of its test.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    if not help_of_curl():
        pytest.skip("the pages use curl 7.82 or newer: apt-get install curl")
    # The package of this system is too old as well, so CI cannot install a newer one.
    if b"--json" not in help_of_curl():
        pytest.skip("the curl of this system is older than 7.82, which the pages use")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "clients").symlink_to(ROOT / "clients")
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def wait_until_open(run: Run) -> dict[str, str]:
    run.wait_for("Ctrl-C ends all of it.")
    ready = json.loads((run.data_dir / "ready.json").read_text())
    return {
        HTTP: port_of(ready["http"]),
        GRPC: port_of(ready["grpc"]),
        METRICS: port_of(ready["metrics"]),
        CDN: port_of(ready["cdn"]),
        ROOM: free_port(),
    }
