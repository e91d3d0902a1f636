"""Fixtures of the contract tests. All tests share one data plane, and each test runs over HTTP and
gRPC.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.data_plane_clients import Fields, PlaneClient, TransportResponse
from tests.support.killable_plane import GAME, NAMESPACE, Plane

MODES: dict[str, dict[str, Any]] = {
    "duel": {"max_players": 2},
    "party": {"max_players": 4, "max_players_direct": 5, "max_players_party": 3},
    "quick": {"max_players": 2, "player_token_ttl": 5_000},
    "quiet": {"max_players": 2, "listable": False, "taggable": False},
    "invited": {"max_players": 2, "actions": {"find": {"enabled": False}}},
    "public": {"max_players": 2, "actions": {"join": {"enabled": False}}},
    "elsewhere": {
        "max_players": 2,
        "regions": {"far": {}},
        "actions": {"create": {"enabled": True}},
    },
    "made": {"max_players": 2, "taggable": False, "actions": {"create": {"enabled": True}}},
    "ranged": {
        "max_players": 2,
        "docker": {
            "network_mode": "host",
            "ports": {
                "game": {
                    "protocol": "udp",
                    "proxy": "none",
                    "port_range": {"min": 20000, "max": 20010},
                }
            },
        },
    },
    "secure": {
        "max_players": 2,
        "docker": {"ports": {"game": {"protocol": "https"}, "voice": {"protocol": "udp"}}},
    },
}
REGIONS = [
    {"name_id": "local", "region_display_name": "Local", "latitude": 50.1, "longitude": 8.7},
    {"name_id": "far", "region_display_name": "Far away", "latitude": -33.9, "longitude": 151.2},
]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["front", pytest.param("python", marks=pytest.mark.full)])
async def plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Plane]:
    """The data plane, behind its front or without it."""
    folder: Path = tmp_path_factory.mktemp("contract")
    settings = {"regions": REGIONS, "trusted_proxies": ["127.0.0.1"]}
    if request.param == "python":
        settings["front"] = "off"
    plane = Plane(folder, modes=MODES, settings=settings)
    try:
        await plane.start()
        yield plane
    finally:
        plane.end()


@pytest.fixture(scope="module")
async def public_token(plane: Plane) -> str:
    return await plane.public_token()


@pytest.fixture(params=["http", "grpc"])
async def client(request: pytest.FixtureRequest, plane: Plane) -> AsyncIterator[PlaneClient]:
    client: PlaneClient = plane.http_client() if request.param == "http" else plane.grpc_client()
    try:
        yield client
    finally:
        await client.close()


@dataclass
class Lobby:
    id: str
    token: str


class Game:
    def __init__(self, client: PlaneClient, plane: Plane, public_token: str) -> None:
        self.service_client = client
        self.public_token = public_token
        self.service_token = plane.service_token
        self._plane = plane
        self.attached: list[Lobby] = []

    async def call_as_client(
        self, operation: str, fields: Fields | None = None, key: str | None = None
    ) -> TransportResponse:
        return await self.service_client.call(operation, fields, token=self.public_token, key=key)

    async def call_as_back_end(
        self, operation: str, fields: Fields | None = None, key: str | None = None
    ) -> TransportResponse:
        return await self.service_client.call(operation, fields, token=self.service_token, key=key)

    async def call_as_server(
        self, lobby: Lobby, operation: str, fields: Fields | None = None, key: str | None = None
    ) -> TransportResponse:
        return await self.service_client.call(operation, fields, token=lobby.token, key=key)

    async def attach(self, mode: str = "duel", *, ready: bool = True, **fields: Any) -> Lobby:
        ports = {"game": {"address": "127.0.0.1", "port": 7777}}
        request = {
            "game_id": GAME,
            "namespace_id": NAMESPACE,
            "game_mode": mode,
            "ports": ports,
            **fields,
        }
        answer = await self.call_as_back_end("attach", request)
        assert answer.code == "OK", answer
        lobby = Lobby(answer.body["lobby_id"], answer.body["lobby_token"])
        self.attached.append(lobby)
        if ready:
            assert (await self.call_as_server(lobby, "ready")).code == "OK"
        return lobby

    async def join(self, lobby: Lobby, **fields: Any) -> str:
        answer = await self.call_as_client("join", {"lobby_id": lobby.id, **fields})
        assert answer.code == "OK", answer
        return answer.tokens[0]

    async def held_slots(self) -> int:
        return int(await self._plane.metric("hosting_slots", state="held"))

    async def detach_all(self) -> None:
        for lobby in self.attached:
            await self.call_as_back_end("detach", {"game_id": GAME, "lobby_id": lobby.id})


@pytest.fixture
async def game(client: PlaneClient, plane: Plane, public_token: str) -> AsyncIterator[Game]:
    game = Game(client, plane, public_token)
    yield game
    await game.detach_all()


@pytest.fixture(autouse=True)
def _no_left_over(plane: Plane) -> Iterator[None]:
    """Fails if the shared data plane has ended during a test."""
    yield
    assert plane.process is not None
    assert plane.process.poll() is None, plane.log_tail()
