"""Service and game of the tests of helpers. Each case has lobbies of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from tests.support import game_programs
from tests.support.full_service import Developer, FullService, running
from tests.support.hosted_game import Hosted

FIND_WAIT_MS: Final = 2000
HEARTBEAT_GRACE_MS: Final = 300


@pytest.fixture(scope="session")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    folder = tmp_path_factory.mktemp("s")
    settings: Any = {"find_wait_ms": FIND_WAIT_MS, "heartbeat_grace_ms": HEARTBEAT_GRACE_MS}
    with running(FullService(folder, runtime=game_programs.SETTINGS, **settings)) as service:
        yield service


@pytest.fixture
async def developer(full_service: FullService) -> AsyncIterator[Developer]:
    async with full_service.open_client("http") as client:
        yield Developer(full_service, client)


@pytest.fixture
async def game(developer: Developer) -> Any:
    return await conformance_game(developer)


_games: dict[str, Any] = {}


async def conformance_game(developer: Developer) -> Any:
    """Creates the game of all cases once for each service. Each case has lobbies of its own."""
    service = str(developer.full_service.folder)
    if service not in _games:
        game_id = await developer.game()
        hosted = Hosted(developer, game_id)
        await hosted.upload()
        ports = {"game": {"protocol": "http"}}
        attached = {
            "max_players": 2,
            "taggable": True,
            "listable": True,
            "docker": {"ports": ports},
        }
        modes = {
            "duel": attached,
            "solo": {**attached, "max_players": 1},
            "secure": {**attached, "docker": {"ports": {"game": {"protocol": "https"}}}},
            "hosted": {**hosted.mode(), "listable": True},
            "hosted_off": attached,
        }
        version_id = await developer.version(game_id, {"matchmaker": {"game_modes": modes}})
        place = {"game_id": game_id, "namespace_id": "prod"}
        await developer.good("set_version", **place, version_id=version_id)
        development = await developer.good(
            "create_development_token",
            **place,
            hostname="127.0.0.1",
            ports={"game": {"port_range": {"min": 30000, "max": 30009}, "protocol": "udp"}},
        )
        tokens = {
            "public_token": await developer.public_token(game_id),
            "service_token": await developer.service_token(game_id),
            "development_token": development["token"],
        }
        _games[service] = {"game_id": game_id, "tokens": tokens}
    return _games[service]
