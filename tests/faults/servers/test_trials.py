"""SIGKILL of either plane during a trial. The trial goes on, stays hidden, and ends by its timeout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.servers.failing_game import PLAIN, FailingGame, failing_game, kill
from tests.support import game_programs
from tests.support.full_service import FullService, eventually, running

pytestmark = [pytest.mark.anyio, pytest.mark.full]

LONG_MS = 600_000


@pytest.fixture
def full_service(tmp_path: Path) -> Iterator[FullService]:
    with running(FullService(tmp_path / "s", runtime=game_programs.SETTINGS)) as full_service:
        yield full_service


async def start_trial(game: FailingGame, version_id: str, **fields: Any) -> str:
    place = {"game_id": game.game_id, "namespace_id": "prod", "version_id": version_id}
    response = await game.developer.good("start_trial", **place, game_mode="duel", **fields)
    return str(response["lobby_id"])


async def has_state(game: FailingGame, lobby_id: str, state: str) -> bool:
    record = await game.record(lobby_id)
    return bool(record and record["state"] == state)


async def is_hidden(game: FailingGame, lobby_id: str) -> bool:
    joined = await game.developer.client.call(
        "join", {"lobby_id": lobby_id}, token=game.public_token
    )
    listed = await game.developer.client.call("list", {}, token=game.public_token)
    return joined.code == "MATCHMAKER_LOBBY_NOT_FOUND" and listed.body["lobbies"] == []


async def test_trial_survives_the_end_of_each_plane(full_service: FullService) -> None:
    async with failing_game(full_service) as game:
        version_id = await game.version("2.0.0", duel={})
        lobby_id = await start_trial(game, version_id, timeout_ms=LONG_MS)
        # The data plane has the configuration of a trial that is starting.
        await kill(game, "control")
        await eventually(lambda: has_state(game, lobby_id, "running"))
        for roles in (["data"], ["control"], ["data", "control"]):
            await kill(game, *roles)
            assert await has_state(game, lobby_id, "running"), roles
            assert await is_hidden(game, lobby_id), roles
        await game.remove(lobby_id)
        await eventually(lambda: has_state(game, lobby_id, "stopped"))
        assert (await game.find(PLAIN)).code == "OK"


async def test_timeout_ends_a_trial_after_the_end_of_both_planes(
    full_service: FullService,
) -> None:
    async with failing_game(full_service) as game:
        version_id = await game.version("2.0.0", duel={"docker": {"env": {"PLAY": "mute"}}})
        lobby_id = await start_trial(game, version_id, timeout_ms=4000)
        await kill(game, "data", "control")
        await eventually(lambda: has_state(game, lobby_id, "failed"))
        assert (await game.record(lobby_id))["failure"] in ("START_TIMEOUT", "LOST", "EXITED")
