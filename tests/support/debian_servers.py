"""Unmodified game servers of Debian's packages as lobbies: found, joined and played."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.debian_packages import LIBRARIES, build_archive, fetch_packages, libraries
from tests.support.full_service import Developer, eventually
from tests.support.lobby_game import Game
from tests.support.waiting import PATIENCE_S

PACKAGES: Final = (
    *("bzflag-server", "libc-ares2"),
    *("teeworlds-server", "teeworlds-data"),
    *("pioneers-console", "pioneers-console-data", "libavahi-glib1"),
)
Play = Callable[..., Coroutine[Any, Any, None]]
TOKEN_TTL_MS: Final = 5_000
GRACE_MS: Final = 1_000
PLAYED_S: Final = 2 * (TOKEN_TTL_MS + GRACE_MS) / 1000
"""Longer than a lobby lives in which no player is counted."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_packages(tmp_path_factory.mktemp("debian"), PACKAGES)


@pytest.fixture
async def game(owner: Developer) -> Game:
    return Game(owner, await owner.game())


async def deploy(
    game: Game,
    archive: bytes,
    protocol: str,
    args: list[str],
    adapter: Mapping[str, Any],
    ttl_ms: int | None,
) -> None:
    docker = {"ports": {"game": {"protocol": protocol}}, "args": args}
    mode = {"docker": docker, "adapter": {"players": "edge", **adapter}}
    limits = {} if ttl_ms is None else {"player_token_ttl": ttl_ms}
    await game.deploy(archive=archive, duel={**mode, **limits})


async def has_players(game: Game, lobby_id: str, expected: int) -> None:
    async def matches() -> bool:
        return await player_count(game, lobby_id) == expected

    await eventually(matches)


async def player_count(game: Game, lobby_id: str) -> int | None:
    client = game.developer.client
    answer = await client.call("list", {"include_state": False}, token=game.public_token)
    assert answer.code == "OK", answer
    found = [one for one in answer.body["lobbies"] if one["lobby_id"] == lobby_id]
    return int(found[0]["total_player_count"]) if found else None


async def is_played(game: Game, lobby_id: str, players: int, played_s: float) -> None:
    """Plays for a time, in which the players stay counted."""
    await has_players(game, lobby_id, players)
    end_s = asyncio.get_running_loop().time() + played_s
    while asyncio.get_running_loop().time() < end_s:
        assert await player_count(game, lobby_id) == players
        await asyncio.sleep(1)


async def find(game: Game, lobby_id: str | None = None) -> tuple[str, str, int]:
    """Finds a lobby, or joins the one with an id. Returns its id and address."""
    if lobby_id is None:
        placement = await game.find_lobby("duel")
    else:
        answer = await game.developer.client.call(
            "join", {"lobby_id": lobby_id}, token=game.public_token
        )
        assert answer.code == "OK", answer
        placement = answer.body
    port = placement["ports"]["game"]
    return placement["lobby"]["lobby_id"], port["hostname"], port["port"]


