"""Conformance cases of the helpers in `clients/`, each once more with lost responses."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients import conformance
from tests.clients.conformance import CASES, run_case
from tests.clients.python_mutations import write_mutation
from tests.support import game_programs
from tests.support.full_service import Developer, FullService, running
from tests.support.hosted_game import Hosted
from tests.support.tracked_files import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.full]

BUILT = ROOT / "build/clients"
DRIVERS = {
    "python": (sys.executable, "-W", "error", str(ROOT / "clients/python/conformance_driver.py")),
    "typescript": ("node", str(BUILT / "typescript/conformance-driver.js")),
    "csharp": ("mono", str(BUILT / "csharp/ConformanceDriver.exe")),
    "cpp": (str(BUILT / "cpp/conformance_driver"),),
}
PACKAGES = {
    "typescript": "nodejs npm",
    "csharp": "mono-mcs mono-runtime libmono-posix4.0-cil libmono-system-net-http4.0-cil",
    "cpp": "g++ libcurl4-openssl-dev",
}
SMOKE = "find reserves a slot that the lobby server can confirm"
FIND_WAIT_MS = 2000
HEARTBEAT_GRACE_MS = 300


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


def driver_command(language: str) -> Sequence[str]:
    command = DRIVERS[language]
    if not Path(command[-1]).exists():
        packages = PACKAGES[language]
        pytest.skip(f"no driver: apt-get install {packages}, then `make client-drivers`")
    return command


@pytest.mark.fast
@pytest.mark.parametrize("language", DRIVERS)
async def test_helper_finds_a_slot(developer: Developer, game: Any, language: str) -> None:
    await run_case(SMOKE, developer, game, driver_command(language), is_lossy=False)


@pytest.mark.parametrize("is_lossy", [False, True], ids=["plain", "lossy"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("language", DRIVERS)
async def test_helper(
    developer: Developer, game: Any, language: str, name: str, is_lossy: bool
) -> None:
    await run_case(name, developer, game, driver_command(language), is_lossy)


@pytest.mark.parametrize("name", CASES)
async def test_each_case_fails_without_its_feature(
    developer: Developer, game: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "patience_s", 4.0)
    driver = write_mutation(CASES[name]["feature"], tmp_path)
    with pytest.raises((AssertionError, TimeoutError)):
        await run_case(name, developer, game, (sys.executable, str(driver)), is_lossy=False)
