from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pyservice.durable_files import write_file
from pyservice.process.directory_lock import (
    LOCK_FILE,
    DirectoryLock,
    DirectoryUnusable,
    lock_holder_pid,
)
from pyservice.process.ready_report import (
    SupervisorLink,
    remove_ready_file,
    report_ready,
    write_ready_file,
)
from pyservice.process.stop_signals import StopSignals, wait_for_exit
from tests.support.waiting import PATIENCE_S

# Holds a lock until it reads a line, reports that it is ending, and exits at the next line.
_ENDING_HOLDER = """
import sys
from pathlib import Path
from pyservice.process.directory_lock import DirectoryLock
lock = DirectoryLock.take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
lock.announce_stopping()
print("stopping", flush=True)
sys.stdin.readline()
"""

# Dies with its parent and reports the death of the parent.
_CHILD = """
import signal, sys, time
from pyservice.process.ready_report import SupervisorLink
signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), sys.exit()))
print(SupervisorLink.parse(sys.argv[1]).stop_on_supervisor_exit(), flush=True)
time.sleep(60)
"""

_PARENT = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], f"{os.getpid()}:0"])
"""

_HOLDER = """
import sys
from pathlib import Path
from pyservice.process.directory_lock import DirectoryLock
lock = DirectoryLock.take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_second_process_fails_with_the_pid_of_the_first(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryUnusable, match=f"process {holder.pid}:"):
            DirectoryLock.take(tmp_path)
        holder.kill()
        holder.wait()
        # The kernel releases the lock of a killed process; the file stays.
        assert (tmp_path / LOCK_FILE).read_text() == f"{holder.pid}\n"
        DirectoryLock.take(tmp_path).release()


def test_directory_is_created_private_to_its_owner(tmp_path: Path) -> None:
    lock = DirectoryLock.take(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    lock.release()
    lock.release()


def test_unusable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryUnusable, match="cannot be used"):
        DirectoryLock.take(tmp_path / "file" / "data")


def test_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = DirectoryLock.take(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        DirectoryLock.take(tmp_path).release()
        assert child.poll() is None
        assert child.stdin is not None
        child.stdin.close()


@pytest.mark.anyio
async def test_first_signal_stops_and_second_forces() -> None:
    signals = StopSignals()
    reloads: list[int] = []
    loop = asyncio.get_running_loop()
    signals.install(loop, lambda: reloads.append(1))
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(signals.stop.wait(), PATIENCE_S)
        assert reloads == [1]
        assert not signals.forced.is_set()
        paused = asyncio.create_task(signals.pause(60_000))
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(paused, PATIENCE_S)
        assert signals.forced.is_set()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def test_ready_file_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    remove_ready_file(path)
    path.write_text("old")
    write_ready_file(path, {"http": "127.0.0.1:1"})
    assert json.loads(path.read_text()) == {"http": "127.0.0.1:1"}
    assert list(tmp_path.iterdir()) == [path]
    remove_ready_file(path)
    assert not path.exists()


@pytest.mark.full
def test_start_waits_for_a_lock_holder_that_is_ending(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _ENDING_HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert lock_holder_pid(tmp_path) == holder.pid
        with pytest.raises(DirectoryUnusable, match=f"process {holder.pid}:"):
            DirectoryLock.take(tmp_path, timeout_ms=100)
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"stopping\n"
        assert lock_holder_pid(tmp_path) == holder.pid
        began = time.monotonic()
        # The wait is longer than for a process that does not report its end.
        with pytest.raises(DirectoryUnusable, match=f"process {holder.pid}:"):
            DirectoryLock.take(tmp_path, timeout_ms=2_500)
        assert time.monotonic() - began >= 2.5
        holder.stdin.close()
        DirectoryLock.take(tmp_path, timeout_ms=20_000).release()


def test_missing_lock_file_has_no_holder(tmp_path: Path) -> None:
    assert lock_holder_pid(tmp_path) is None
    (tmp_path / LOCK_FILE).touch()
    assert lock_holder_pid(tmp_path) is None


def test_parent_death_signals_the_child() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, _CHILD], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"True\n"
        parent.kill()
        assert parent.stdout.readline() == b"told\n"


def test_dead_parent_is_detected() -> None:
    # Process 1 exists, but it is not the parent of the child.
    child = (
        "from pyservice.process.ready_report import SupervisorLink\n"
        "print(SupervisorLink(1, 0).stop_on_supervisor_exit())"
    )
    result = subprocess.run([sys.executable, "-c", child], capture_output=True, check=True)
    assert result.stdout == b"False\n"


def test_report_to_a_dead_parent_is_harmless() -> None:
    reading, writing = os.pipe()
    assert SupervisorLink.parse(str(SupervisorLink(7, writing))) == SupervisorLink(7, writing)
    SupervisorLink(7, writing).report_ready({"http": "127.0.0.1:1"})
    with open(reading, "rb") as pipe:
        assert json.load(pipe) == {"http": "127.0.0.1:1"}
    reading, writing = os.pipe()
    os.close(reading)
    SupervisorLink(7, writing).report_ready({})


@pytest.mark.anyio
async def test_wait_for_exit_ends_at_a_forced_shutdown() -> None:
    signals = StopSignals()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        waiting_task = asyncio.create_task(wait_for_exit(cat.pid, signals, 60_000))
        done, _ = await asyncio.wait({waiting_task}, timeout=0.1)
        assert not done
        cat.kill()
        await asyncio.wait_for(waiting_task, PATIENCE_S)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        await asyncio.wait_for(wait_for_exit(cat.pid, signals, 10), PATIENCE_S)
        waiting_task = asyncio.create_task(wait_for_exit(cat.pid, signals, 60_000))
        signals.forced.set()
        await asyncio.wait_for(waiting_task, PATIENCE_S)
        cat.kill()
    await asyncio.wait_for(wait_for_exit(cat.pid, StopSignals(), 60_000), PATIENCE_S)


@pytest.mark.anyio
async def test_ready_file_on_a_full_disk_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = False

    def full_once(path: Path, content: bytes, mode: int = 0o600) -> None:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, content, mode)

    monkeypatch.setattr("pyservice.process.ready_report.write_file", full_once)
    monkeypatch.setattr("pyservice.process.ready_report._RETRY_MS", 1)
    path = tmp_path / "ready.json"
    with capture_logs() as logs:
        await report_ready(path, {"a": 1}, StopSignals())
    assert [entry["retry_ms"] for entry in logs] == [1]
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(OSError, match="missing"):
        await report_ready(tmp_path / "missing" / "x", {}, StopSignals())
