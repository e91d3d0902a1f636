"""Services on machines of their own, with the command of their operator, and a published game."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import game_programs
from tests.support.command_line import run
from tests.support.databases import KINDS, Databases
from tests.support.full_service import Developer, FullService, ServiceClient
from tests.support.hosted_game import Hosted
from tests.support.service_process import clean_environment


class Machine:
    """A service and the command of its operator."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.service = FullService(folder, url, runtime=game_programs.SETTINGS)
        self._environment = {} if url is None else {"PYSERVICE_DATABASE_URL": url}

    def command(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(self.service.data_dir, *words, **self._environment, **environment)

    def environment(self) -> dict[str, str]:
        return clean_environment(**self._environment)

    def good(self, *words: str, **environment: str) -> str:
        ended = self.command(*words, **environment)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def refusal(self, *words: str, **environment: str) -> str:
        ended = self.command(*words, **environment)
        assert (ended.returncode, ended.stdout) == (1, "")
        return ended.stderr

    async def publish(self) -> PublishedGame:
        """Starts the service, and publishes a game."""
        await asyncio.to_thread(self.service.start)
        async with self.service.open_client("http") as client:
            return await PublishedGame.publish(self.service, client)


class Machines:
    def __init__(self, folder: Path, databases: Databases, kind: str) -> None:
        self._folder, self._databases, self._kind = folder, databases, kind
        self._all: list[Machine] = []

    def new(self) -> Machine:
        machine = Machine(self._folder / f"m{len(self._all)}", self._databases.url(self._kind))
        self._all.append(machine)
        return machine

    def close(self) -> None:
        for machine in self._all:
            machine.service.close()


class PublishedGame:
    """A game with one player in a lobby. Its clients have a public token."""

    def __init__(self, game_id: str, tokens: dict[str, str]) -> None:
        self.game_id = game_id
        self.tokens = tokens

    @classmethod
    async def publish(cls, service: FullService, client: ServiceClient) -> PublishedGame:
        developer = Developer(service, client)
        game_id = await developer.game()
        hosted = Hosted(developer, game_id)
        await hosted.upload()
        config = {"matchmaker": {"game_modes": {"hosted": hosted.mode()}}}
        version_id = await developer.version(game_id, config)
        await developer.good(
            "set_version", game_id=game_id, namespace_id="prod", version_id=version_id
        )
        tokens = {
            "public": await developer.public_token(game_id),
            "environment": await developer.service_token(game_id),
            "cloud": developer.token,
        }
        game = cls(game_id, tokens)
        lobby = await developer.lobby(game_id, tokens["environment"], "hosted")
        tokens["lobby"] = lobby["lobby_token"]
        tokens["player"] = (await game.join(client, lobby["lobby_id"]))["player"]["token"]
        return game

    async def join(self, client: ServiceClient, lobby_id: str) -> Any:
        joined = await client.call("join", {"lobby_id": lobby_id}, token=self.tokens["public"])
        assert joined.code == "OK", joined
        return joined.body

    async def find(self, client: ServiceClient) -> Any:
        found = await client.call("find", {"game_modes": ["hosted"]}, token=self.tokens["public"])
        assert found.code == "OK", (found.metadata, found.body["metadata"])
        return found.body


@pytest.fixture(params=KINDS)
def machines(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> Iterator[Machines]:
    machines = Machines(tmp_path, databases, request.param)
    yield machines
    machines.close()


@pytest.fixture
def local(databases: Databases, tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path, databases, "sqlite")
    yield machines
    machines.close()
