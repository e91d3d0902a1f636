"""Lobby records and player counts over the API."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.control.namespace_scenario import Records
from tests.control.response_shapes import FLAG, ID, NUMBER, TEXT, TIME, shape
from tests.control.test_games import new_developer
from tests.support.full_service import ARENA_MODES, Answer, Developer, eventually
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

RECORD = {
    "lobby_id": ID,
    "namespace_id": ID,
    "lobby_group_name_id": TEXT,
    "region_id": TEXT,
    "create_ts": TIME,
    "ready_ts": TIME,
    "status": {"running": {}},
    "publicity": TEXT,
    "version_id": ID,
    "is_closed": FLAG,
    "is_draining": FLAG,
    "reserved_count": NUMBER,
    "connected_count": NUMBER,
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

    async def record(self, lobby: Any) -> Answer:
        return await self.developer.call(
            "get_lobby_record", **self.target, lobby_id=lobby["lobby_id"]
        )

    async def until(self, lobby: Any, **fields: Any) -> Any:
        async def has() -> Any:
            answer = await self.record(lobby)
            if answer.code != "OK":
                return None
            record = answer.body["lobby"]
            is_it = all(record.get(name) == value for name, value in fields.items())
            return record if is_it else None

        return await eventually(has)

    async def send(self, slug: str, lobby: Any, **fields: Any) -> None:
        answer = await self.developer.door.call(slug, fields, token=lobby["lobby_token"])
        assert answer.code == "OK", answer

    async def player(self, lobby: Any) -> str:
        token = await self.developer.public_token(self.game_id)
        answer = await self.developer.door.call(
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
    await arena.send("ready", lobby)
    await arena.send("closed", lobby, is_closed=True)
    record = await arena.until(lobby, is_closed=True)
    assert shape(record) == RECORD
    await arena.send("closed", lobby, is_closed=False)
    await arena.until(lobby, is_closed=False)
    fields = {"game_id": arena.game_id, "lobby_id": lobby["lobby_id"]}
    assert await arena.developer.good("detach", **fields) == {"did_remove": True}

    async def is_over() -> Any:
        lobby_record = (await arena.record(lobby)).body["lobby"]
        return lobby_record if "stopped" in lobby_record["status"] else None

    over = await eventually(is_over)
    stopped = {"stop_ts": TIME, "failed": FLAG, "exit_code": NUMBER}
    assert shape(over) == {**RECORD, "status": {"running": {}, "stopped": stopped}}
    assert (over["status"]["stopped"]["failed"], over["is_draining"]) == (False, False)
    assert await arena.developer.good("detach", **fields) == {"did_remove": False}


async def test_slots_of_a_running_lobby_are_current(arena: Arena) -> None:
    lobby = await arena.lobby()
    await arena.until(lobby)
    tokens = [await arena.player(lobby) for _ in range(2)]
    record = (await arena.record(lobby)).body["lobby"]
    assert (record["reserved_count"], record["connected_count"]) == (2, 0)
    await arena.send("connected", lobby, player_token=tokens[0])
    record = (await arena.record(lobby)).body["lobby"]
    assert (record["reserved_count"], record["connected_count"]) == (1, 1)
    await arena.send("disconnected", lobby, player_token=tokens[0])
    record = (await arena.record(lobby)).body["lobby"]
    assert (record["reserved_count"], record["connected_count"]) == (1, 0)


async def test_slots_of_an_ended_lobby_are_final(arena: Arena) -> None:
    lobby = await arena.lobby()
    await arena.until(lobby)
    tokens = [await arena.player(lobby) for _ in range(3)]
    for token in tokens[:2]:
        await arena.send("connected", lobby, player_token=token)
    await arena.send("disconnected", lobby, player_token=tokens[0])
    fields = {"game_id": arena.game_id, "lobby_id": lobby["lobby_id"]}
    assert await arena.developer.good("detach", **fields) == {"did_remove": True}

    async def over() -> Any:
        lobby_record = (await arena.record(lobby)).body["lobby"]
        return lobby_record if "stopped" in lobby_record["status"] else None

    for record in (await eventually(over), (await arena.record(lobby)).body["lobby"]):
        assert (record["reserved_count"], record["connected_count"]) == (1, 1)


async def test_lobby_of_another_version_drains(arena: Arena) -> None:
    lobby, developer = await arena.lobby(), arena.developer
    before = await arena.until(lobby, is_draining=False)
    other = await developer.version(arena.game_id, name="2.0.0")
    await developer.good("set_version", **arena.target, version_id=other)
    assert (await arena.record(lobby)).body["lobby"]["is_draining"]
    await developer.good("set_version", **arena.target, version_id=before["version_id"])
    assert not (await arena.record(lobby)).body["lobby"]["is_draining"]


async def test_silent_lobby_fails(developer: Developer) -> None:
    game_id = await developer.game()
    mode = {**ARENA_MODES["arena"], "heartbeat_timeout": 1_000}
    config = {"matchmaker": {"game_modes": {"arena": mode}}}
    version_id = await developer.version(game_id, config)
    arena = Arena(developer, game_id)
    await developer.good("set_version", **arena.target, version_id=version_id)
    record = await arena.until(await arena.lobby(), failure="SILENT")
    assert record["status"]["stopped"]["failed"]


async def test_lists_are_newest_first_without_gaps(owner: Developer) -> None:
    arena = Arena(owner, await owner.arena())
    created = [await arena.attach() for _ in range(70)]
    await arena.until(created[-1])
    first = (await owner.good("list_lobby_records", **arena.target))["lobbies"]
    assert len(first) >= 64
    second = (
        await owner.good(
            "list_lobby_records", **arena.target, before_create_ts=first[-1]["create_ts"]
        )
    )["lobbies"]
    listed = [one["lobby_id"] for one in (*first, *second)]
    assert len(listed) == len(set(listed))
    assert set(listed) == {one["lobby_id"] for one in created}
    times = [one["create_ts"] for one in (*first, *second)]
    assert times == sorted(times, reverse=True)
    fields = {**arena.target, "before_create_ts": second[-1]["create_ts"]}
    assert await owner.good("list_lobby_records", **fields) == {"lobbies": []}


async def test_impossible_time_is_refused(developer: Developer) -> None:
    arena = Arena(developer, await developer.game())
    for text in ("yesterday", "2030-02-30T00:00:00.000Z", "2030-01-01T00:00:00Z"):
        answer = await developer.call("list_lobby_records", **arena.target, before_create_ts=text)
        expected = ("QUERY_INVALID", (("before_create_ts", "invalid"),))
        assert (answer.code, answer.errors) == expected


async def test_lobby_of_another_namespace_is_not_found(arena: Arena) -> None:
    lobby = await arena.lobby()
    await arena.until(lobby)
    fields = {**arena.target, "lobby_id": lobby["lobby_id"]}
    developer = arena.developer
    assert await developer.code("get_lobby_record", **{**fields, "namespace_id": "staging"}) == (
        "MATCHMAKER_LOBBY_NOT_FOUND"
    )
    assert await developer.code("get_lobby_record", **{**fields, "lobby_id": str(uuid4())}) == (
        "MATCHMAKER_LOBBY_NOT_FOUND"
    )
    listed = await developer.good(
        "list_lobby_records", game_id=arena.game_id, namespace_id="staging"
    )
    assert listed == {"lobbies": []}


# Counts -------------------------------------------------------------------------------------------


async def test_player_count_is_right_and_wakes_watches(
    developer: Developer, records: Records
) -> None:
    me, group_id = await new_developer(developer, records)
    game_id = await me.game(developer_group_id=group_id)
    version_id = await me.version(game_id)
    await me.good("set_version", game_id=game_id, namespace_id="prod", version_id=version_id)
    arena = Arena(me, game_id)
    lobby = await arena.lobby()
    games, game = await me.good("get_games"), await me.good("get_game", game_id=game_id)
    assert games["games"][0]["total_player_count"] == 0
    for slug, count in (("connected", 1), ("disconnected", 0)):
        if slug == "connected":
            token = await arena.player(lobby)
        waiting = asyncio.gather(
            me.good("get_games", watch_index=games["watch"]["index"]),
            me.good("get_game", game_id=game_id, watch_index=game["watch"]["index"]),
        )
        done, _ = await asyncio.wait({waiting}, timeout=0.1)
        assert not done
        await arena.send(slug, lobby, player_token=token)
        games, game = await asyncio.wait_for(waiting, PATIENCE_S)
        assert games["games"][0]["total_player_count"] == count
        assert game["game"]["total_player_count"] == count


async def test_player_count_covers_every_namespace_of_the_game(
    developer: Developer,
) -> None:
    arenas = [Arena(developer, await developer.arena()) for _ in range(2)]
    for arena in arenas:
        lobby = await arena.lobby()
        for _ in range(2):
            await arena.send("connected", lobby, player_token=await arena.player(lobby))

    async def is_true() -> bool:
        found = [await developer.good("get_game", game_id=arena.game_id) for arena in arenas]
        return [one["game"]["total_player_count"] for one in found] == [2, 2]

    await eventually(is_true)
