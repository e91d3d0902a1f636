"""Players are independent of the control plane and its database, across restarts and repeated
kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support import game_programs
from tests.support.databases import KINDS, Databases, Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.full_service import Developer, FullService, ServiceClient, eventually
from tests.support.lobby_game import Game
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

TRANSPORTS: Final = ("http", "grpc")
ORIGIN: Final = "https://play.example.com"
CONFIG: Final = {
    "matchmaker": {
        "game_modes": {
            "arena": {"max_players": 64, "docker": {"ports": {"game": {"protocol": "http"}}}}
        }
    }
}


@dataclass(frozen=True, slots=True)
class PlayedGame:
    game_id: str
    public_token: str
    service_token: str
    lobby_id: str
    lobby_token: str


async def built(full_service: FullService, origin: str = ORIGIN) -> PlayedGame:
    async with full_service.open_client("http") as client:
        developer = Developer(full_service, client)
        game_id = await developer.game()
        namespace_fields = {"game_id": game_id, "namespace_id": "prod"}
        version_id = await developer.version(game_id, CONFIG)
        await developer.good("set_version", **namespace_fields, version_id=version_id)
        await developer.good(
            "add_domain", **namespace_fields, domain=origin.removeprefix("https://")
        )
        service_token = await developer.service_token(game_id)
        public_token = await developer.public_token(game_id)
        lobby = await developer.lobby(game_id, service_token)
    ids = (lobby["lobby_id"], lobby["lobby_token"])
    return PlayedGame(game_id, public_token, service_token, *ids)


async def good(client: ServiceClient, slug: str, fields: Any, **credentials: Any) -> Any:
    answer = await client.call(slug, fields, **credentials)
    assert answer.code == "OK", (slug, credentials, answer)
    return answer.body


async def play(
    client: ServiceClient, lobby_token: str, slug: str, fields: Any, **credentials: Any
) -> None:
    placement = await good(client, slug, fields, **credentials)
    player = {"player_token": placement["player"]["token"]}
    await good(client, "connected", player, token=lobby_token)
    await good(client, "disconnected", player, token=lobby_token)


async def all_players_play(
    full_service: FullService, game: PlayedGame, origin: str = ORIGIN
) -> None:
    for transport in TRANSPORTS:
        async with full_service.open_client(transport) as client:
            find, join = {"game_modes": ["arena"]}, {"lobby_id": game.lobby_id}
            for credentials in ({"token": game.public_token}, {"origin": origin}):
                await play(client, game.lobby_token, "find", find, **credentials)
                await play(client, game.lobby_token, "join", join, **credentials)
                await good(client, "list", {}, **credentials)
            fields = {
                "game_id": game.game_id,
                "namespace_id": "prod",
                "game_mode": "arena",
                "ports": {"game": {"address": "127.0.0.1", "port": 4000}},
            }
            lobby = await good(client, "attach", fields, token=game.service_token)
            await good(client, "ready", {}, token=lobby["lobby_token"])
            join = {"lobby_id": lobby["lobby_id"]}
            await play(client, lobby["lobby_token"], "join", join, token=game.public_token)
            await good(client, "closed", {"is_closed": True}, token=lobby["lobby_token"])
            assert (
                await client.call("find", find, origin="https://elsewhere.example")
            ).code != "OK"
            assert (await client.call("find", find, token="pub_nobody")).code != "OK"


async def check_unavailable(full_service: FullService, game: PlayedGame) -> None:
    async with httpx.AsyncClient(
        base_url=f"http://{full_service.ready['http']}", timeout=PATIENCE_S
    ) as client:
        answer = await client.get(
            f"/cloud/games/{game.game_id}", headers={"authorization": "Bearer cloud_any"}
        )
    assert answer.status_code == 503
    assert answer.json()["code"] == "CONTROL_PLANE_UNAVAILABLE"
    assert int(answer.headers["retry-after"]) > 0


@pytest.fixture(params=KINDS)
def full_service(
    request: pytest.FixtureRequest, tmp_path: Path, databases: Databases
) -> Iterator[FullService]:
    full_service = FullService(tmp_path / "s", databases.url(request.param))
    yield full_service
    full_service.close()


async def test_data_plane_restarts_without_control_plane_or_database(
    full_service: FullService, databases: Databases
) -> None:
    await asyncio.to_thread(full_service.start)
    game = await built(full_service)
    await all_players_play(full_service, game)
    assert full_service.stop() == 0
    databases.remove(full_service.database_url, full_service.data_dir / "control")
    shutil.rmtree(full_service.data_dir / "control")
    for _ in range(2):
        await asyncio.to_thread(full_service.start, "--role=data")
        await all_players_play(full_service, game)
        await check_unavailable(full_service, game)
        assert full_service.stop() == 0
    await asyncio.to_thread(full_service.start, "--role=data")
    assert full_service.process is not None
    full_service.process.kill()
    full_service.process.wait(30)
    await asyncio.to_thread(full_service.start, "--role=data")
    await all_players_play(full_service, game)
    assert full_service.stop() == 0


async def test_players_are_served_if_the_control_plane_cannot_start(
    full_service: FullService, databases: Databases
) -> None:
    await asyncio.to_thread(full_service.start)
    game = await built(full_service)
    assert full_service.stop() == 0
    databases.remove(full_service.database_url, full_service.data_dir / "control")
    if full_service.database_url is None:
        shutil.rmtree(full_service.data_dir / "control")
        (full_service.data_dir / "control").touch()
    # The ready file waits for the control plane, but players are served earlier.
    full_service.spawn()

    async def is_ready() -> bool:
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient(
                base_url=f"http://{full_service.ready['metrics']}", timeout=PATIENCE_S
            ) as client:
                return (await client.get("/readyz")).status_code == 200
        return False

    await eventually(is_ready, 60)
    await all_players_play(full_service, game)
    await check_unavailable(full_service, game)
    full_service.close()


async def test_new_database_does_not_affect_players_of_old_namespaces(
    full_service: FullService, databases: Databases
) -> None:
    await asyncio.to_thread(full_service.start)
    game = await built(full_service)
    assert full_service.stop() == 0
    databases.empty(full_service.database_url, full_service.data_dir / "control")
    await asyncio.to_thread(full_service.take_over)
    await asyncio.to_thread(full_service.start)
    await all_players_play(full_service, game)
    other = "https://other.example.com"
    await all_players_play(full_service, await built(full_service, other), other)
    assert full_service.stop() == 0


async def codes(full_service: FullService, game: PlayedGame) -> set[str]:
    codes = set()
    for transport in TRANSPORTS:
        async with full_service.open_client(transport) as client:
            namespace_fields = {"game_id": game.game_id, "namespace_id": "prod"}
            limits = {"lobby_count_max": 7, "max_players": 64}
            for slug, fields in (
                ("get_namespace", namespace_fields),
                ("set_mm_config", {**namespace_fields, **limits}),
            ):
                answer = await client.call(slug, fields, token=full_service.cloud_token)
                if answer.code == "CONTROL_PLANE_UNAVAILABLE" and transport == "http":
                    assert int(answer.headers["retry-after"]) > 0
                codes.add(answer.code)
    return codes


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_database_outage_returns_503_and_players_continue(
    mode: str, server: Server, tmp_path: Path
) -> None:
    full_service = FullService(tmp_path / "s", server.url())
    try:
        await asyncio.to_thread(full_service.start)
        game = await built(full_service)
        pid = full_service.control_pid()
        await asyncio.to_thread(server.stop, mode)
        for _ in range(2):
            assert await codes(full_service, game) == {"CONTROL_PLANE_UNAVAILABLE"}
            await all_players_play(full_service, game)
        await asyncio.to_thread(server.start)

        async def is_well() -> bool:
            return await codes(full_service, game) == {"OK"}

        await eventually(is_well)
        assert full_service.control_pid() == pid
        assert full_service.stop() == 0
    finally:
        full_service.close()


async def test_game_servers_start_while_only_the_database_is_down(
    server: Server, tmp_path: Path
) -> None:
    full_service = FullService(tmp_path / "s", server.url(), runtime=game_programs.SETTINGS)
    try:
        await asyncio.to_thread(full_service.start)
        async with full_service.open_client("http") as client:
            developer = Developer(full_service, client)
            game = Game(developer, await developer.game())
            await game.deploy(hosted={"max_players": 1, "max_players_direct": 1})
            first = await game.find_lobby("hosted")
            await asyncio.to_thread(server.stop, "fast")
            second = await game.find_lobby("hosted")
            lobbies = [found["lobby"]["lobby_id"] for found in (first, second)]
            assert lobbies[0] != lobbies[1]
            await asyncio.to_thread(server.start)
            await eventually(lambda: game.record(lobbies[1]))
    finally:
        full_service.close()


class PlayerLoad:
    def __init__(self, full_service: FullService, game: PlayedGame) -> None:
        self._service = full_service
        self._game = game
        self._is_over = False
        self.failures: list[Any] = []
        self.counts: Counter[str] = Counter()

    async def live(self, each: int = 2) -> None:
        requests: list[tuple[str, str, Any, dict[str, str]]] = []
        for transport in TRANSPORTS:
            for credentials in ({"token": self._game.public_token}, {"origin": ORIGIN}):
                requests.append((transport, "find", {"game_modes": ["arena"]}, credentials))
                requests.append((transport, "join", {"lobby_id": self._game.lobby_id}, credentials))
        await asyncio.gather(*(self._connect_and_leave(*request) for request in requests * each))

    async def goes_on(self, games: int = 20) -> None:
        operations = [
            f"{transport} {slug}" for transport in TRANSPORTS for slug in ("find", "join")
        ]
        minimums = {operation: self.counts[operation] + games for operation in operations}

        async def is_so() -> bool:
            return bool(self.failures) or all(
                self.counts[operation] >= minimums[operation] for operation in operations
            )

        await eventually(is_so)

    def end(self) -> None:
        self._is_over = True

    async def _connect_and_leave(
        self, transport: str, slug: str, fields: Any, credentials: dict[str, str]
    ) -> None:
        async with self._service.open_client(transport) as client:
            while not self._is_over:
                try:
                    await play(client, self._game.lobby_token, slug, fields, **credentials)
                except (AssertionError, httpx.HTTPError) as error:
                    self.failures.append(error)
                    return
                self.counts[f"{transport} {slug}"] += 1
                await asyncio.sleep(0.01)


async def kill_control_plane(full_service: FullService) -> None:
    pid = full_service.control_pid()
    os.kill(pid, signal.SIGKILL)

    async def is_back() -> bool:
        async with full_service.open_client("http") as client:
            answer = await client.call("get_games", {}, token=full_service.cloud_token)
        return full_service.control_pid() != pid and answer.code == "OK"

    await eventually(is_back, 30)


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("sqlite", 3),
        pytest.param("sqlite", 12, marks=[pytest.mark.proof, pytest.mark.timeout(400)]),
        pytest.param("postgresql", 6, marks=[pytest.mark.proof, pytest.mark.timeout(400)]),
    ],
)
async def test_repeated_control_plane_kills_fail_no_player_request(
    kind: str, kills: int, tmp_path: Path, databases: Databases
) -> None:
    full_service = FullService(tmp_path / "s", databases.url(kind))
    try:
        await asyncio.to_thread(full_service.start)
        player_load = PlayerLoad(full_service, await built(full_service))
        playing = asyncio.create_task(player_load.live())
        for _ in range(kills):
            await kill_control_plane(full_service)
            await player_load.goes_on()
        player_load.end()
        await playing
        assert player_load.failures == []
        assert full_service.stop() == 0
    finally:
        full_service.close()
