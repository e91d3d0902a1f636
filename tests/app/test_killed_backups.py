"""Backups of a service under load that end by SIGKILL at a random point, each with a restore after it.

Each restored service is the next one that is backed up. In every one, the clients of the game go on, and no
token of an earlier one is valid.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from pyservice.cli.admin_requests import admin_socket
from pyservice.errors import ServiceError, Unreachable
from pyservice.pb.hosting.internal.v1.admin_pb2 import RotateKeysRequest
from pyservice.rpc import InternalClient
from tests.support.databases import KINDS, Databases
from tests.support.full_service import Developer, ServiceClient
from tests.support.published_game import Machine, Machines, PublishedGame

KILLS = 10
CHANGED = "changed"
STOPPING = "SHUTTING_DOWN"
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1_200)]


class Players:
    """Players of one lobby: they join, connect and leave, as fast as one connection allows."""

    def __init__(self, game: PublishedGame, client: ServiceClient, lobby: dict[str, str]) -> None:
        self._game, self._client, self._lobby = game, client, lobby
        self.tokens: list[str] = []
        self.connected = asyncio.Event()

    async def run(self) -> None:
        while True:
            fields, public = {"lobby_id": self._lobby["lobby_id"]}, self._game.tokens["public"]
            joined = await self._client.call("join", fields, token=public)
            if joined.code == STOPPING:
                return
            assert joined.code == "OK"
            token = joined.body["player"]["token"]
            self.tokens.append(token)
            if await self.call("connected", token, f"{token}1") == STOPPING:
                return
            assert await self.call("connected", token, f"{token}2") in (
                STOPPING,
                "PLAYER_TOKEN_CONSUMED",
            )
            assert await self.call("disconnected", token) in (STOPPING, "OK")
            self.connected.set()

    async def call(self, slug: str, player: str, key: str | None = None) -> str:
        fields = {"player_token": player}
        token = self._lobby["lobby_token"]
        return (await self._client.call(slug, fields, token=token, key=key)).code


class Changes:
    """Changes of a developer. Every 50th version gets its namespace, a new key, and a token that the key signs."""

    def __init__(self, game: PublishedGame) -> None:
        self._game_id = game.game_id
        self.tokens: dict[str, str] = {}
        """Public tokens by id."""

    async def run(self, developer: Developer) -> None:
        place = {"game_id": self._game_id, "namespace_id": CHANGED}
        for number in range(1_000_000):
            created = await developer.call(
                "create_version", game_id=self._game_id, display_name=f"1.0.{number}", config={}
            )
            answers = [created]
            if number % 50 == 0 and created.code == "OK":
                version_id = created.body["version_id"]
                answers.append(await developer.call("set_version", **place, version_id=version_id))
                await self._rotate(developer)
                answers.append(await developer.call("create_public_token", **place))
                if answers[-1].code == "OK":
                    self.tokens[answers[-1].body["token_id"]] = answers[-1].body["token"]
            codes = {answer.code for answer in answers}
            if codes & {STOPPING, "CONTROL_PLANE_UNAVAILABLE"}:
                return
            assert codes == {"OK"}

    async def prepare(self, developer: Developer) -> None:
        version_id = await developer.version(self._game_id)
        fields = {"game_id": self._game_id, "version_id": version_id}
        await developer.good("create_namespace", **fields, display_name="Changed", name_id=CHANGED)

    async def _rotate(self, developer: Developer) -> None:
        async with InternalClient(admin_socket(developer.full_service.data_dir)) as client:
            with suppress(Unreachable, ServiceError):
                await client.call("hosting.internal.v1.Admin.RotateKeys", RotateKeysRequest())

    async def require_valid(self, developer: Developer) -> None:
        """Each token of the records is valid. Tokens since the backup are lost."""
        place = {"game_id": self._game_id, "namespace_id": CHANGED}
        listed = await developer.good("list_namespace_tokens", **place)
        for one in listed["tokens"]:
            # The response to its creation can be lost.
            token = self.tokens.get(one["token_id"])
            if token is not None:
                assert (await developer.client.call("list", {}, token=token)).code == "OK"


@asynccontextmanager
async def playing(
    machine: Machine, game: PublishedGame, changes: Changes
) -> AsyncIterator[Players]:
    """Players, and changes of a developer, until the service is killed or the block ends."""
    async with machine.service.open_client("http") as client:
        developer = Developer(machine.service, client, game.tokens["cloud"])
        lobby = await developer.lobby(game.game_id, game.tokens["environment"], "hosted")
        players = Players(game, client, lobby)
        work = [asyncio.create_task(one) for one in (players.run(), changes.run(developer))]
        try:
            await asyncio.wait_for(players.connected.wait(), 60)
            yield players
        finally:
            for task in work:
                task.cancel()
            ended = await asyncio.gather(*work, return_exceptions=True)
        allowed = (type(None), asyncio.CancelledError, httpx.TransportError)
        assert all(isinstance(one, allowed) for one in ended), ended


async def _kill_backup(machine: Machine, target: str, point: random.Random, usual_s: float) -> None:
    """Kills the backup or the service at a random point of the backup."""
    words = ("backup", "create", target, "--data-dir", str(machine.service.data_dir))
    backup = subprocess.Popen(
        [sys.executable, "-m", "pyservice", *words],
        env=machine.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(backup.wait, point.uniform(0, usual_s))
    victim = point.choice([backup, machine.service.process])
    assert victim is not None
    victim.kill()
    await asyncio.to_thread(backup.wait)


async def _require_tokens(
    machine: Machine, game: PublishedGame, changes: Changes, earlier: list[str]
) -> None:
    """Tokens of players and lobbies of before are invalid, and those of the records are valid."""
    async with machine.service.open_client("http") as client:
        assert await game.find(client)
        assert (
            await client.call("heartbeat", {}, token=game.tokens["lobby"])
        ).code == "TOKEN_INVALID"
        developer = Developer(machine.service, client, game.tokens["cloud"])
        lobby = await developer.lobby(game.game_id, game.tokens["environment"], "hosted")
        players = Players(game, client, lobby)
        for token in earlier:
            assert await players.call("connected", token) == "PLAYER_TOKEN_INVALID"
        await changes.require_valid(developer)


@pytest.mark.parametrize(
    "seed",
    [
        *(pytest.param(seed, marks=pytest.mark.full) for seed in range(5)),
        *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(5, 105)),
    ],
)
async def test_clients_go_on_after_a_killed_backup(
    databases: Databases, tmp_path: Path, seed: int
) -> None:
    point, target = random.Random(seed), str(tmp_path / "backups")
    machines = Machines(tmp_path, databases, KINDS[seed % len(KINDS)])
    try:
        machine = machines.new()
        game = await machine.publish()
        changes = Changes(game)
        async with machine.service.open_client("http") as client:
            await changes.prepare(Developer(machine.service, client, game.tokens["cloud"]))
        began_s = time.monotonic()
        machine.good("backup", "create", target)
        usual_s = time.monotonic() - began_s
        earlier = [game.tokens["player"]]
        for _ in range(KILLS):
            async with playing(machine, game, changes) as players:
                await _kill_backup(machine, target, point, usual_s)
            earlier += players.tokens[-3:]
            machine.service.close()
            machine = machines.new()
            machine.good("restore", target, "--yes")
            await asyncio.to_thread(machine.service.start)
            await _require_tokens(machine, game, changes, earlier)
    finally:
        machines.close()
