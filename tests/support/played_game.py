"""Game in a folder of its own, deployed by the command line, with lobbies, servers and players."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice_cli.api import Answer, Api
from pyservice_cli.connections import Connection
from tests.support import game_programs
from tests.support.developer_commands import Command
from tests.support.full_service import FullService
from tests.support.waiting import PATIENCE_S, until

GAME: Final = f"""
game = "{{name}}"
[build]
command = ["python3", "-S", "server.py"]
env.PATH = "{game_programs.PYTHON_PATH}"
[cdn]
build_output = "page"
[matchmaker]
tier = "basic-1d16"
docker.env.PLAY = "guests"
docker.ports.game = {{{{ protocol = "tcp", dev_port = 7001 }}}}
[matchmaker.game_modes.duel]
[matchmaker.game_modes.royale]
"""


class PlayedGame:
    def __init__(self, folder: Path, command: Command, full_service: FullService) -> None:
        self.name = folder.parent.name.replace("_", "-").strip("-")
        self.path = f"/cloud/games/{self.name}"
        self.url = f"http://{full_service.ready['http']}"
        self.command = command
        self.api = Api(Connection(self.url, full_service.cloud_token, "test"))
        (folder / "hosting.toml").write_text(GAME.format(name=self.name))
        (folder / "server.py").write_text((game_programs.FOLDER / "server.py").read_text())
        (folder / "page").mkdir()
        (folder / "page/index.html").write_text("hello")
        self.deployed: dict[str, Any] = self.good("deploy", "--no-trial")

    def good(self, *words: str) -> Any:
        """Runs a command that must succeed, and returns its JSON."""
        ended = self.command(*words, "--json")
        assert ended.status == 0, ended
        return ended.result

    def find(self, mode: str = "duel") -> Answer:
        token = self.good("public-token")["token"]
        found = Api(Connection(self.url, token, "player"))
        return found.post("/matchmaker/lobbies/find", {"game_modes": [mode]})

    def lobby(self, mode: str = "duel") -> str:
        """Starts a lobby, and waits until the developer can read its log. Returns its id."""
        lobby_id = str(self.find(mode)["lobby"]["lobby_id"])
        path = f"{self.path}/matchmaker/lobbies/{lobby_id}/logs"
        until(lambda: self.has_line(path, "ready"))
        return lobby_id

    def end_lobby(self, lobby_id: str) -> None:
        self.api.delete(f"{self.path}/matchmaker/lobbies/{lobby_id}")

    @contextlib.contextmanager
    def player(self, mode: str = "duel") -> Iterator[bytes]:
        """A connected player in a lobby. Yields the first answer of the game server."""
        found = self.find(mode)
        port = found["ports"]["game"]
        with socket.create_connection((port["hostname"], port["port"]), PATIENCE_S) as connection:
            connection.sendall(found["player"]["token"].encode())
            answer = connection.recv(65_536)
            assert answer, "the game server closed the connection"
            yield answer

    def server(self, play: str = "") -> str:
        """Starts a dynamic server, and waits for its first line. Returns its id."""
        (build,) = self.good("list", "builds")["builds"]
        runtime = {
            "build": build["build_id"],
            "arguments": ["alone"],
            "environment": {"PLAY": play},
        }
        body = {
            "datacenter": "local",
            "tags": {},
            "resources": {"cpu": 10, "memory": 64},
            "network": {"ports": {}},
            "runtime": runtime,
        }
        place = f"/games/{self.name}/environments/prod/servers"
        server_id = str(self.api.post(place, body)["server"]["id"])
        until(lambda: self.has_line(f"{place}/{server_id}/logs", "begins alone"))
        return server_id

    def has_line(self, path: str, start: str) -> bool:
        lines = self.api.get(path, stream="std_out")["lines"]
        return any(line.startswith(start) for line in lines)

    @contextlib.contextmanager
    def running_command(self, *words: str) -> Iterator[RunningCommand]:
        """A command that goes on until the end of the block."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pyservice_cli", *words],
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield RunningCommand(process)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


class RunningCommand:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self, wanted: Callable[[str], object]) -> str:
        """Returns the next line of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if wanted(line):
                return line
        raise AssertionError(f"the command ended with {self.process.wait()}")


@pytest.fixture
def played(
    folder: Path, command: Command, full_service: FullService, logged_in: None
) -> PlayedGame:
    return PlayedGame(folder, command, full_service)
