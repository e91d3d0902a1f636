"""A real S3 server for tests: `s3s-fs`, built once into `build/` with the toolchain that is there."""

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

BINARY: Final = Path(__file__).resolve().parents[2] / "build" / "s3" / "bin" / "s3s-fs"
ACCESS_KEY: Final = "test-access"
SECRET_KEY: Final = "test-secret"
BUCKET: Final = "objects"


@dataclass(frozen=True)
class S3Server:
    """Where it listens, and the folder in which its buckets are folders."""

    endpoint: str
    folder: Path
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """Runs a server with one empty bucket. Skips, visibly, where it could not be built."""
    if not BINARY.exists():
        pytest.skip("no S3 server: `make build/s3` needs cargo with Rust 1.92 or newer")
    (folder / BUCKET).mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
    with (folder.parent / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [BINARY, "--host", "127.0.0.1", "--port", str(port), *keys, folder],
            stdout=log,
            stderr=log,
        )
    try:
        _wait_until_it_answers(port, process)
        yield S3Server(f"http://127.0.0.1:{port}", folder, process)
    finally:
        process.kill()
        process.wait()


def _wait_until_it_answers(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, "the S3 server ended"
        time.sleep(0.02)
    raise TimeoutError("the S3 server does not answer")
