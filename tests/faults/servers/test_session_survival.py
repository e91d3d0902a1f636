"""Both planes are killed repeatedly under 100 streams and 100 datagram sessions.

No session breaks, no game server ends, and no log line is lost or repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.servers.edge_guard_players import (
    DatagramPlayer,
    Player,
    PlayerThread,
    StreamPlayer,
)
from tests.faults.servers.failing_game import (
    FailingGame,
    address_of,
    failing_game,
    folder_of,
    kill,
    processes_of,
)
from tests.support import game_programs
from tests.support.full_service import FullService, eventually, running

pytestmark = [pytest.mark.anyio, pytest.mark.full]

PLAYERS: Final = 100
LOST_MAX: Final = 0.001
"""Share of datagrams that a busy machine may drop."""
AT_ONCE: Final = 8
COUNTS: Final[dict[str, Any]] = {
    "max_players": 64,
    "docker": {
        "env": {"PLAY": "guests sender-port"},
        "ports": {"game": {"protocol": "tcp"}, "voice": {"protocol": "udp"}},
    },
}


@pytest.fixture
def full_service(tmp_path: Path) -> Iterator[FullService]:
    with running(FullService(tmp_path / "s", runtime=game_programs.SETTINGS)) as full_service:
        yield full_service


async def find_slots(game: FailingGame, count: int) -> list[Any]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one() -> Any:
        async with turns:
            return await game.find_lobby("counts")

    return await asyncio.gather(*(one() for _ in range(count)))


def enter(placements: list[Any]) -> list[Player]:
    players: list[Player] = []
    for number, placement in enumerate(placements):
        ports = placement["ports"]
        if number < len(placements) // 2:
            token = placement["player"]["token"]
            players.append(StreamPlayer(f"stream-{number}", address_of(ports["game"]), token))
        else:
            players.append(DatagramPlayer(f"datagram-{number}", address_of(ports["voice"])))
    return players


async def connected(game: FailingGame) -> int:
    answer = await game.developer.client.call("statistics", {}, token=game.public_token)
    return int(answer.body["player_count"]) if answer.code == "OK" else -1


async def first_page(game: FailingGame, lobby_id: str) -> Any:
    return await game.developer.good(
        "get_lobby_logs", game_id=game.game_id, lobby_id=lobby_id, stream="std_out"
    )


def numbers(lines: list[str]) -> list[int]:
    return [int(line.removeprefix("n ")) for line in lines if line.startswith("n ")]


async def check_log(game: FailingGame, lobby_id: str, page: Any) -> None:
    line_numbers = numbers(page["lines"])
    newest = numbers((await first_page(game, lobby_id))["lines"])[-1]
    following = game.all_lines(lobby_id, page["watch"]["index"])
    async for line in following:
        line_numbers += numbers([line])
        if line_numbers and line_numbers[-1] >= newest:
            break
    await following.aclose()
    assert line_numbers == list(range(line_numbers[-1] + 1))


@pytest.mark.parametrize(
    "kills", [1, pytest.param(10, marks=[pytest.mark.proof, pytest.mark.timeout(600)])]
)
async def test_sessions_survive_kills_of_both_planes(full_service: FullService, kills: int) -> None:
    async with failing_game(full_service, counts=COUNTS) as game:
        placements = await find_slots(game, 2 * PLAYERS)
        lobby_ids = sorted({placement["lobby"]["lobby_id"] for placement in placements})
        assert len(lobby_ids) == 4, "fullest first"
        pages = [await eventually(lambda one=one: written(game, one)) for one in lobby_ids]
        pids = {one: processes_of(full_service, one) for one in lobby_ids}
        keepers = {one: folder_of(full_service, one).state() for one in lobby_ids}
        edge_pid = (full_service.data_dir / "edge" / "LOCK").read_text()
        with PlayerThread(enter(placements)) as player_thread:
            await player_thread.goes_on()
            assert await connected(game) == PLAYERS
            for turn in range(kills):
                for roles in ([["data", "control"]], [["data"], ["control"]])[turn % 2]:
                    await asyncio.gather(kill(game, *roles), player_thread.goes_on())
                    await player_thread.goes_on()
            assert await connected(game) == PLAYERS
        assert {one: processes_of(full_service, one) for one in lobby_ids} == pids
        assert {one: folder_of(full_service, one).state() for one in lobby_ids} == keepers
        assert (full_service.data_dir / "edge" / "LOCK").read_text() == edge_pid
        assert sorted(await game.alive("counts")) == lobby_ids
        datagrams = [one for one in player_thread.players if isinstance(one, DatagramPlayer)]
        lost_count, answered_count = (
            sum(one.lost_count for one in datagrams),
            sum(one.received_count for one in datagrams),
        )
        assert lost_count <= LOST_MAX * answered_count
        for lobby_id, page in zip(lobby_ids, pages, strict=True):
            await check_log(game, lobby_id, page)


async def written(game: FailingGame, lobby_id: str) -> Any:
    page = await first_page(game, lobby_id)
    return page if page["lines"] else None
