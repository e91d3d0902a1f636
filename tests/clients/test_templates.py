"""Templates of `pyservice init`: each one is playable after `deploy`, without a change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice_cli.connections import TOKEN_VARIABLE, URL_VARIABLE
from tests.support.full_service import FullService
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S

TEMPLATES: Final = ROOT / "clients/cli/src/pyservice_cli/templates"
SERVERS: Final = {
    "ws-python": "server/server.py",
    "ws-node": "server.ts",
    "udp-rust": "src/bin/server.rs",
}
MAX_SERVER_LINES: Final = 60
BOTS: Final = 4
BUILD_TIMEOUT_S: Final = 600
"""A loaded machine needs minutes to compile the libraries of a template."""
HAS_NPM_ACCESS: Final = (ROOT / "build/clients/typescript/conformance-driver.js").exists()
NEEDS: Final = {
    "ws-python": (),
    "ws-node": pytest.mark.skipif(not HAS_NPM_ACCESS, reason="no npm, or no access to packages"),
    "udp-rust": pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo"),
}


def test_every_template_is_tested() -> None:
    found = {path.parent.name for path in TEMPLATES.glob("*/hosting.toml")}
    assert found == set(SERVERS)


@pytest.mark.parametrize(("template", "server"), SERVERS.items())
def test_server_is_short(template: str, server: str) -> None:
    assert len((TEMPLATES / template / server).read_text().splitlines()) <= MAX_SERVER_LINES


@pytest.mark.full
@pytest.mark.parametrize(
    "template", [pytest.param(name, marks=marks) for name, marks in NEEDS.items()]
)
@pytest.mark.timeout(BUILD_TIMEOUT_S + 2 * PATIENCE_S)
def test_bots_play_an_unchanged_template(
    template: str, full_service: FullService, tmp_path: Path
) -> None:
    folder = tmp_path / f"game-{template}"
    folder.mkdir()
    environment = {
        **os.environ,
        "XDG_CONFIG_HOME": str(tmp_path / "configuration"),
        URL_VARIABLE: f"http://{full_service.ready['http']}",
        TOKEN_VARIABLE: full_service.cloud_token,
    }

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pyservice_cli", *words, "--json"]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE)

    def result(*words: str) -> Any:
        with start(*words) as process:
            output, _ = process.communicate(timeout=BUILD_TIMEOUT_S)
        assert process.returncode == 0, output
        return json.loads(output)

    result("init", "--template", template)
    assert result("deploy")["changed"] is True
    assert result("deploy")["changed"] is False
    with start("play", "--bots", str(BOTS)) as bots:
        assert bots.stdout is not None
        text = b"".join(iter(bots.stdout.readline, b"}\n")) + b"}"
        bots.send_signal(signal.SIGINT)
        assert bots.wait(PATIENCE_S) == 0
    assert sum(json.loads(text)["lobbies"].values()) == BOTS
