"""The end of `make run`: by Ctrl-C, by SIGKILL of all its processes, and because it cannot start.

After SIGKILL the lobbies and edge-guard keep running. The next run ends them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.example_run import Run, StartRun
from tests.support.example_run import start_run as start_run
from tests.support.leftover_processes import pids_of
from tests.support.supervised_service import is_gone
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full

OPEN = "Ctrl-C ends all of it"
LOG_LINE = re.compile(r"\S+Z \[(?P<level>\w+) *\] (?P<rest>.+)")
LOCKS = ("SERVE.LOCK", "LOCK", "control/LOCK")


def lobby_of(run: Run) -> Any:
    token = (run.data_dir / "public.token").read_text().strip()
    request = urllib.request.Request(
        f"{run.api_url}/matchmaker/lobbies/find",
        json.dumps({"game_modes": ["arena"]}).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def is_served(lobby: Any) -> bool:
    try:
        with urllib.request.urlopen(f"http://{lobby['ports']['game']['host']}/", timeout=5):
            return True
    except OSError:
        return False


def kill_at_once(run: Run) -> None:
    """Stops all processes before it kills the first, so that no process can shut down another."""
    pids = [int((run.data_dir / lock).read_text().split()[0]) for lock in LOCKS]
    pids = [run.process.pid, *pids]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    run.process.wait()
    until(lambda: all(map(is_gone, pids)))


def test_next_run_ends_leftovers_of_a_killed_run(start_run: StartRun) -> None:
    first = start_run()
    first.wait_for(OPEN)
    lobby = lobby_of(first)
    pids = set(pids_of(first.data_dir))
    programs = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}
    assert {"hosting-edge-gu", "hosting-keeper"} < programs, "and a game server"
    kill_at_once(first)
    assert set(pids_of(first.data_dir)) == pids
    assert is_served(lobby), "connected players must see no effect"

    second = start_run()
    second.wait_for(OPEN)
    running_lobby = lobby_of(second)
    assert running_lobby["lobby"]["lobby_id"] == lobby["lobby"]["lobby_id"]
    assert running_lobby["ports"] == lobby["ports"]
    assert set(pids_of(first.data_dir)) == pids, "no other lobby was started"
    second.stop()
    assert second.process.returncode == 0
    assert all(map(is_gone, pids))
    assert not list(pids_of(first.data_dir))
    assert not is_served(lobby)


def test_ctrl_c_at_a_terminal_stops_every_process_cleanly(start_run: StartRun) -> None:
    run = start_run(bots=4)
    run.wait_for(OPEN)
    assert is_served(lobby_of(run))
    pids = set(pids_of(run.data_dir))
    printed = run.stop()
    assert run.process.returncode == 0
    assert all(map(is_gone, pids))
    assert printed.endswith("Ctrl-C ends all of it.\n\nended\n")
    lines = run.log().splitlines()
    events = [match for line in lines if (match := LOG_LINE.match(line))]
    assert {event["level"] for event in events} == {"info"}, lines
    assert any(event["rest"].endswith("reason=stopped") for event in events), lines
    assert "{" not in {line[:1] for line in lines}, "the log is text"
    assert "restarting it" not in printed


def test_ctrl_c_during_start_ends_started_processes(start_run: StartRun) -> None:
    run = start_run()
    lock = run.data_dir / LOCKS[0]
    until(lambda: lock.exists() and lock.read_text())
    service = int(lock.read_text().split()[0])
    printed = run.stop()
    assert run.process.returncode == 0
    assert is_gone(service), "before it says so"
    assert printed.endswith("ended\n")
    assert "restarting it" not in printed
    assert not list(pids_of(run.data_dir))


def failed_start(run: Run) -> str:
    """Waits until the run gives up, and returns its output."""
    assert run.process.wait(timeout=PATIENCE_S) == 1, run.output()
    assert OPEN not in run.output()
    assert "restarting it" not in run.output()
    return run.output()


def printed_flags(printed: str) -> dict[str, str]:
    """Returns the flags of the `make run` that the last line names as the remedy."""
    match = re.search(r"make run ARGS='(--[^']+)'", printed.splitlines()[-1])
    assert match, printed
    words = [word for word in shlex.split(match[1]) if word != "--bots-stay"]
    return {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }


def start_as_printed(start_run: StartRun, printed: str) -> Run:
    flags = printed_flags(printed)
    return start_run(bots=int(flags.pop("bots")), name=Path(flags.pop("data-dir")).name, **flags)


@pytest.mark.parametrize("listener", ["http", "grpc", "cdn", "metrics"])
def test_taken_port_ends_the_run_with_its_cause_and_a_remedy_that_works(
    start_run: StartRun, listener: str
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = "127.0.0.1:{1}".format(*other.getsockname())
        failed = start_run(**{listener: taken})
        printed = failed_start(failed)
        assert printed.count(f"cannot listen on {taken}") == 1, printed
        assert str(failed.data_dir) in printed_flags(printed)["data-dir"]
        run = start_as_printed(start_run, printed)
        run.wait_for(OPEN)


def test_locked_data_directory_ends_the_run_with_its_cause(start_run: StartRun) -> None:
    first = start_run()
    first.wait_for(OPEN)
    ready = first.data_dir / "ready.json"
    addresses = ready.read_text()
    printed = failed_start(start_run())
    assert printed.count(str((first.data_dir / LOCKS[0]).read_text().split()[0])) == 1, printed
    assert ready.read_text() == addresses
    assert lobby_of(first), "the first run goes on"
    start_as_printed(start_run, printed).wait_for(OPEN)


def test_ready_file_of_an_earlier_run_does_not_count(start_run: StartRun) -> None:
    first = start_run()
    first.wait_for(OPEN)
    kill_at_once(first)
    assert (first.data_dir / "ready.json").exists()
    second = start_run()
    second.wait_for(OPEN)
    assert lobby_of(second)
