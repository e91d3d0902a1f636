"""Child processes that the supervisor starts before it knows its settings. A child waits for its
command and exits if none arrives.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pyservice.process import early_spawn
from pyservice.process.early_spawn import PendingFlags, SpawnedChild
from tests.support.supervised_service import SupervisedService, processes_of, until

WAIT_S = 30.0


@pytest.mark.parametrize("role", early_spawn.ROLES)
def test_child_without_a_command_exits_without_work(tmp_path: Path, role: str) -> None:
    folder = tmp_path / "data"
    begun = SpawnedChild(role, ["--data-dir", str(folder)])
    assert processes_of(folder)
    begun._flags.close()
    assert begun.process.wait(WAIT_S) == 0
    assert not folder.exists()
    assert os.read(begun.ready, 1) == b""
    os.close(begun.ready)


def test_dropped_child_exits(tmp_path: Path) -> None:
    begun = SpawnedChild("data", ["--data-dir", str(tmp_path)])
    begun.kill()
    assert begun.process.returncode == -signal.SIGKILL
    assert not processes_of(tmp_path)


def test_command_may_be_sent_to_a_dead_child(tmp_path: Path) -> None:
    begun = SpawnedChild("control", ["--data-dir", str(tmp_path)])
    begun.process.kill()
    begun.process.wait()
    begun.send_flags(["--data-dir", "x" * 100_000])
    assert begun._flags.fileno() == -1
    assert os.read(begun.ready, 1) == b""
    os.close(begun.ready)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["check-config"],
        ["serve", "--help"],
        ["serve", "--role", "data"],
        ["serve", "--role=all"],
        ["serve", "--data-dir", "x", "-h"],
    ],
)
def test_no_child_starts_for_commands_that_need_none(words: list[str]) -> None:
    early_spawn.spawn_early(words)
    assert not early_spawn._early


def test_start_takes_an_early_child_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    early_spawn.spawn_early(["serve", "--data-dir", folder])
    try:
        early = early_spawn.take_or_spawn("data", [])
        late = early_spawn.take_or_spawn("data", [])
        assert early is not late
        for begun in (early, late):
            begun.kill()
        assert len(processes_of(tmp_path)) == 1
    finally:
        early_spawn.kill_early()
    assert not processes_of(tmp_path)


def test_child_arguments_are_those_given_and_its_own() -> None:
    child_end, supervisor_end = socket.socketpair()
    own = ["--role=data", "--child-of=7:8"]
    flags_from = f"--flags-from={child_end.detach()}"
    awaited = PendingFlags.of(["serve", "--http=shown", *own, flags_from])
    assert awaited is not None
    assert (awaited.role, awaited.parent) == ("data", "7:8")
    with supervisor_end, socket.create_server(("127.0.0.1", 0)) as listener:
        socket.send_fds(supervisor_end, [b"\n"], [listener.fileno()])
        supervisor_end.sendall(b'[["--http=given"], ["http"]]')
        supervisor_end.close()
        words = awaited.words()
        assert words is not None
        *flags, inherited = words
        assert flags == ["serve", "--http=given", *own]
        name, _, descriptor = inherited.removeprefix("--listener=").partition(":")
        with socket.socket(fileno=int(descriptor)) as received:
            assert (name, received.getsockname()) == ("http", listener.getsockname())
            assert not received.get_inheritable()
    assert PendingFlags.of(["serve", "--role=data"]) is None
    assert PendingFlags.of([]) is None


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_parent_that_exits_at_once_leaves_no_child(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "data"
    command = [sys.executable, "-m", "pyservice", "serve", "--data-dir", str(folder)]
    addresses = [f"--{name}=127.0.0.1:0" for name in ("http", "grpc", "cdn", "metrics")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, *addresses], stdout=log, stderr=log)
    try:
        until(lambda: len(processes_of(folder)) >= 3)
        process.send_signal(number)
        process.wait(WAIT_S)
        until(lambda: not processes_of(folder))
    finally:
        process.kill()
        process.wait()


def test_rejected_start_leaves_no_child(tmp_path: Path) -> None:
    service = SupervisedService(tmp_path)
    assert service.spawn("--set", "nonsense=1").wait(WAIT_S) == 1
    assert not processes_of(service.data_dir)
    assert not service.data_dir.exists()
