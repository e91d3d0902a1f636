from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.control.response_shapes import FLAG, ID, NUMBER, TEXT, TIME, shape
from tests.control.test_games import BAD_DISPLAY_NAMES
from tests.support.full_service import Developer

pytestmark = pytest.mark.anyio

SUMMARY = {
    "namespace_id": ID,
    "create_ts": TIME,
    "display_name": TEXT,
    "version_id": ID,
    "name_id": TEXT,
}
LIMITS = {
    "lobby_count_max": NUMBER,
    "max_players_per_client": NUMBER,
    "max_players_per_client_vpn": NUMBER,
    "max_players_per_client_proxy": NUMBER,
    "max_players_per_client_tor": NUMBER,
    "max_players_per_client_hosting": NUMBER,
}
NAMESPACE = {
    **SUMMARY,
    "config": {
        "cdn": {
            "enable_domain_public_auth": FLAG,
            "domains": [],
            "auth_type": TEXT,
            "auth_user_list": [],
        },
        "matchmaker": LIMITS,
        "kv": {},
        "identity": {},
    },
}


async def new_game(developer: Developer) -> tuple[str, str]:
    game_id = await developer.game()
    versions = (await developer.good("list_versions", game_id=game_id))["versions"]
    return game_id, versions[0]["version_id"]


async def limits_of(developer: Developer, game_id: str, name: str = "prod") -> dict[str, int]:
    got = await developer.good("get_namespace", game_id=game_id, namespace_id=name)
    limits: dict[str, int] = got["namespace"]["config"]["matchmaker"]
    return limits


# Creation and reads -------------------------------------------------------------------------------


async def test_new_namespace_has_the_defaults(developer: Developer) -> None:
    game_id, version_id = await new_game(developer)
    fields = {"display_name": "Nightly", "name_id": "nightly", "version_id": version_id}
    created = await developer.good("create_namespace", game_id=game_id, **fields)
    assert shape(created) == {"namespace_id": ID}
    answer = await developer.good("get_namespace", game_id=game_id, namespace_id="nightly")
    assert shape(answer) == {"namespace": NAMESPACE}
    namespace = answer["namespace"]
    assert namespace["namespace_id"] == created["namespace_id"]
    assert {name: namespace[name] for name in fields} == fields
    limits = namespace["config"]["matchmaker"]
    assert limits.pop("lobby_count_max") == 512
    assert set(limits.values()) == {256}
    cdn = namespace["config"]["cdn"]
    assert (cdn["enable_domain_public_auth"], cdn["auth_type"]) == (True, "none")
    by_id = await developer.good(
        "get_namespace", game_id=game_id, namespace_id=created["namespace_id"]
    )
    assert by_id["namespace"]["name_id"] == "nightly"


async def test_namespaces_are_listed_oldest_first(developer: Developer) -> None:
    game_id, version_id = await new_game(developer)
    for name in ("b", "a"):
        await developer.good(
            "create_namespace",
            game_id=game_id,
            display_name=name,
            name_id=name,
            version_id=version_id,
        )
    answer = await developer.good("list_namespaces", game_id=game_id)
    assert shape(answer) == {"namespaces": [SUMMARY]}
    names = [one["name_id"] for one in answer["namespaces"]]
    assert names == ["prod", "staging", "b", "a"]
    game = (await developer.good("get_game", game_id=game_id))["game"]
    assert game["namespaces"] == answer["namespaces"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        *(
            ({"display_name": text, "name_id": "x"}, ("display_name", word))
            for text, word in BAD_DISPLAY_NAMES
        ),
        *(
            ({"display_name": "x", "name_id": text}, ("name_id", word))
            for text, word in (
                ("", "too-short"),
                ("x" * 21, "too-long"),
                ("-x", "invalid"),
                ("x-", "invalid"),
                ("x--y", "invalid"),
                ("X", "invalid"),
                ("x.y", "invalid"),
                ("prod", "not-unique"),
            )
        ),
    ],
)
async def test_validate_and_create_refuse_the_same(
    owner: Developer, fields: dict[str, str], path: tuple[str, ...]
) -> None:
    game_id, version_id = await new_game(owner)
    response = await owner.good("validate_namespace", game_id=game_id, **fields)
    assert shape(response) == {"errors": [{"path": [TEXT], "message": TEXT}]}
    assert [tuple(one["path"]) for one in response["errors"]] == [path]
    refused = await owner.call("create_namespace", game_id=game_id, version_id=version_id, **fields)
    assert (refused.code, refused.errors) == ("VALIDATION_FAILED", (path,))
    listed = await owner.good("list_namespaces", game_id=game_id)
    assert len(listed["namespaces"]) == 2


