"""One process per data directory, two signals, a ready file that is whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyservice.process import (
    LOCK_FILE,
    DirectoryLock,
    DirectoryUnusable,
    StopSignals,
    remove_ready_file,
    write_ready_file,
)

_HOLDER = """
import sys
from pathlib import Path
from pyservice.process import DirectoryLock
lock = DirectoryLock.take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
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
        # The lock of a killed process is gone with it, whatever the file says.
        assert (tmp_path / LOCK_FILE).read_text() == f"{holder.pid}\n"
        DirectoryLock.take(tmp_path).release()


def test_the_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    lock = DirectoryLock.take(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    lock.release()
    lock.release()


def test_a_directory_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryUnusable, match="cannot be used"):
        DirectoryLock.take(tmp_path / "file" / "data")


def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = DirectoryLock.take(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        DirectoryLock.take(tmp_path).release()
        assert child.poll() is None
        assert child.stdin is not None
        child.stdin.close()


@pytest.mark.anyio
async def test_the_first_signal_stops_and_the_second_hurries() -> None:
    signals = StopSignals()
    reloads: list[int] = []
    loop = asyncio.get_running_loop()
    signals.install(loop, lambda: reloads.append(1))
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(signals.stop.wait(), 5)
        assert reloads == [1]
        assert not signals.hurry.is_set()
        paused = asyncio.create_task(signals.pause(60_000))
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(paused, 5)
        assert signals.hurry.is_set()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def test_the_ready_file_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    remove_ready_file(path)
    path.write_text("old")
    write_ready_file(path, {"http": "127.0.0.1:1"})
    assert json.loads(path.read_text()) == {"http": "127.0.0.1:1"}
    assert list(tmp_path.iterdir()) == [path]
    remove_ready_file(path)
    assert not path.exists()
