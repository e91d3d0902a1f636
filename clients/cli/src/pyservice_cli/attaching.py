"""`pyservice dev attach`: a program on this machine becomes the game server of a real lobby."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from pyservice_cli.failures import CommandFailed, InputInvalid, Interrupted, Refused
from pyservice_cli.games import Game
from pyservice_cli.interrupts import uninterrupted
from pyservice_cli.terminal import Terminal

_STOP_TIMEOUT_S: Final = 30.0
"""Time that a game server has after SIGTERM, as in the service."""


class ProgramFailed(CommandFailed):
    """The attached program has ended by itself with another exit code than 0."""

    def __init__(self, lobby_id: str, exit_code: int) -> None:
        super().__init__(
            f"The program ended with exit code {exit_code}.",
            "Its lines above say why. The lobby has ended.",
        )
        self.lobby_id = lobby_id
        self.exit_code = exit_code

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "lobby_id": self.lobby_id, "exit_code": self.exit_code}


def attach(
    terminal: Terminal,
    game: Game,
    mode: str | None,
    ports: Sequence[str],
    address: str | None,
    command: Sequence[str],
) -> None:
    """Attaches a lobby. Runs the command with its variables until the end, and then ends the lobby.

    Without a command, prints the variables. Raises ProgramFailed if the program ends by itself with
    another exit code than 0.
    """
    name = chosen_mode(game, mode)
    numbers = _given_ports(game, name, ports)
    lobby_id, variables = attach_lobby(game, name, numbers, address)
    if not command:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        terminal.finish({"lobby_id": lobby_id, "environment": variables}, *lines)
        return
    try:
        terminal.say(
            f"Lobby {lobby_id} of the mode {name} in {game.namespace}. Its players can join it."
        )
        exit_code, is_interrupted = _run(command, variables)
    finally:
        detach_lobby(game, lobby_id)
    if exit_code != 0 and not is_interrupted:
        raise ProgramFailed(lobby_id, exit_code)
    terminal.finish(
        {"lobby_id": lobby_id, "exit_code": exit_code},
        f"The program ended with exit code {exit_code}.",
    )


def attach_lobby(
    game: Game, mode: str, ports: Mapping[str, int], address: str | None
) -> tuple[str, dict[str, str]]:
    """Creates a lobby of a program on this machine. Returns its id, and the program's variables.

    Players reach the program at `address`, by default at `dev_hostname`, and then at loopback.
    """
    address = address or game.project.config["matchmaker"].get("dev_hostname") or "127.0.0.1"
    body = {
        "game_mode": mode,
        "ports": {port: {"address": address, "port": number} for port, number in ports.items()},
    }
    answer = game.api.post(f"{game.namespace_path}/lobbies/attach", body)
    return str(answer["lobby_id"]), _variables(game, mode, ports, answer)


def chosen_mode(game: Game, given: str | None) -> str:
    """Returns the given game mode, or the only one. Raises InputInvalid."""
    modes = sorted(game.project.config.get("matchmaker", {}).get("game_modes", {}))
    if given is None and len(modes) == 1:
        return str(modes[0])
    if given is None or given not in modes:
        problem = f"There is no game mode {given}." if given else "The game mode is missing."
        raise InputInvalid(problem, f"Name one with --game-mode: {', '.join(modes) or 'none'}.")
    return given


def runtime_of(game: Game, mode: str) -> Mapping[str, Any]:
    """Returns the table `docker` that applies to a game mode."""
    matchmaker = game.project.config["matchmaker"]
    level, own = matchmaker.get("docker", {}), matchmaker["game_modes"][mode].get("docker")
    if own is None:
        return dict(level)
    return {**own, "env": {**level.get("env", {}), **own.get("env", {})}}


def development_ports(
    game: Game, mode: str, given: Mapping[str, int] | None = None
) -> dict[str, int | None]:
    """Returns the number of each port of the mode. None: the settings do not say it.

    It is the given one, then `dev_port`, then a free one of `dev_port_range`. Raises InputInvalid.
    """
    ports = runtime_of(game, mode).get("ports", {})
    numbers = {name: port.get("dev_port") for name, port in ports.items()} | dict(given or {})
    for name, port in ports.items():
        if numbers[name] is None and "dev_port_range" in port:
            taken = {number for number in numbers.values() if number is not None}
            numbers[name] = _free_number(name, port["dev_port_range"], taken)
    return numbers


def _free_number(name: str, span: Mapping[str, int], taken: Set[int]) -> int:
    first, last = span["min"], span["max"]
    for number in range(first, last + 1):
        if number not in taken and _is_free(number):
            return number
    raise InputInvalid(
        f"No port from {first} to {last} is free for {name}.",
        "End the program that uses one, or change dev_port_range in hosting.toml.",
    )


def _is_free(number: int) -> bool:
    try:
        with (
            socket.create_server(("127.0.0.1", number)),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        ):
            datagrams.bind(("127.0.0.1", number))
    except OSError:
        return False
    return True


def _given_ports(game: Game, mode: str, given: Sequence[str]) -> dict[str, int]:
    """Returns the number of each port of the mode: the given one, or that of the settings."""
    known = runtime_of(game, mode).get("ports", {})
    numbers = {}
    for pair in given:
        name, _, number = pair.partition("=")
        if name not in known or not number.isdecimal():
            raise InputInvalid(
                f"--port {pair} is not a port of the mode {mode}.",
                f"Write NAME=NUMBER. Names: {', '.join(known) or 'none'}.",
            )
        numbers[name] = int(number)
    found = development_ports(game, mode, numbers)
    missing = [name for name, number in found.items() if number is None]
    if missing:
        raise InputInvalid(
            f"The number of the port {missing[0]} is missing.",
            f"Give --port {missing[0]}=7777, or set dev_port in hosting.toml.",
        )
    return {name: number for name, number in found.items() if number is not None}


def _variables(
    game: Game, mode: str, numbers: Mapping[str, int], answer: Mapping[str, Any]
) -> dict[str, str]:
    variables = {
        "HOSTING_API_URL": game.api.url,
        "HOSTING_LOBBY_ID": str(answer["lobby_id"]),
        "HOSTING_LOBBY_TOKEN": str(answer["lobby_token"]),
        "HOSTING_GAME_MODE": mode,
        "HOSTING_BIND_ADDRESS": "127.0.0.1",
    }
    for name, number in numbers.items():
        variables[f"PORT_{name.upper().replace('-', '_')}"] = str(number)
    if len(numbers) == 1:
        variables["PORT"] = next(str(number) for number in numbers.values())
    return variables


def _run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, bool]:
    """Runs a program. Returns its exit code, and whether the developer ended it."""
    program = shutil.which(command[0])
    if program is None:
        raise InputInvalid(f"The program {command[0]} is not installed.")
    process = None
    try:
        with uninterrupted():
            # The Ctrl-C of the terminal also reaches the program, which then ends by itself.
            process = subprocess.Popen([program, *command[1:]], env={**os.environ, **variables})
        return process.wait(), False
    except Interrupted:
        if process is None:
            raise
        with uninterrupted():
            if sys.platform != "win32":
                process.terminate()
            try:
                return process.wait(_STOP_TIMEOUT_S), True
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait(), True


def detach_lobby(game: Game, lobby_id: str) -> None:
    """Ends the lobby if it still runs."""
    try:
        game.api.delete(f"{game.path}/matchmaker/lobbies/{lobby_id}")
    except Refused as refused:
        if refused.code != "MATCHMAKER_LOBBY_NOT_FOUND":
            raise
    except CommandFailed:
        # The lobby ends by itself after its heartbeat timeout.
        return