async def test_name_of_another_game_is_free(developer: Developer) -> None:
    game_id, _ = await new_game(developer)
    fields = {"game_id": game_id, "display_name": "x", "name_id": "x" * 20}
    assert await developer.good("validate_namespace", **fields) == {"errors": []}


async def test_concurrent_creations_of_one_name_create_one(developer: Developer) -> None:
    game_id, version_id = await new_game(developer)
    fields = {
        "game_id": game_id,
        "display_name": "x",
        "name_id": "race",
        "version_id": version_id,
    }
    answers = await asyncio.gather(
        *(developer.call("create_namespace", **fields) for _ in range(8))
    )
    assert sorted(one.code for one in answers) == ["OK"] + ["VALIDATION_FAILED"] * 7
    assert {one.errors for one in answers if one.code != "OK"} == {(("name_id", "not-unique"),)}


async def test_first_missing_path_part_is_reported(developer: Developer) -> None:
    game_id, version_id = await new_game(developer)
    other_id, _ = await new_game(developer)
    unknown = str(uuid4())
    listed = await developer.good("list_namespaces", game_id=other_id)
    others = listed["namespaces"][0]["namespace_id"]
    for slug, more in (
        ("get_namespace", {}),
        ("version_history", {}),
        ("set_version", {"version_id": version_id}),
        ("set_mm_config", {"lobby_count_max": 1, "max_players": 1}),
        ("validate_mm_config", {"lobby_count_max": 1, "max_players": 1}),
    ):
        for target, code in (
            ((unknown, "prod"), "GAME_NOT_FOUND"),
            ((game_id, "nowhere"), "NAMESPACE_NOT_FOUND"),
            ((game_id, unknown), "NAMESPACE_NOT_FOUND"),
            ((game_id, others), "NAMESPACE_NOT_FOUND"),
        ):
            fields = dict(zip(("game_id", "namespace_id"), target, strict=True))
            assert await developer.code(slug, **fields, **more) == code, (slug, target)


async def test_version_of_another_game_is_not_found(developer: Developer) -> None:
    game_id, _ = await new_game(developer)
    _, others = await new_game(developer)
    for version_id in (others, str(uuid4())):
        fields = {"game_id": game_id, "version_id": version_id}
        created = await developer.code("create_namespace", **fields, display_name="x", name_id="x")
        changed = await developer.code("set_version", **fields, namespace_id="prod")
        assert (created, changed) == ("VERSION_NOT_FOUND", "VERSION_NOT_FOUND")


# Version ------------------------------------------------------------------------------------------


async def modes_of(developer: Developer, token: str) -> list[str]:
    listed = await developer.door.call("list", {}, token=token)
    assert listed.code == "OK", listed
    return [one["game_mode_id"] for one in listed.body["game_modes"]]


async def test_set_version_is_fed_to_players(developer: Developer) -> None:
    game_id = await developer.game()
    token = await developer.public_token(game_id)
    assert await modes_of(developer, token) == []
    for name in ("first", "second"):
        config: dict[str, Any] = {"matchmaker": {"game_modes": {name: {}}}}
        version_id = await developer.version(game_id, config)
        fields = {"game_id": game_id, "namespace_id": "prod", "version_id": version_id}
        assert await developer.good("set_version", **fields) == {}
        assert await modes_of(developer, token) == [name]
    staging = await developer.public_token(game_id, "staging")
    assert await modes_of(developer, staging) == []


async def test_history_has_each_change_once_newest_first(developer: Developer) -> None:
    game_id, first = await new_game(developer)
    second = await developer.version(game_id, {})
    target = {"game_id": game_id, "namespace_id": "prod"}
    for version_id in (second, second, first):
        await developer.good("set_version", **target, version_id=version_id)
    answer = await developer.good("version_history", **target)
    entry = {"namespace_id": ID, "version_id": ID, "deploy_ts": TIME}
    assert shape(answer) == {"versions": [entry]}
    assert [one["version_id"] for one in answer["versions"]] == [first, second, first]
    times = [one["deploy_ts"] for one in answer["versions"]]
    assert times == sorted(set(times), reverse=True)


