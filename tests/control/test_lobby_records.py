"""Lobby records and player counts over the API, and after a kill of one plane."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from pyservice.process.directory_lock import lock_holder_pid
from tests.control.new_developers import new_developer
from tests.control.response_shapes import FLAG, NUMBER, TIME, fields, shape
from tests.support.full_service import Developer, FullService, ServiceResponse, eventually, running
from tests.support.namespace_scenario import Records
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.anyio

RECORD = {
    **fields(ids="lobby_id namespace_id version_id", times="create_ts ready_ts"),
    **fields(texts="lobby_group_name_id region_id publicity state"),
    **fields(numbers="reserved_count connected_count"),
    "is_closed": FLAG,
    "is_draining": FLAG,
    "status": {"running": {}},
}
PORTS = {"game": {"address": "127.0.0.1", "port": 4000}}


class Arena:
    def __init__(self, developer: Developer, game_id: str) -> None:
        self.developer = developer
        self.target = {"game_id": game_id, "namespace_id": "prod"}
        self.game_id = game_id

    async def attach(self) -> Any:
        return await self.developer.good("attach", **self.target, game_mode="arena", ports=PORTS)

    async def lobby(self) -> Any:
        return await self.developer.lobby(self.game_id, self.developer.token)

    async def record(self, lobby: Any) -> ServiceResponse:
        return await self.developer.call(
            "get_lobby_record", **self.target, lobby_id=lobby["lobby_id"]
        )

    async def until(self, lobby: Any, **fields: Any) -> Any:
        async def matching() -> Any:
            answer = await self.record(lobby)
            record = answer.body["lobby"] if answer.code == "OK" else {}
            is_it = all(record.get(name) == value for name, value in fields.items())
            return record if record and is_it else None

        return await eventually(matching)

    async def slots(self, lobby: Any) -> tuple[int, int]:
        record = (await self.record(lobby)).body["lobby"]
        return record["reserved_count"], record["connected_count"]

    async def detach(self, lobby: Any) -> bool:
        fields = {"game_id": self.game_id, "lobby_id": lobby["lobby_id"]}
        return bool((await self.developer.good("detach", **fields))["did_remove"])

    async def ended(self, lobby: Any) -> Any:
        async def record() -> Any:
            lobby_record = (await self.record(lobby)).body["lobby"]
            return lobby_record if "stopped" in lobby_record["status"] else None

        return await eventually(record)

    async def send(self, slug: str, lobby: Any, **fields: Any) -> None:
        answer = await self.developer.client.call(slug, fields, token=lobby["lobby_token"])
        assert answer.code == "OK", answer

    async def player(self, lobby: Any) -> str:
        token = await self.developer.public_token(self.game_id)
        answer = await self.developer.client.call(
            "join", {"lobby_id": lobby["lobby_id"]}, token=token
        )
        assert answer.code == "OK", answer
        return str(answer.body["player"]["token"])


@pytest.fixture
async def arena(developer: Developer) -> Arena:
    return Arena(developer, await developer.arena())


async def test_lobby_is_recorded_from_start_to_end(arena: Arena) -> None:
    lobby = await arena.attach()
    record = await arena.until(lobby)
    starting = {name: kind for name, kind in RECORD.items() if name != "ready_ts"}
    assert shape(record) == starting
    assert record["lobby_group_name_id"] == "arena"
    assert (record["region_id"], record["publicity"]) == ("local", "public")
    assert record["state"] == "starting"
    await arena.send("ready", lobby)
    await arena.send("closed", lobby, is_closed=True)
    record = await arena.until(lobby, is_closed=True)
    assert shape(record) == RECORD
    assert record["state"] == "running"
    await arena.send("closed", lobby, is_closed=False)
    await arena.until(lobby, is_closed=False)
    assert await arena.detach(lobby)
    ended_lobby = await arena.ended(lobby)
    stopped = {"stop_ts": TIME, "failed": FLAG, "exit_code": NUMBER}
    assert shape(ended_lobby) == {**RECORD, "status": {"running": {}, "stopped": stopped}}
    assert ended_lobby["state"] == "stopped"
    assert (ended_lobby["status"]["stopped"]["failed"], ended_lobby["is_draining"]) == (
        False,
        False,
    )
    assert not await arena.detach(lobby)


async def test_slots_are_current_and_those_of_an_ended_lobby_are_final(arena: Arena) -> None:
    lobby = await arena.lobby()
    await arena.until(lobby)
    tokens = [await arena.player(lobby) for _ in range(3)]
    assert await arena.slots(lobby) == (3, 0)
    for token in tokens[:2]:
        await arena.send("connected", lobby, player_token=token)
    assert await arena.slots(lobby) == (1, 2)
    await arena.send("disconnected", lobby, player_token=tokens[0])
    assert await arena.slots(lobby) == (1, 1)
    assert await arena.detach(lobby)
    await arena.ended(lobby)
    for _ in range(2):
        assert await arena.slots(lobby) == (1, 1)


async def test_lobby_of_another_version_drains(arena: Arena) -> None:
    lobby, developer = await arena.lobby(), arena.developer
    before = await arena.until(lobby, is_draining=False)
    other = await developer.version(arena.game_id, name="2.0.0")
    await developer.good("set_version", **arena.target, version_id=other)
    assert (await arena.record(lobby)).body["lobby"]["is_draining"]
    await developer.good("set_version", **arena.target, version_id=before["version_id"])
    assert not (await arena.record(lobby)).body["lobby"]["is_draining"]


async def test_lists_are_newest_first_without_gaps(arena: Arena) -> None:
    created = [await arena.attach() for _ in range(70)]
    await arena.until(created[-1])

    async def page(*before: Any) -> Any:
        fields = {
            **arena.target,
            **({"before_create_ts": before[-1]["create_ts"]} if before else {}),
        }
        return (await arena.developer.good("list_lobby_records", **fields))["lobbies"]

    first = await page()
    assert len(first) >= 64
    second = await page(*first)
    listed = [one["lobby_id"] for one in (*first, *second)]
    assert len(listed) == len(set(listed))
    assert set(listed) == {one["lobby_id"] for one in created}
    times = [one["create_ts"] for one in (*first, *second)]
    assert times == sorted(times, reverse=True)
    assert await page(*second) == []


async def test_impossible_time_is_refused(developer: Developer) -> None:
    arena = Arena(developer, await developer.game())
    for text in ("yesterday", "2030-02-30T00:00:00.000Z", "2030-01-01T00:00:00Z"):
        answer = await developer.call("list_lobby_records", **arena.target, before_create_ts=text)
        expected = ("QUERY_INVALID", (("before_create_ts", "invalid"),))
        assert (answer.code, answer.errors) == expected


async def test_lobby_of_another_namespace_is_not_found(arena: Arena) -> None:
    lobby = await arena.lobby()
    await arena.until(lobby)
    staging = {**arena.target, "namespace_id": "staging"}
    for target, lobby_id in ((staging, lobby["lobby_id"]), (arena.target, str(uuid4()))):
        code = await arena.developer.code("get_lobby_record", **target, lobby_id=lobby_id)
        assert code == "MATCHMAKER_LOBBY_NOT_FOUND"
    assert await arena.developer.good("list_lobby_records", **staging) == {"lobbies": []}


# Counts -------------------------------------------------------------------------------------------


async def test_player_count_is_right_and_wakes_watches(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.game(developer_group_id=group_id)
    version_id = await member.version(game_id)
    await member.good("set_version", game_id=game_id, namespace_id="prod", version_id=version_id)
    arena = Arena(member, game_id)
    lobby = await arena.lobby()
    games, game = await member.good("get_games"), await member.good("get_game", game_id=game_id)
    assert games["games"][0]["total_player_count"] == 0
    for slug, count in (("connected", 1), ("disconnected", 0)):
        if slug == "connected":
            token = await arena.player(lobby)
        waiting_requests = asyncio.gather(
            member.good("get_games", watch_index=games["watch"]["index"]),
            member.good("get_game", game_id=game_id, watch_index=game["watch"]["index"]),
        )
        done, _ = await asyncio.wait({waiting_requests}, timeout=0.1)
        assert not done
        await arena.send(slug, lobby, player_token=token)
        games, game = await asyncio.wait_for(waiting_requests, PATIENCE_S)
        assert games["games"][0]["total_player_count"] == count
        assert game["game"]["total_player_count"] == count


async def test_player_counts_of_games_are_separate(developer: Developer) -> None:
    arenas = [Arena(developer, await developer.arena()) for _ in range(2)]
    for arena in arenas:
        lobby = await arena.lobby()
        for _ in range(2):
            await arena.send("connected", lobby, player_token=await arena.player(lobby))

    async def is_true() -> bool:
        responses = [await developer.good("get_game", game_id=arena.game_id) for arena in arenas]
        return [one["game"]["total_player_count"] for one in responses] == [2, 2]

    await eventually(is_true)


# Killed planes ------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("folder", [".", "control"], ids=["data plane", "control plane"])
async def test_records_and_counts_are_right_after_a_kill(tmp_path: Path, folder: str) -> None:
    service = FullService(tmp_path / "s")
    lock = service.data_dir / folder
    with running(service):
        async with service.open_client("http") as client:
            developer = Developer(service, client)
            arena = Arena(developer, await developer.arena())
            for _ in range(2):
                stays, leaves = await arena.lobby(), await arena.lobby()
                await arena.send("connected", stays, player_token=await arena.player(stays))
                pid = lock_holder_pid(lock)
                assert pid is not None
                assert await arena.detach(leaves)
                os.kill(pid, signal.SIGKILL)
                await asyncio.to_thread(until, partial(is_replaced, lock, pid))
                ended_lobby, record = await eventually(partial(ended_records, arena, leaves, stays))
                assert "stopped" in ended_lobby["status"]
                assert (record["connected_count"], record["status"]) == (1, {"running": {}})
            lobbies = (await developer.good("list_lobby_records", **arena.target))["lobbies"]
            assert len(lobbies) == len({one["lobby_id"] for one in lobbies}) == 4

            async def is_counted() -> bool:
                game = await developer.good("get_game", game_id=arena.game_id)
                return bool(game["game"]["total_player_count"] == 2)

            await eventually(is_counted)


def is_replaced(lock: Path, pid: int) -> bool:
    return lock_holder_pid(lock) not in (None, pid)


async def ended_records(arena: Arena, ended_lobby: Any, alive: Any) -> list[Any] | None:
    try:
        answers = [await arena.record(one) for one in (ended_lobby, alive)]
    except httpx.TransportError:
        return None
    if any(answer.code != "OK" for answer in answers):
        return None
    records = [answer.body["lobby"] for answer in answers]
    return records if "stopped" in records[0]["status"] else None
