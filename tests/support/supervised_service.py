"""Real `pyservice serve` with a supervisor and both planes, on free ports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyservice.cli.admin_requests import admin_socket, send_request
from pyservice.pb.hosting.internal.v1 import admin_pb2
from tests.support.data_plane_service import GAME, Service
from tests.support.leftover_processes import end_leftovers
from tests.support.waiting import until as until

LOCKS: Final = {"data": "LOCK", "control": "control/LOCK"}


class SupervisedService(Service):
    """Service with a supervisor and both planes. The data plane reads a feed file."""

    role: tuple[str, ...] = ()
    listeners: tuple[str, ...] = ("http", "grpc", "cdn", "metrics")

    def public_token(self) -> str:
        """Asks the data plane. The control plane has no record of a namespace in a feed file."""
        request = admin_pb2.CreateTokenRequest(
            kind=admin_pb2.TOKEN_KIND_PUBLIC, namespace=f"{GAME}/prod"
        )
        method = "hosting.internal.v1.Admin.CreateToken"
        socket_path = admin_socket(self.data_dir)
        return str(send_request(socket_path, self.data_dir, method, request).token)

    def pid(self, role: str) -> int:
        return int((self.data_dir / LOCKS[role]).read_text().split()[0])

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def host_path(self, path: str) -> Path:
        return Path(path)

    def ready(self) -> dict[str, Any]:
        ready: dict[str, Any] = json.loads(self.ready_file.read_text())
        return ready

    def events(self, name: str) -> list[dict[str, Any]]:
        matching = []
        for line in (self.folder / "log").read_text().splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["event"] == name:
                    matching.append(event)
        return matching

    def up(self) -> float:
        for line in self.probe("/metrics").text.splitlines():
            if line.startswith("hosting_control_plane_up "):
                return float(line.split()[1])
        raise AssertionError("no metric hosting_control_plane_up")

    def close(self) -> None:
        # The supervisor may leave planes behind when a test fails.
        pids = [process for process in self._children() if process != 0]
        super().close()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_leftovers(self.data_dir)

    def _children(self) -> Iterator[int]:
        for role in LOCKS:
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = self.pid(role)
                if str(self.data_dir) in command_of(pid):
                    yield pid


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """Returns whether the process has ended. A zombie process has ended too."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def processes_of(folder: Path) -> list[str]:
    listed = subprocess.run(
        ["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True
    )
    return [
        line for line in listed.stdout.splitlines() if f"{folder}" in line and "ps -eww" not in line
    ]
