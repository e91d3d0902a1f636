"""Real S3 server for tests: `s3s-fs`, compiled once into `build/`."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import PATIENCE_S

BINARY: Final = Path(__file__).resolve().parents[2] / "build" / "s3" / "bin" / "s3s-fs"
ACCESS_KEY: Final = "test-access"
SECRET_KEY: Final = "test-secret"
BUCKET: Final = "objects"


@dataclass
class S3Server:
    endpoint: str
    folder: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def revive(self) -> None:
        port = int(self.endpoint.rpartition(":")[2])
        self.process = _spawn(self.folder, port)
        assert _answers(port, self.process), "see s3.log"


@contextlib.contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """Runs a server with one empty bucket. Skips the test if the server could not be compiled."""
    if not BINARY.exists():
        pytest.skip("no S3 server: `make build/s3/bin/s3s-fs` makes one with Rust 1.92 or newer")
    (folder / BUCKET).mkdir(parents=True)
    process, endpoint = _start(folder)
    server = S3Server(endpoint, folder, process)
    try:
        yield server
    finally:
        server.kill()


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """`s3s-fs` does not accept port 0, so this tries free ports."""
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = _spawn(folder, port)
        if _answers(port, process):
            return process, f"http://127.0.0.1:{port}"
        process.kill()
        process.wait()
    raise TimeoutError("the S3 server does not start: see s3.log")


def _spawn(folder: Path, port: int) -> subprocess.Popen[bytes]:
    keys = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
    command = [str(BINARY), "--host", "127.0.0.1", "--port", str(port), *keys, str(folder)]
    with (folder.parent / "s3.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return process.poll() is None
        time.sleep(0.02)
    return False
