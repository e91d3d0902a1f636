"""Games: creation, names, lists and watches."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.control.new_developers import new_developer, unique
from tests.control.response_shapes import (
    EXTERNAL,
    FLAG,
    GROUP_SUMMARY,
    ID,
    NAMESPACE_SUMMARY,
    TEXT,
    VERSION_SUMMARY,
    WATCH,
    fields,
    shape,
)
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records
from tests.support.waiting import PATIENCE_S, is_blocked

pytestmark = pytest.mark.anyio

HANDLE = {"group_id": ID, "display_name": TEXT, "external": EXTERNAL, "is_developer": FLAG}
GAME_SUMMARY = {
    **fields(ids="game_id", texts="name_id display_name url", numbers="total_player_count"),
    "developer": HANDLE,
}
REGION = fields(
    texts="region_id region_name_id universal_region provider provider_display_name"
    " region_display_name"
)
GAME = {
    **fields(ids="game_id developer_group_id", times="create_ts", texts="name_id display_name"),
    **fields(numbers="total_player_count"),
    "namespaces": [NAMESPACE_SUMMARY],
    "versions": [VERSION_SUMMARY],
    "available_regions": [REGION],
}


async def test_new_game_has_two_namespaces_and_a_version(developer: Developer) -> None:
    group_id = developer.full_service.group_id
    response = await developer.good("create_game", developer_group_id=group_id, display_name="x")
    assert shape(response) == {"game_id": ID}
    answer = await developer.good("get_game", game_id=response["game_id"])
    assert shape(answer) == {"game": GAME, "watch": WATCH}
    game = answer["game"]
    assert game["game_id"] == response["game_id"]
    assert game["developer_group_id"] == group_id
    assert [one["name_id"] for one in game["namespaces"]] == ["prod", "staging"]
    (version,) = game["versions"]
    assert version["display_name"] == "0.0.1"
    assert {one["version_id"] for one in game["namespaces"]} == {version["version_id"]}
    assert game["total_player_count"] == 0
    (region,) = game["available_regions"]
    assert region["region_id"] == region["region_name_id"] == region["universal_region"] == "local"
    of_version = {"game_id": game["game_id"], "version_id": version["version_id"]}
    assert (await developer.good("get_version", **of_version))["version"]["config"] == {}
    assert await developer.good("get_game", game_id=game["name_id"]) == answer


async def test_new_game_is_playable_from_the_first_token(developer: Developer) -> None:
    game_id = await developer.arena()
    public_token = await developer.public_token(game_id)
    lobby = await developer.lobby(game_id, await developer.service_token(game_id))
    response = await developer.client.call("find", {"game_modes": ["arena"]}, token=public_token)
    assert response.code == "OK", response
    assert response.body["lobby"]["lobby_id"] == lobby["lobby_id"]
    fields = {"player_token": response.body["player"]["token"]}
    for code in ("OK", "PLAYER_TOKEN_CONSUMED"):
        answer = await developer.client.call("connected", fields, token=lobby["lobby_token"])
        assert answer.code == code


async def test_list_has_the_games_and_groups_of_the_token(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    empty = await member.good("get_games")
    assert shape(empty) == {"games": [], "groups": [GROUP_SUMMARY], "watch": WATCH}
    first = await member.game(developer_group_id=group_id, display_name="First")
    second = await member.game(developer_group_id=group_id, display_name="Second")
    answer = await member.good("get_games")
    assert shape(answer) == {"games": [GAME_SUMMARY], "groups": [GROUP_SUMMARY], "watch": WATCH}
    assert [one["game_id"] for one in answer["games"]] == [first, second]
    (group,) = answer["groups"]
    assert group["group_id"] == group_id
    assert {one["developer"]["group_id"] for one in answer["games"]} == {group_id}
    game = answer["games"][0]
    assert game["url"].endswith(f"/{game['name_id']}/prod/")
    assert game["developer"]["external"]["profile"].endswith(f"/groups/{group_id}")
    token = (await member.good("create_game_token", game_id=second))["token"]
    of_one = await Developer(member.full_service, member.client, token).good("get_games")
    assert [one["game_id"] for one in of_one["games"]] == [second]
    assert [one["group_id"] for one in of_one["groups"]] == [group_id]


async def test_validate_and_create_refuse_the_same(developer: Developer) -> None:
    fields = {"display_name": "x" * 129 + "  ", "name_id": "-"}
    paths = [("display_name", "too-long"), ("display_name", "invalid"), ("name_id", "invalid")]
    response = await developer.good("validate_game", **fields)
    assert shape(response) == {"errors": [{"path": [TEXT], "message": TEXT}]}
    assert [tuple(one["path"]) for one in response["errors"]] == paths
    group_id = developer.full_service.group_id
    refusal = await developer.call("create_game", developer_group_id=group_id, **fields)
    assert (refusal.code, list(refusal.errors)) == ("VALIDATION_FAILED", paths)


async def test_display_name_is_stored_exactly(developer: Developer) -> None:
    assert await developer.good("validate_game", display_name="é 日本") == {"errors": []}
    game_id = await developer.game(display_name="é 日本")
    assert (await developer.good("get_game", game_id=game_id))["game"]["display_name"] == "é 日本"


async def test_taken_name_is_refused_across_groups(developer: Developer, records: Records) -> None:
    name_id = f"taken-{uuid4().hex[:12]}"
    await developer.game(name_id=name_id)
    member, group_id = await new_developer(developer, records)
    fields = {"display_name": "x", "name_id": name_id}
    response = await member.good("validate_game", **fields)
    assert [one["path"] for one in response["errors"]] == [["name_id", "not-unique"]]
    answer = await member.call("create_game", developer_group_id=group_id, **fields)
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (("name_id", "not-unique"),))


async def name_of(developer: Developer, display_name: str) -> str:
    response = await developer.good(
        "create_game", developer_group_id=developer.full_service.group_id, display_name=display_name
    )
    game: Any = (await developer.good("get_game", game_id=response["game_id"]))["game"]
    return str(game["name_id"])


async def test_name_is_derived_with_a_suffix(developer: Developer) -> None:
    mark = uuid4().hex[:8]
    for suffix in ("", "-2", "-3"):
        assert await name_of(developer, f"Café: der {mark}!") == f"cafe-der-{mark}{suffix}"


async def test_concurrent_creations_of_one_name_create_one_game(developer: Developer) -> None:
    name_id = f"race-{uuid4().hex[:12]}"
    group_id = developer.full_service.group_id
    fields = {"developer_group_id": group_id, "display_name": "x", "name_id": name_id}
    answers = await asyncio.gather(*(developer.call("create_game", **fields) for _ in range(8)))
    assert sorted(one.code for one in answers) == ["OK"] + ["VALIDATION_FAILED"] * 7
    assert {one.errors for one in answers if one.code != "OK"} == {(("name_id", "not-unique"),)}
    (created,) = (one.body["game_id"] for one in answers if one.code == "OK")
    game = (await developer.good("get_game", game_id=name_id))["game"]
    assert game["game_id"] == created
    assert [one["name_id"] for one in game["namespaces"]] == ["prod", "staging"]


async def test_concurrent_creations_without_a_name_succeed(developer: Developer) -> None:
    text = unique("Race")
    fields = {"developer_group_id": developer.full_service.group_id, "display_name": text}
    answers = await asyncio.gather(*(developer.good("create_game", **fields) for _ in range(8)))
    games = [await developer.good("get_game", game_id=one["game_id"]) for one in answers]
    assert len({one["game"]["name_id"] for one in games}) == 8


async def test_game_of_an_unknown_group_is_not_created(developer: Developer) -> None:
    fields = {"developer_group_id": str(uuid4()), "display_name": "x"}
    assert await developer.code("create_game", **fields) == "GROUP_NOT_FOUND"


async def test_game_watch_returns_on_a_change(developer: Developer) -> None:
    game_id, other_id = await developer.game(), await developer.game()
    before = await developer.good("get_game", game_id=game_id)
    index = before["watch"]["index"]
    blocked = asyncio.create_task(developer.good("get_game", game_id=game_id, watch_index=index))
    await developer.version(other_id, {})
    assert await is_blocked(blocked)
    await developer.version(game_id, {}, name="1.2.3")
    after = await asyncio.wait_for(blocked, PATIENCE_S)
    assert [one["display_name"] for one in after["game"]["versions"]] == ["1.2.3", "0.0.1"]
    assert after["watch"]["index"] != index


async def test_watch_with_an_old_or_foreign_index_returns_at_once(developer: Developer) -> None:
    game_id = await developer.game()
    old = (await developer.good("get_game", game_id=game_id))["watch"]["index"]
    await developer.version(game_id, {})
    for index in (old, "0123456789abcdef.1", "nonsense", "x" * 128):
        request = developer.good("get_game", game_id=game_id, watch_index=index)
        answer = await asyncio.wait_for(request, PATIENCE_S)
        assert len(answer["game"]["versions"]) == 2
        assert answer["watch"]["index"] != index


async def test_list_watch_returns_on_new_games_and_groups(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    for change in ("game", "group"):
        index = (await member.good("get_games"))["watch"]["index"]
        blocked = asyncio.create_task(member.good("get_games", watch_index=index))
        await developer.game()
        assert await is_blocked(blocked)
        if change == "game":
            created = await member.game(developer_group_id=group_id)
        else:
            created = (await member.good("create_group", display_name="Another"))["group_id"]
        assert created in str(await asyncio.wait_for(blocked, PATIENCE_S))