@contextlib.contextmanager
def program(root: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program of the packages until the end of the block."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(root / LIBRARIES), "TERM": "dumb"}
    process = subprocess.Popen(
        [root / "usr/games" / command[0], *command[1:]],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


async def play_bzflag(
    game: Game, packages: Path, played_s: float = PLAYED_S, ttl_ms: int | None = TOKEN_TTL_MS
) -> None:
    archive = build_archive(
        ["./bzfs"], {"bzfs": packages / "usr/games/bzfs", **libraries(packages)}
    )
    args = ["-p", "$(PORT_GAME)", "-i", "127.0.0.1"]
    await deploy(game, archive, "tcp_udp", args, {"ready": "port"}, ttl_ms)
    lobby_id, host, port = await find(game)
    with program(packages, "bzadmin", "-ui", "stdboth", f"anna@{host}:{port}") as anna:
        await has_players(game, lobby_id, 1)
        await find(game, lobby_id)
        with program(packages, "bzadmin", "-ui", "stdboth", f"ben@{host}:{port}") as ben:
            await has_players(game, lobby_id, 2)
            output = ben.stdout
            assert output is not None
            line = await asyncio.to_thread(output.readline)
            while line and b"joined the game" not in line:
                line = await asyncio.to_thread(output.readline)
            assert b"joined the game" in line
        await is_played(game, lobby_id, 1, played_s)
        assert anna.poll() is None


async def play_pioneers(
    game: Game, packages: Path, played_s: float = PLAYED_S, ttl_ms: int | None = TOKEN_TTL_MS
) -> None:
    files = {
        "server": packages / "usr/games/pioneers-server-console",
        "default.game": packages / "usr/share/games/pioneers/default.game",
    }
    archive = build_archive(["./server"], {**files, **libraries(packages)})
    args = ["-p", "$(PORT_GAME)", "--file", "default.game"]
    await deploy(game, archive, "tcp", args, {"ready": "port"}, ttl_ms)
    lobby_id, host, port = await find(game)
    address = ("-s", host, "-p", str(port))
    with program(packages, "pioneersai", *address, "-n", "Anna") as anna:
        await has_players(game, lobby_id, 1)
        await find(game, lobby_id)
        with program(packages, "pioneersai", *address, "-n", "Ben"):
            await is_played(game, lobby_id, 2, played_s)
            assert anna.poll() is None


class Teeworlds:
    """Player of Teeworlds 0.7, as far as the connection of the transport layer."""

    TOKEN, CONNECT, ACCEPT, KEEP_ALIVE = 5, 1, 2, 0

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._own = b"\1\2\3\4"
        self._token = b"\xff" * 4

    def _send(self, message: int, content: bytes = b"") -> None:
        # A control packet has flag 1, and no acknowledgement and chunks.
        self._socket.send(bytes([1 << 2, 0, 0]) + self._token + bytes([message]) + content)

    async def _ask(self, message: int, expected: int) -> bytes:
        """Repeats a message until it is answered, as the game does."""
        while True:
            self._send(message, self._own.ljust(512, b"\0"))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while True:
                        answer = await asyncio.get_running_loop().sock_recv(self._socket, 2048)
                        if answer[3:7] == self._own and answer[7] == expected:
                            return answer[8:]

    @contextlib.asynccontextmanager
    async def connected(self, host: str, port: int) -> AsyncIterator[None]:
        with self._socket:
            self._socket.connect((host, port))
            async with asyncio.timeout(PATIENCE_S):
                self._token = await self._ask(self.TOKEN, self.TOKEN)
                await self._ask(self.CONNECT, self.ACCEPT)
            alive = asyncio.create_task(self._keep_alive())
            try:
                yield
            finally:
                alive.cancel()

    async def _keep_alive(self) -> None:
        while True:
            self._send(self.KEEP_ALIVE)
            await asyncio.sleep(1)


async def play_teeworlds(
    game: Game, packages: Path, played_s: float = PLAYED_S, ttl_ms: int | None = TOKEN_TTL_MS
) -> None:
    # The fonts are links to files of other packages, and a server has no use for them.
    data = packages / "usr/share/games/teeworlds/data"
    files = {
        "teeworlds-server": packages / "usr/games/teeworlds-server",
        "data/maps": data / "maps",
        "data/mapres": data / "mapres",
    }
    archive = build_archive(["./teeworlds-server"], files)
    adapter = {"ready": "log", "log_match": "server name is '.*'$"}
    await deploy(
        game, archive, "udp", ["bindaddr 127.0.0.1", "sv_port $(PORT_GAME)"], adapter, ttl_ms
    )
    lobby_id, host, port = await find(game)
    async with Teeworlds().connected(host, port):
        await has_players(game, lobby_id, 1)
        await find(game, lobby_id)
        async with Teeworlds().connected(host, port):
            await is_played(game, lobby_id, 2, played_s)
