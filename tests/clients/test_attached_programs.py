"""`pyservice dev attach` with a program: its end, and the namespace of its lobby."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pyservice_cli.failures import ExitStatus
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.played_game import PlayedGame
from tests.support.played_game import played as played
from tests.support.waiting import until

pytestmark = pytest.mark.full


@pytest.mark.usefixtures("played")
def test_exit_code_of_the_program_decides_about_the_command(command: Command) -> None:
    def attached(program: str, *options: str) -> tuple[str, ...]:
        return (
            "dev",
            "attach",
            "--game-mode",
            "duel",
            *options,
            "--",
            sys.executable,
            "-c",
            program,
        )

    ended = command(*attached("raise SystemExit(3)"))
    assert ended.status == ExitStatus.REFUSED
    assert "COMMAND_FAILED: The program ended with exit code 3." in ended.errors
    error = command(*attached("raise SystemExit(3)", "--json")).result["error"]
    assert (error["code"], error["exit_code"]) == ("COMMAND_FAILED", 3)
    # The records of the control plane follow the data plane.
    until(lambda: command("show", "lobby", error["lobby_id"]).status == ExitStatus.DONE)
    ended = command(*attached("pass"))
    assert ended.status == ExitStatus.DONE
    assert ended.output.endswith("The program ended with exit code 0.\n")


def test_end_by_ctrl_c_is_no_failure_of_the_program(played: PlayedGame) -> None:
    program = "import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()"
    ended = played.command(
        "dev", "attach", "--game-mode", "duel", "--json", "--", sys.executable, "-c", program
    )
    assert ended.status == ExitStatus.DONE, ended.errors
    assert ended.result["exit_code"] == -signal.SIGTERM


class InterruptedStart(subprocess.Popen[bytes]):
    """The developer presses Ctrl-C while this process starts."""

    all: ClassVar[list[InterruptedStart]] = []

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        if words[0][0] != "git":
            self.all.append(self)
            signal.raise_signal(signal.SIGINT)


Starts = list[InterruptedStart]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """The processes that were starting at a Ctrl-C."""
    processes: Starts = []
    monkeypatch.setattr(InterruptedStart, "all", processes)
    return processes


@pytest.mark.parametrize(
    "words",
    [
        ["dev", "attach", "--game-mode", "duel", "--", "sleep", "600"],
        ["dev", "--game-mode", "duel"],
        ["play", "--bots", "2"],
    ],
)
def test_ctrl_c_during_the_start_of_a_process_ends_that_process(
    played: PlayedGame,
    folder: Path,
    starts: Starts,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    with (folder / "hosting.toml").open("a") as settings:
        settings.write('[play]\nbot = ["sleep", "600"]\n')
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", InterruptedStart)
        ended = played.command(*words)
    assert ended.status == ExitStatus.DONE, ended.errors
    assert [process.returncode for process in starts] == [-signal.SIGTERM]


def test_ctrl_c_during_the_start_of_the_service_ends_it(
    folder: Path, command: Command, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "hosting.toml").write_text('game = "duels"\n[matchmaker.game_modes.duel]\n')
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", InterruptedStart)
        ended = command("dev")
    assert ended.status == ExitStatus.DONE, ended.errors
    assert [process.returncode for process in starts] == [-signal.SIGTERM]


def test_namespace_of_the_lobby_is_printed(played: PlayedGame) -> None:
    words = ("--", sys.executable, "-c", "pass")
    ended = played.command("dev", "attach", "--game-mode", "duel", *words)
    assert "in prod. Its players can join it." in ended.output
