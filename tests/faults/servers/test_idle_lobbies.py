"""Number, replacement and end of idle lobbies across kills and new versions."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.faults.servers.failing_game import (
    LONG_MS,
    Bystander,
    FailingGame,
    address_of,
    kill,
    processes_of,
)
from tests.support import game_programs
from tests.support.full_service import Developer, FullService, eventually, running

pytestmark = [pytest.mark.anyio, pytest.mark.full]

KILLED = 128 + 9


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    folder: Path = tmp_path_factory.mktemp("idle")
    with running(
        FullService(folder, runtime=game_programs.SETTINGS, empty_lobby_grace_ms=200)
    ) as full_service:
        yield full_service


@pytest.fixture
async def game(full_service: FullService) -> AsyncIterator[FailingGame]:
    client = full_service.client("http")
    developer = Developer(full_service, client)
    yield FailingGame(developer, await developer.game())
    await client.close()


def idle(least: int, most: int, **more: Any) -> dict[str, Any]:
    return {"idle_lobbies": {"min": least, "max": most}, "player_token_ttl": LONG_MS, **more}


async def standing(game: FailingGame, count: int, *, without: str = "") -> set[str]:
    async def looked() -> list[set[str]]:
        answer = await game.developer.client.call("list", {}, token=game.public_token)
        if answer.code != "OK":
            return []
        ids = {one["lobby_id"] for one in answer.body["lobbies"]}
        return [ids] if len(ids) == count and without not in ids else []

    lobby_ids: list[set[str]] = await eventually(looked)
    return lobby_ids[0]


async def only(game: FailingGame, lobby_ids: set[str], *, live: bool = False) -> None:
    async def are_there() -> bool:
        recorded_ids = [one["lobby_id"] for one in await game.records()]
        return sorted(await game.alive("duel") if live else recorded_ids) == sorted(lobby_ids)

    await eventually(are_there)


async def find_idle_lobby(game: FailingGame) -> Any:
    return await game.find_lobby("duel", prevent_auto_create_lobby=True)


async def test_idle_lobbies_survive_kills_of_both_planes(game: FailingGame) -> None:
    full_service = game.developer.full_service
    await game.deploy(duel=idle(2, 3))
    before = await standing(game, 2)
    pids = {one: processes_of(full_service, one) for one in before}
    for roles in (["data"], ["control"], ["data", "control"]):
        await kill(game, *roles)
        assert await standing(game, 2) == before
    assert {one: processes_of(full_service, one) for one in before} == pids
    assert (await find_idle_lobby(game))["lobby"]["lobby_id"] in before
    after = await standing(game, 3)
    assert before < after, "the lobby in use must be replaced"
    await only(game, after)


@pytest.mark.parametrize("roles", [[], ["data", "control"]], ids=["alone", "with both planes"])
async def test_killed_idle_lobby_is_replaced_once(game: FailingGame, roles: list[str]) -> None:
    await game.deploy(duel=idle(2, 2))
    before = await standing(game, 2)
    killed, other = before
    os.kill(processes_of(game.developer.full_service, killed)[0], signal.SIGKILL)
    if roles:
        await kill(game, *roles)
    after = await standing(game, 2, without=killed)
    assert other in after
    record = await game.over(killed)
    stopped = record["status"]["stopped"]
    assert (record["failure"], stopped["failed"], stopped["exit_code"]) == ("EXITED", True, KILLED)
    await only(game, before | after)


async def test_exited_idle_lobbies_are_replaced_with_back_off(game: FailingGame) -> None:
    """The port of an ended lobby is quarantined for a minute, so fast restarts could use up all
    ports.
    """
    await game.deploy(duel=idle(1, 1, docker={"env": {"PLAY": "leaves"}}))

    async def begun() -> list[Any]:
        records = await game.records()
        return records if len(records) > 2 else []

    *_, third, second, first = await eventually(begun)
    for ended, next_one, pause_s in ((first, second, 1), (second, third, 2)):
        record = await game.over(ended["lobby_id"])
        stopped = record["status"]["stopped"]
        assert (stopped["exit_code"], "ready_ts" in record) == (0, True), record
        began = datetime.fromisoformat(next_one["create_ts"])
        assert (began - datetime.fromisoformat(stopped["stop_ts"])).total_seconds() > pause_s - 0.1


async def test_idle_lobbies_of_the_previous_version_end_unless_in_use(game: FailingGame) -> None:
    await game.deploy(duel=idle(2, 2))
    first = await standing(game, 2)
    placement = await find_idle_lobby(game)
    played = placement["lobby"]["lobby_id"]
    first |= await standing(game, 3)
    with Bystander(address_of(placement["ports"]["game"])) as bystander:
        await game.deploy("2.0.0", duel=idle(1, 1))
        [new] = await standing(game, 1)
        assert new not in first
        await only(game, {played, new}, live=True)
        for lobby_id in first - {played}:
            record = await game.over(lobby_id)
            assert record["status"]["stopped"]["failed"] is False, record
            assert "failure" not in record
        await kill(game, "data", "control")
        requested = {"lobby_id": played}
        join_response = await game.developer.client.call("join", requested, token=game.public_token)
        assert join_response.code == "OK", "join by id works until the timeout"
        await game.deploy("3.0.0", duel=idle(0, 0))
        await only(game, {played}, live=True)
        await bystander.check_undisturbed()
    refusal = await game.find("duel", prevent_auto_create_lobby=True)
    assert refusal.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    await only(game, {*first, new})


@pytest.mark.parametrize("most", [0, 1])
async def test_idle_lobbies_above_the_maximum_end(game: FailingGame, most: int) -> None:
    guests = {"docker": {"env": {"PLAY": "guests"}}}
    await game.deploy(duel=idle(0, most, max_players=1, **guests))
    placements = await asyncio.gather(game.find_lobby("duel"), game.find_lobby("duel"))
    lobby_ids = {placement["lobby"]["lobby_id"] for placement in placements}
    async with AsyncExitStack() as stack:
        for placement in placements:
            token = placement["player"]["token"].encode()
            address = address_of(placement["ports"]["game"])
            reader, writer = await asyncio.open_connection(*address)
            stack.callback(writer.close)
            writer.write(token)
            assert await reader.readexactly(len(token)) == token
        assert await standing(game, 2) == lobby_ids
    remaining_ids = await standing(game, most)
    assert remaining_ids < lobby_ids
    for lobby_id in lobby_ids - remaining_ids:
        record = await game.over(lobby_id)
        assert record["status"]["stopped"]["failed"] is False, record
    await only(game, remaining_ids, live=True)
    if remaining_ids:
        assert (await find_idle_lobby(game))["lobby"]["lobby_id"] in remaining_ids
    await only(game, lobby_ids)