async def test_history_has_pages(owner: Developer) -> None:
    game_id, first = await new_game(owner)
    second = await owner.version(game_id, {})
    target = {"game_id": game_id, "namespace_id": "prod"}
    for number in range(64):
        version_id = first if number % 2 else second
        await owner.good("set_version", **target, version_id=version_id)
    page = (await owner.good("version_history", **target))["versions"]
    assert len(page) == 64
    rest = await owner.good("version_history", **target, anchor=page[-1]["deploy_ts"])
    assert [one["version_id"] for one in rest["versions"]] == [first]
    whole = (await owner.good("version_history", **target, limit=256))["versions"]
    assert whole == page + rest["versions"]
    seen: list[Any] = []
    more: dict[str, Any] = {}
    while True:
        part = (await owner.good("version_history", **target, limit=20, **more))["versions"]
        if not part:
            break
        seen += part
        more = {"anchor": part[-1]["deploy_ts"]}
    assert seen == whole


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"limit": 0}, ("limit", "too-low")),
        ({"limit": 257}, ("limit", "too-high")),
        ({"limit": "many"}, ("limit", "wrong-type")),
        ({"anchor": "yesterday"}, ("anchor", "invalid")),
        ({"anchor": "2026-02-30T00:00:00.000Z"}, ("anchor", "invalid")),
    ],
)
async def test_invalid_page_is_refused(
    owner: Developer, fields: dict[str, Any], path: tuple[str, ...]
) -> None:
    game_id, _ = await new_game(owner)
    answer = await owner.call("version_history", game_id=game_id, namespace_id="prod", **fields)
    assert (answer.code, answer.errors) == ("QUERY_INVALID", (path,))


# Limits -------------------------------------------------------------------------------------------


async def test_set_limits_apply_to_players(developer: Developer) -> None:
    game_id = await developer.arena()
    target = {"game_id": game_id, "namespace_id": "prod"}
    env = await developer.service_token(game_id)
    lobby = await developer.lobby(game_id, env)
    fields: dict[str, Any] = {**target, "lobby_count_max": 1, "max_players": 2}
    assert await developer.good("set_mm_config", **fields) == {}
    limits = await limits_of(developer, game_id)
    assert limits.pop("lobby_count_max") == 1
    assert set(limits.values()) == {2}
    attached = await developer.door.call(
        "attach",
        {**target, "game_mode": "arena", "ports": {"game": {"address": "127.0.0.1", "port": 1}}},
        token=env,
    )
    assert attached.code == "MATCHMAKER_TOO_MANY_LOBBIES"
    token = await developer.public_token(game_id)
    codes = [
        (await developer.door.call("join", {"lobby_id": lobby["lobby_id"]}, token=token)).code
        for _ in range(3)
    ]
    assert codes == ["OK", "OK", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"]


async def test_limits_reach_32_bits(developer: Developer) -> None:
    game_id, _ = await new_game(developer)
    fields = {"game_id": game_id, "namespace_id": "prod"}
    most: dict[str, Any] = {"lobby_count_max": 0xFFFF_FFFF, "max_players": 0xFFFF_FFFF}
    assert await developer.good("validate_mm_config", **fields, **most) == {"errors": []}
    await developer.good("set_mm_config", **fields, **most)
    assert set((await limits_of(developer, game_id)).values()) == {0xFFFF_FFFF}


async def test_zero_limits_are_all_refused(developer: Developer) -> None:
    game_id, _ = await new_game(developer)
    fields: dict[str, Any] = {
        "game_id": game_id,
        "namespace_id": "prod",
        "lobby_count_max": 0,
        "max_players": 0,
    }
    response = await developer.good("validate_mm_config", **fields)
    paths = [["lobby_count_max", "too-low"], ["max_players", "too-low"]]
    assert [one["path"] for one in response["errors"]] == paths
    refused = await developer.call("set_mm_config", **fields)
    assert (refused.code, [list(one) for one in refused.errors]) == ("VALIDATION_FAILED", paths)
    assert set((await limits_of(developer, game_id)).values()) == {512, 256}


async def test_concurrent_sets_of_one_version_record_one_change(developer: Developer) -> None:
    target = {"game_id": await developer.arena(), "namespace_id": "prod"}
    version_id = await developer.version(target["game_id"], name="2.0.0")
    await asyncio.gather(
        *(developer.good("set_version", **target, version_id=version_id) for _ in range(8))
    )
    history = (await developer.good("version_history", **target))["versions"]
    assert [one["version_id"] for one in history].count(version_id) == 1
