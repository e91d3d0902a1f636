"""`pyservice dev attach` with a program: its end, and the namespace of its lobby."""

from __future__ import annotations

import signal
import sys

import pytest

from pyservice_cli.failures import ExitStatus
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.played_game import PlayedGame
from tests.support.played_game import played as played

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
    lobby = command("show", "lobby", error["lobby_id"])
    assert lobby.status == ExitStatus.DONE, "the error names the lobby"
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


def test_namespace_of_the_lobby_is_printed(played: PlayedGame) -> None:
    words = ("--", sys.executable, "-c", "pass")
    ended = played.command("dev", "attach", "--game-mode", "duel", *words)
    assert "in prod. Its players can join it." in ended.output
