"""Runs `examples.run` like `make run`, on free ports and in a temporary folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.leftover_processes import end_leftovers
from tests.support.service_process import clean_environment

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 150.0


@dataclass
class Run:
    process: subprocess.Popen[str]
    data_dir: Path
    printed: Path

    def output(self) -> str:
        return self.printed.read_text()

    def log(self) -> str:
        """Returns the log of the service."""
        return self.data_dir.joinpath("service.log").read_text()

    def wait_for(self, text: str, count: int = 1) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while self.output().count(text) < count:
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < end, self.output()
            time.sleep(0.02)

    @property
    def page(self) -> str:
        return self._search(r"(http://\S+/#api=\S+)")

    @property
    def api_url(self) -> str:
        return self._search(r"^API (http://\S+)")

    @property
    def metrics_url(self) -> str:
        return self._search(r"metrics (http://\S+)")

    @property
    def curl_lines(self) -> list[str]:
        return re.findall(r"^  (ANSWER=\$\(curl .+)$", self.output(), re.MULTILINE)

    def service_pid(self) -> int:
        """Returns the PID from the lock of the data directory."""
        return int(self.data_dir.joinpath("LOCK").read_text().split()[0])

    def stop(self) -> str:
        """Sends SIGINT to the process group like Ctrl-C at a terminal. Returns the whole output."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            self.process.wait(timeout=30)
        return self.output()

    def _search(self, pattern: str) -> str:
        match = re.search(pattern, self.output(), re.MULTILINE)
        assert match, self.output()
        return match[1]


StartRun = Callable[..., Run]


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[StartRun]:
    runs: list[Run] = []

    def start(
        *flags: str,
        bots: int = 0,
        name: str = "data",
        address: str = "127.0.0.1:0",
        **listeners: str,
    ) -> Run:
        data_dir = tmp_path / name
        printed = tmp_path / f"printed-{len(runs)}"
        addresses = dict.fromkeys(("http", "grpc", "cdn", "metrics"), address) | listeners
        ports = [f"--{listener}={where}" for listener, where in addresses.items()]
        with printed.open("w") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "examples.run"),
                    *(f"--data-dir={data_dir}", f"--bots={bots}", "--bots-stay", *ports, *flags),
                ],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=clean_environment(),
                process_group=0,
            )
        runs.append(Run(process, data_dir, printed))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            try:
                run.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.wait()
        end_leftovers(run.data_dir)
