"""Complete WebSocket servers with the helpers: short, and without leaks of slots."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import hosting_game
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.clients.service import developer as developer
from tests.clients.service import full_service as full_service
from tests.clients.service import game as game
from tests.support import game_programs
from tests.support.free_ports import free_port
from tests.support.full_service import Developer, eventually
from tests.support.game_back_end import GameBackEnd
from tests.support.lobby_game import TIER
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

SERVER: Final = ROOT / "clients/python/example_server.py"
NODE_HELPER: Final = ROOT / "build/clients/typescript/server.js"
MAX_SERVER_LINES: Final = 30
NODE_PROGRAM: Final = """
import { EventEmitter } from "node:events";
const { LobbyServer } = await import(process.argv[1]);
const lobby = new LobbyServer({});
const socket = new EventEmitter();
const play = (one, player) => console.log(one === socket && player ? "plays" : "wrong");
await lobby.websocket(play)(socket, { url: "/?token=a" });
const drained = lobby.drained(60000).then(() => "drained");
lobby.stop();
await new Promise((resolve) => setImmediate(resolve));
console.log(await Promise.race([drained, "waits"]));
socket.emit("close");
console.log(await drained);
await lobby.close();
"""


@asynccontextmanager
async def running_server(port: int, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    helper = str(ROOT / "clients/python")
    environment = {**os.environ, "PYTHONPATH": helper, "PORT": str(port), **variables}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        assert json.loads(line)["message"] == "ready"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def scores(player: ClientConnection, count: int) -> list[int]:
    """Waits for a message with this number of players. Returns their scores."""
    async with asyncio.timeout(PATIENCE_S):
        while len(players := json.loads(await player.recv())["players"]) != count:
            pass
    return [one[2] for one in players]


def test_python_server_is_short() -> None:
    assert len(SERVER.read_text().splitlines()) <= MAX_SERVER_LINES


async def test_python_server_plays_without_a_service() -> None:
    port = free_port()
    async with running_server(port) as process:
        url = f"ws://127.0.0.1:{port}/?token=any"
        async with connect(url) as one, connect(url) as other:
            await one.send("[300, 200]")
            assert await scores(other, 2)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


@pytest.mark.full
async def test_python_server_plays_with_the_service(developer: Developer, game: Any) -> None:
    port = free_port()
    place = {"game_id": game["game_id"], "namespace_id": "prod", "game_mode": "duel"}
    tokens, call = game["tokens"], developer.client.call
    ports = {"game": {"address": "127.0.0.1", "port": port}}
    lobby = (await call("attach", {**place, "ports": ports}, token=tokens["service_token"])).body
    url = f"http://{developer.full_service.ready['http']}"
    variables = {"HOSTING_API_URL": url, "HOSTING_LOBBY_TOKEN": lobby["lobby_token"]}

    async def player_count() -> int:
        return int(
            (await call("statistics", {}, token=tokens["public_token"])).body["player_count"]
        )

    async with running_server(port, **variables) as process:
        join = {"lobby_id": lobby["lobby_id"]}
        token = (await call("join", join, token=tokens["public_token"])).body["player"]["token"]
        async with connect(f"ws://127.0.0.1:{port}/?token={token}") as player:
            await scores(player, 1)
            assert await player_count() == 1
            async with connect(f"ws://127.0.0.1:{port}/?token=player_forged") as refused:
                with pytest.raises(ConnectionClosed, match="PLAYER_TOKEN_INVALID"):
                    await refused.recv()
            await player.send("not a position")
            await asyncio.wait_for(player.wait_closed(), PATIENCE_S)

        async def is_released() -> bool:
            return await player_count() == 0

        await eventually(is_released)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    answer = await call("join", join, token=tokens["public_token"])
    assert answer.code == "MATCHMAKER_LOBBY_CLOSED"


@pytest.mark.full
async def test_service_runs_the_python_server(developer: Developer) -> None:
    game_id = await developer.game()
    library = Path(websockets.__file__).parent
    files = {f"websockets/{path.relative_to(library)}": path for path in library.rglob("*.py")}
    files |= {"example_server.py": SERVER, "hosting_game.py": Path(hosting_game.__file__)}
    contents = {name: path.read_bytes() for name, path in files.items()}
    archive = game_programs.server_archive("python3", "example_server.py", **contents)
    back_end = GameBackEnd(developer, game_id, await developer.service_token(game_id))
    docker = {"image_id": await back_end.build(archive), "ports": {"game": {"protocol": "http"}}}
    modes = {"catch": {"tier": TIER, "max_players": 8, "docker": docker}}
    version_id = await developer.version(game_id, {"matchmaker": {"game_modes": modes}})
    await developer.good("set_version", game_id=game_id, namespace_id="prod", version_id=version_id)
    url = f"http://{developer.full_service.ready['http']}"
    matchmaker = hosting_game.Matchmaker(url, await developer.public_token(game_id))
    async with connect((await matchmaker.find("catch")).websocket_url()) as player:
        await scores(player, 1)
        async with connect((await matchmaker.find("catch")).websocket_url()) as other:
            assert await scores(other, 2) == [0, 0]


def test_websocket_listener_of_node_releases_its_player() -> None:
    if not NODE_HELPER.exists():
        pytest.skip("no driver: apt-get install nodejs npm, then `make client-drivers`")
    command = ["node", "--input-type=module", "-e", NODE_PROGRAM, NODE_HELPER.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    lines = [line for line in result.stdout.splitlines() if "stopping" not in line]
    assert lines == ["plays", "waits", "drained"]
