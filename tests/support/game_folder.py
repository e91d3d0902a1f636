"""Folder of a game that a test deploys to a running service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from pyservice_cli.api import Answer, Api
from pyservice_cli.connections import TOKEN_VARIABLE, URL_VARIABLE, Connection
from tests.support import game_programs
from tests.support.developer_commands import Ended, run_command
from tests.support.full_service import FullService
from tests.support.waiting import until

SERVER: Final = (game_programs.FOLDER / "server.py").read_text()
GAME: Final = f"""
game = "{{name}}"
[build]
command = ["python3", "-S", "server.py"]
env.PATH = "{game_programs.PYTHON_PATH}"
[matchmaker]
tier = "basic-1d16"
docker.ports.game.protocol = "tcp"
[matchmaker.game_modes.duel]
"""
SITE: Final = '\n[cdn]\nbuild_output = "page"\n'


class GameFolder:
    """The folder of a game, and the commands in it."""

    def __init__(self, path: Path, name: str, api: Api, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.api = api
        self._capsys = capsys
        self.place = f"/cloud/games/{name}/namespaces/prod"
        self.game = f"/cloud/games/{name}"
        self.settings = GAME.format(name=name)
        self.write("")
        (path / "server.py").write_text(SERVER)

    def write(self, more: str) -> None:
        (self.path / "hosting.toml").write_text(self.settings + more)

    def call(self, *words: str) -> Ended:
        return run_command(self._capsys, *words)

    def deployed(self, *words: str) -> Ended:
        ended = self.call("deploy", *words)
        assert ended.status == 0, ended
        return ended

    def running_version(self) -> str:
        return str(self.api.get(self.place)["namespace"]["version_id"])

    def lobbies(self) -> list[Answer]:
        return list(self.api.get(f"{self.place}/logs/lobbies")["lobbies"])

    def ended_lobbies(self, count: int) -> list[Answer]:
        """Waits until the records have so many lobbies, and all of them have ended."""

        def are_over() -> bool:
            lobbies = self.lobbies()
            return len(lobbies) == count and all("stopped" in one["status"] for one in lobbies)

        until(are_over)
        return self.lobbies()


def open_folder(
    path: Path,
    name: str,
    service: FullService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> GameFolder:
    """Makes the folder of a new game, in which the commands of this process run."""
    path.mkdir()
    monkeypatch.chdir(path)
    url = f"http://{service.ready['http']}"
    monkeypatch.setenv(URL_VARIABLE, url)
    monkeypatch.setenv(TOKEN_VARIABLE, service.cloud_token)
    return GameFolder(path, name, Api(Connection(url, service.cloud_token, "test")), capsys)


@pytest.fixture
def folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    full_service: FullService,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> GameFolder:
    words = re.findall("[a-z0-9]+", request.node.name.removeprefix("test_").lower())
    name = "-".join(words)[:40].strip("-")
    return open_folder(tmp_path / "game", name, full_service, monkeypatch, capsys)
