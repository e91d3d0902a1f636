"""The wheels of `make wheel`, installed outside of the checkout with the packages of
`requirements/run.lock` and no others.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.waiting import PATIENCE_S, until
from tests.support.wheel_environment import wheel_environment as wheel_environment

pytestmark = pytest.mark.full


def test_service_starts_from_the_installed_wheel(wheel_environment: Path, tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    local = [f"--{server}=127.0.0.1:0" for server in ("http", "grpc", "cdn", "metrics")]
    service = subprocess.Popen(
        [wheel_environment / "bin/pyservice", "serve", *local, "--ready-file", ready_file],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    try:
        until(lambda: ready_file.exists() or service.poll() is not None)
        metrics = json.loads(ready_file.read_text())["metrics"]
        until(lambda: httpx.get(f"http://{metrics}/readyz", timeout=PATIENCE_S).status_code == 200)
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_S) == 0
