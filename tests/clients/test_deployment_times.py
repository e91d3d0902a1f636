"""Promised times of the first game, of a change, and of a deployment without a change."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.played_game import PlayedGame
from tests.support.played_game import played as played
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("logged_in")]

FIRST_GAME_S: Final = 10
CHANGE_S: Final = 3
NO_CHANGE_S: Final = 1
NEW: Final = b"new "


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "pyservice_cli", *words, "--json"]
    return subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE)


def run(folder: Path, *words: str) -> Any:
    process = start(folder, *words)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return json.loads(output)


def test_empty_folder_has_players_after_three_commands(folder: Path) -> None:
    began_s = time.monotonic()
    run(folder, "init", "--template", "ws-python", "--name", "fast-game")
    run(folder, "deploy")
    deployed_s = time.monotonic() - began_s
    bots = start(folder, "play", "--bots", "4")
    try:
        assert bots.stdout is not None
        with bots.stdout as lines:
            # The command prints the lobbies when all bots are in them.
            lobbies = json.loads(b"".join(iter(lines.readline, b"}\n")) + b"}")["lobbies"]
        passed_s = time.monotonic() - began_s
    finally:
        bots.send_signal(signal.SIGINT)
        bots.wait(PATIENCE_S)
    print(f"init and deploy: {deployed_s:.2f} s, and play with four bots: {passed_s:.2f} s")
    assert sum(lobbies.values()) == 4
    assert passed_s <= FIRST_GAME_S


def test_change_reaches_a_player(folder: Path, played: PlayedGame) -> None:
    with played.player() as answer:
        assert not answer.startswith(NEW)
    server = folder / "server.py"
    code, answer_code = server.read_text(), "ready.sendall(answer_to(content))"
    assert answer_code in code
    new_code = f"ready.sendall({NEW!r} + answer_to(content))"
    server.write_text(code.replace(answer_code, new_code))
    began_s = time.monotonic()
    assert run(folder, "deploy")["changed"] is True
    with played.player() as answer:
        assert answer.startswith(NEW)
        change_s = time.monotonic() - began_s
    began_s = time.monotonic()
    assert run(folder, "deploy")["changed"] is False
    no_change_s = time.monotonic() - began_s
    print(f"a change to a player: {change_s:.2f} s, no change: {no_change_s:.2f} s")
    assert change_s <= CHANGE_S
    assert no_change_s <= NO_CHANGE_S
