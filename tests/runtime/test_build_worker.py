"""Worker process of a build: confined, without secrets, and never left behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.runtime.build_worker import BuildReport, WorkerFailed, check_build
from tests.support.build_workers import workers
from tests.support.container_images import file, layer, link, saved
from tests.support.runtime_host import is_alive, until
from tests.support.upload_files import packed, tar

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of the service."""
    return "asyncio", {"use_uvloop": True}


class HeldUpload:
    """A check that has its first bytes, and waits for the rest."""

    def __init__(self, content: bytes) -> None:
        self.go_on = asyncio.Event()
        self._is_begun = asyncio.Event()
        self._content = content
        blocks = self._blocks()
        self.check = asyncio.create_task(check_build("archive", "none", len(content), None, blocks))

    async def _blocks(self) -> AsyncIterator[bytes]:
        yield self._content[:512]
        self._is_begun.set()
        await self.go_on.wait()
        yield self._content[512:]

    async def worker(self) -> int:
        await self._is_begun.wait()
        (pid,) = workers()
        await until(lambda: memory_limit(pid) != "unlimited")
        return pid


def memory_limit(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (words,) = [line.split() for line in lines if line.startswith("Max address space")]
    return words[4]


async def test_worker_has_limits_and_no_secret_in_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSERVICE_S3", "secret")
    upload = HeldUpload(tar())
    process = Path(f"/proc/{await upload.worker()}")
    environment = (process / "environ").read_bytes().rstrip(b"\0").split(b"\0")
    assert [line.partition(b"=")[0] for line in environment] == [b"PYTHONPATH"]
    assert memory_limit(int(process.name)) == str(2 << 30)
    upload.go_on.set()
    assert await upload.check == BuildReport(hashlib.sha256(tar()).hexdigest(), None)
    assert workers() == []


async def test_cancelled_check_ends_its_worker() -> None:
    upload = HeldUpload(tar())
    pid = await upload.worker()
    upload.check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload.check
    assert not is_alive(pid)


async def test_killed_worker_is_a_failure_of_the_check() -> None:
    upload = HeldUpload(tar())
    pid = await upload.worker()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    upload.go_on.set()
    with pytest.raises(WorkerFailed, match="ended with -9"):
        await upload.check


@pytest.mark.parametrize("rest_bytes", [0, 4 << 20])
async def test_digest_of_a_refused_build_covers_all_of_it(rest_bytes: int) -> None:
    content = packed(tar({"../x": b""}), "gzip") + os.urandom(rest_bytes)

    async def blocks() -> AsyncIterator[bytes]:
        for at in range(0, len(content), 1 << 16):
            yield content[at : at + (1 << 16)]

    report = await check_build("archive", "gzip", len(content), None, blocks())
    assert report.sha256 == hashlib.sha256(content).hexdigest()
    assert report.problem is not None
    assert (report.problem.entry, report.problem.word) == ("../x", "not-allowed")


def test_worker_starts_without_the_fork_handlers_of_grpc() -> None:
    """They start threads in the new process, which sometimes crash before it runs its program."""
    start = """
import pyservice, asyncio, grpc.aio, uvloop
async def start():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for _ in range(5):
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0
uvloop.run(start())
"""
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, check=True)
    assert done.stderr == b""


def run_worker(
    folder: Path, kind: str, content: bytes, parent: int | None = None, reserve_bytes: int = 0
) -> subprocess.CompletedProcess[bytes]:
    words = [str(parent or os.getpid()), str(folder), kind, "none", str(len(content))]
    (folder / "root").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "pyservice.runtime.build_unpacking", *words, str(reserve_bytes), ""],
        input=content,
        capture_output=True,
        check=False,
    )


def test_worker_of_another_parent_does_nothing(tmp_path: Path) -> None:
    assert run_worker(tmp_path, "archive", tar(), parent=1 << 22).returncode == 1
    assert not list((tmp_path / "root").iterdir())
    assert run_worker(tmp_path, "archive", tar()).returncode == 0
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["server.json"]


def test_system_errors_do_not_reveal_the_path(tmp_path: Path) -> None:
    """Behind a link a path becomes too long although each name in the archive is short enough."""
    content = saved(layer(link("a", "x" * 300), file("a/b", b"x")))
    ended = run_worker(tmp_path, "docker_image", content)
    problem = ["", "invalid", "File name too long"]
    assert (ended.returncode, json.loads(ended.stdout)["problem"]) == (0, problem)
    full = run_worker(tmp_path, "archive", tar(), reserve_bytes=1 << 60)
    message = b"the disk reached its reserve of space or inodes\n"
    assert (full.returncode, full.stderr) == (28, message)
