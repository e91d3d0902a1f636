"""`pyservice play`: the game's page in the browser, or bots of the game."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyservice_cli.failures import CommandFailed, InputInvalid, Interrupted
from pyservice_cli.games import Game
from pyservice_cli.interrupts import uninterrupted
from pyservice_cli.project import Project
from pyservice_cli.python_packages import installed_packages
from pyservice_cli.terminal import Terminal, open_browser

_START_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1


def play(terminal: Terminal, game: Game, bots: int | None) -> None:
    """Plays the game until Ctrl-C."""
    site = str(game.describe_namespace()["site_url"])
    has_page = "build_output" in game.project.config.get("cdn", {})
    if bots is None and has_page and open_browser(site):
        terminal.finish({"url": site}, f"Opened {site}")
        return
    if has_page:
        terminal.say(f"Page: {site}")
    _play_with_bots(terminal, game, bots or 1)


def open_page(terminal: Terminal, game: Game) -> None:
    """Opens the game's page in the browser, and prints its address."""
    site = str(game.describe_namespace()["site_url"])
    terminal.finish({"url": site, "opened": open_browser(site)}, site)


def _play_with_bots(terminal: Terminal, game: Game, count: int) -> None:
    before = _player_counts(game)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        start_bots(terminal, game, count, processes)
        lobbies = _wait_for_players(game, before, processes)
        terminal.finish(
            {"lobbies": lobbies},
            *(f"Lobby {lobby_id}: players: {count}" for lobby_id, count in lobbies.items()),
            "Ctrl-C ends the bots.",
        )
        for process in processes:
            process.wait()
    except Interrupted:
        return
    finally:
        end_bots(processes)


def start_bots(
    terminal: Terminal, game: Game, count: int, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Starts bots and appends each process. An interrupted call has started some of them."""
    environment = {
        **os.environ,
        "HOSTING_API_URL": game.api_url(),
        "HOSTING_PUBLIC_TOKEN": game.public_token(),
        "PYTHONPATH": os.pathsep.join(_module_folders(terminal, game.project)),
    }
    command = _found_command(game.project)
    for _ in range(count):
        with uninterrupted():
            processes.append(_start_bot(terminal, command, game.project.folder, environment))


def end_bots(processes: list[subprocess.Popen[bytes]]) -> None:
    with uninterrupted():
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        processes.clear()


def _start_bot(
    terminal: Terminal, command: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a bot that does not get the Ctrl-C of the terminal."""
    output = terminal.program_output
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, creationflags=flags
        )
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, process_group=0)


def _module_folders(terminal: Terminal, project: Project) -> list[str]:
    packages = installed_packages(terminal, project)
    folders = [] if project.build is None else [project.build.folder]
    return [str(folder.absolute()) for folder in [*folders, *([packages] if packages else [])]]


def _found_command(project: Project) -> list[str]:
    if not project.bot:
        raise InputInvalid(
            "The game has no bot.", 'Name the command of a bot: [play] bot = ["python3", "bot.py"]'
        )
    program, *arguments = project.bot
    if program in ("python", "python3"):
        return [sys.executable, *arguments]
    folder = project.folder.absolute()
    is_path = "/" in program
    found = shutil.which(
        str(folder / program) if is_path else program,
        path=f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
    )
    if found is None:
        raise InputInvalid(
            f"The program {program} of play.bot is not in {folder} or not executable."
            if is_path
            else f"The program {program} of play.bot is not installed."
        )
    return [found, *arguments]


def _player_counts(game: Game) -> dict[str, int]:
    """Returns the number of players of each running lobby, by its id."""
    return {
        lobby["lobby_id"]: lobby.get("usage", {}).get("player_count", 0)
        for lobby in game.lobbies()
        if lobby["state"] == "running"
    }


def _wait_for_players(
    game: Game, before: Mapping[str, int], processes: list[subprocess.Popen[bytes]]
) -> dict[str, int]:
    """Waits until the bots are in lobbies. Returns the number of players by lobby."""
    until_s = time.monotonic() + _START_TIMEOUT_S
    wanted = sum(before.values()) + len(processes)
    while True:
        now = _player_counts(game)
        if sum(now.values()) >= wanted:
            return {lobby_id: count for lobby_id, count in now.items() if count}
        ended = [process for process in processes if process.poll() is not None]
        if ended:
            raise CommandFailed(
                f"A bot ended with exit status {ended[0].returncode} before it was in a lobby.",
                "Its lines above say why.",
            )
        if time.monotonic() >= until_s:
            raise CommandFailed(
                f"The bots are not in a lobby after {_START_TIMEOUT_S:.0f} s.",
                "Read the log of the lobby with `pyservice logs`.",
            )
        time.sleep(_POLL_S)
