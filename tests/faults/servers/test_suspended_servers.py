"""A suspended game server: find does not return its silent lobby, and the lobby never has two
servers.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.servers.failing_game import (
    FailingGame,
    address_of,
    echoed,
    failing_game,
    folder_of,
    processes_of,
    signal_run,
)
from tests.support import game_programs
from tests.support.full_service import FullService, eventually, running

pytestmark = [pytest.mark.anyio, pytest.mark.full]

TIMEOUT_MS: Final = 3_000
LIMIT: Final = 2
BEATS: Final[dict[str, Any]] = {"max_players": LIMIT, "heartbeat_timeout": TIMEOUT_MS}


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    folder: Path = tmp_path_factory.mktemp("suspended")
    with running(FullService(folder, runtime=game_programs.SETTINGS)) as full_service:
        yield full_service


@pytest.fixture
async def game(full_service: FullService) -> AsyncIterator[FailingGame]:
    async with failing_game(full_service, beats=BEATS) as game:
        yield game


async def wait_unlisted(game: FailingGame, lobby_id: str) -> None:
    signal_run(game.developer.full_service, lobby_id, signal.SIGSTOP)

    async def is_hidden() -> bool:
        answer = await game.developer.client.call("list", {}, token=game.public_token)
        return answer.code == "OK" and lobby_id not in {
            one["lobby_id"] for one in answer.body["lobbies"]
        }

    await eventually(is_hidden)


async def found_existing(game: FailingGame) -> Any:
    answer = await game.find("beats", prevent_auto_create_lobby=True)
    return answer.body if answer.code == "OK" else None


async def reserved_counts(game: FailingGame) -> dict[str, int]:
    return {
        one["lobby_id"]: one["reserved_count"]
        for one in await game.records()
        if "stopped" not in one["status"]
    }


async def test_server_resumed_in_time_keeps_its_lobby(game: FailingGame) -> None:
    placement = await game.find_lobby("beats")
    lobby_id = placement["lobby"]["lobby_id"]
    pids = processes_of(game.developer.full_service, lobby_id)
    await wait_unlisted(game, lobby_id)
    assert await found_existing(game) is None
    signal_run(game.developer.full_service, lobby_id, signal.SIGCONT)
    again = await eventually(lambda: found_existing(game))
    assert again["lobby"]["lobby_id"] == lobby_id
    assert processes_of(game.developer.full_service, lobby_id) == pids
    assert await asyncio.to_thread(echoed, address_of(again["ports"]["game"])) == b"hello"
    assert await found_existing(game) is None, "the lobby has no free slot"
    assert await reserved_counts(game) == {lobby_id: LIMIT}


async def test_find_during_suspension_uses_another_lobby(game: FailingGame) -> None:
    first = (await game.find_lobby("beats"))["lobby"]["lobby_id"]
    await wait_unlisted(game, first)
    second = (await game.find_lobby("beats"))["lobby"]["lobby_id"]
    assert second != first
    signal_run(game.developer.full_service, first, signal.SIGCONT)

    async def is_seen() -> bool:
        answer = await game.developer.client.call("list", {}, token=game.public_token)
        return len(answer.body["lobbies"]) == 2

    await eventually(is_seen)
    # Two slots are free, one in each lobby. Of six concurrent players, four get new lobbies.
    placements = await asyncio.gather(*(game.find_lobby("beats") for _ in range(6)))
    counts = await reserved_counts(game)
    assert sum(counts.values()) == 8
    assert set(counts.values()) == {LIMIT}
    assert {one["lobby"]["lobby_id"] for one in placements} == set(counts)
    assert {first, second} < set(counts)


async def test_server_that_stays_suspended_ends_once_without_leftovers(game: FailingGame) -> None:
    full_service = game.developer.full_service
    placement = await game.find_lobby("beats")
    lobby_id = placement["lobby"]["lobby_id"]
    pids = processes_of(full_service, lobby_id)
    await wait_unlisted(game, lobby_id)

    async def with_code() -> Any:
        record = await game.over(lobby_id)
        return record if record["status"]["stopped"]["exit_code"] else None

    record = await eventually(with_code)
    assert record["failure"] == "SILENT"
    assert record["status"]["stopped"]["failed"] is True

    async def ended() -> Any:
        state = folder_of(full_service, lobby_id).state()
        return state if state is not None and state.status == "ended" else None

    state = await eventually(ended)
    assert (state.reason, state.exit_code) == ("stopped", 128 + 15)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert await game.alive("beats") == []
    assert await asyncio.to_thread(echoed, address_of(placement["ports"]["game"])) == b""
    join_response = await game.developer.client.call(
        "join", {"lobby_id": lobby_id}, token=game.public_token
    )
    assert join_response.code == "MATCHMAKER_LOBBY_STOPPED"
    assert await game.record(lobby_id) == record
    assert (await game.find_lobby("beats"))["lobby"]["lobby_id"] != lobby_id
