"""Namespaces: creation, versions, history and limits."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from pyservice.storage import namespaces
from pyservice.timestamps import now_ms
from tests.control.response_shapes import FLAG, ID, NAMESPACE_SUMMARY, NUMBER, TEXT, TIME, shape
from tests.support.full_service import ARENA_MODES, Developer
from tests.support.namespace_scenario import IDS, Records

pytestmark = pytest.mark.anyio

OF_CLIENT = ("", "_vpn", "_proxy", "_tor", "_hosting")
LIMITS = dict.fromkeys(
    ("lobby_count_max", *(f"max_players_per_client{source}" for source in OF_CLIENT)), NUMBER
)
CDN = {"domains": [], "auth_user_list": [], "enable_domain_public_auth": FLAG, "auth_type": TEXT}
CONFIG = {"cdn": CDN, "matchmaker": LIMITS, "kv": {}, "identity": {}}
NAMESPACE = {**NAMESPACE_SUMMARY, "config": CONFIG, "site_url": TEXT}


async def new_game(developer: Developer) -> tuple[str, str]:
    game_id = await developer.game()
    versions = (await developer.good("list_versions", game_id=game_id))["versions"]
    return game_id, versions[0]["version_id"]


async def limits_of(developer: Developer, game_id: str, name: str = "prod") -> dict[str, int]:
    response = await developer.good("get_namespace", game_id=game_id, namespace_id=name)
    limits: dict[str, int] = response["namespace"]["config"]["matchmaker"]
    return limits


# Creation and reads -------------------------------------------------------------------------------


async def test_new_namespace_is_usable_when_its_first_token_arrives(developer: Developer) -> None:
    game_id = await developer.game()
    version_id = await developer.version(game_id)
    fields = {"game_id": game_id, "display_name": "Beta", "name_id": "beta"}
    await developer.good("create_namespace", **fields, version_id=version_id)
    token = await developer.public_token(game_id, "beta")
    answer = await developer.client.call("list", {}, token=token)
    assert answer.code == "OK", answer
    attached = await developer.call(
        "attach",
        game_id=game_id,
        namespace_id="beta",
        game_mode="arena",
        ports={"game": {"address": "127.0.0.1", "port": 4000}},
    )
    assert attached.code == "OK", attached


async def test_new_namespace_has_the_defaults(developer: Developer) -> None:
    game_id, version_id = await new_game(developer)
    fields = {"display_name": "Nightly", "name_id": "nightly", "version_id": version_id}
    response = await developer.good("create_namespace", game_id=game_id, **fields)
    assert shape(response) == {"namespace_id": ID}
    answer = await developer.good("get_namespace", game_id=game_id, namespace_id="nightly")
    assert shape(answer) == {"namespace": NAMESPACE}
    namespace = answer["namespace"]
    assert namespace["namespace_id"] == response["namespace_id"]
    assert {name: namespace[name] for name in fields} == fields
    limits = dict(namespace["config"]["matchmaker"])
    assert limits.pop("lobby_count_max") == 512
    assert set(limits.values()) == {256}
    cdn = namespace["config"]["cdn"]
    assert (cdn["enable_domain_public_auth"], cdn["auth_type"]) == (True, "none")
    by_id = {"game_id": game_id, "namespace_id": response["namespace_id"]}
    assert await developer.good("get_namespace", **by_id) == answer


async def test_namespaces_are_listed_oldest_first(developer: Developer) -> None:
    game_id, version_id = await new_game(developer)
    for name in ("b", "a"):
        fields = {"game_id": game_id, "version_id": version_id}
        await developer.good("create_namespace", **fields, display_name=name, name_id=name)
    answer = await developer.good("list_namespaces", game_id=game_id)
    assert shape(answer) == {"namespaces": [NAMESPACE_SUMMARY]}
    names = [one["name_id"] for one in answer["namespaces"]]
    assert names == ["prod", "staging", "b", "a"]
    game = (await developer.good("get_game", game_id=game_id))["game"]
    assert game["namespaces"] == answer["namespaces"]


async def test_validate_and_create_refuse_the_same(developer: Developer) -> None:
    game_id, version_id = await new_game(developer)
    for fields, paths in (
        ({"display_name": " x", "name_id": "x" * 21}, ["display_name.invalid", "name_id.too-long"]),
        ({"display_name": "x", "name_id": "prod"}, ["name_id.not-unique"]),
    ):
        response = await developer.good("validate_namespace", game_id=game_id, **fields)
        assert shape(response) == {"errors": [{"path": [TEXT], "message": TEXT}]}
        assert [".".join(one["path"]) for one in response["errors"]] == paths
        fields |= {"game_id": game_id, "version_id": version_id}
        refusal = await developer.call("create_namespace", **fields)
        assert refusal.code == "VALIDATION_FAILED"
        assert [".".join(path) for path in refusal.errors] == paths
    listed = await developer.good("list_namespaces", game_id=game_id)
    assert len(listed["namespaces"]) == 2


async def test_name_of_another_game_is_free(developer: Developer) -> None:
    game_id, _ = await new_game(developer)
    fields = {"game_id": game_id, "display_name": "x", "name_id": "x" * 20}
    assert await developer.good("validate_namespace", **fields) == {"errors": []}


async def test_concurrent_creations_of_one_name_create_one(developer: Developer) -> None:
    game_id, version_id = await new_game(developer)
    fields = {"game_id": game_id, "version_id": version_id, "display_name": "x", "name_id": "race"}
    creations = (developer.call("create_namespace", **fields) for _ in range(8))
    answers = await asyncio.gather(*creations)
    assert sorted(one.code for one in answers) == ["OK"] + ["VALIDATION_FAILED"] * 7
    assert {one.errors for one in answers if one.code != "OK"} == {(("name_id", "not-unique"),)}


async def test_objects_of_another_game_are_not_found(developer: Developer) -> None:
    (game_id, _), (_, version_id) = await new_game(developer), await new_game(developer)
    other_id, _ = await new_game(developer)
    others = (await developer.good("list_namespaces", game_id=other_id))["namespaces"]
    for slug, more in (
        ("get_namespace", {}),
        ("version_history", {}),
        ("set_mm_config", {"lobby_count_max": 1, "max_players": 1}),
        ("patch_mm_config", {"lobby_count_max": 1}),
        ("validate_mm_config", {"lobby_count_max": 1, "max_players": 1}),
    ):
        fields = {"game_id": game_id, "namespace_id": others[0]["namespace_id"], **more}
        assert await developer.code(slug, **fields) == "NAMESPACE_NOT_FOUND", slug
    for unknown in (version_id, str(uuid4())):
        fields = {"game_id": game_id, "version_id": unknown}
        created = await developer.code("create_namespace", **fields, display_name="x", name_id="x")
        changed = await developer.code("set_version", **fields, namespace_id="prod")
        assert (created, changed) == ("VERSION_NOT_FOUND", "VERSION_NOT_FOUND")


# Version ------------------------------------------------------------------------------------------


async def modes_of(developer: Developer, token: str) -> list[str]:
    response = await developer.client.call("list", {}, token=token)
    assert response.code == "OK", response
    return [one["game_mode_id"] for one in response.body["game_modes"]]


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


async def test_history_has_pages_of_64_by_default(developer: Developer, records: Records) -> None:
    game_id, version_id = await new_game(developer)
    target = {"game_id": game_id, "namespace_id": "prod"}
    namespace = (await developer.good("get_namespace", **target))["namespace"]
    async with records.database.write() as tx:
        for ms in range(1, 65):
            entry = IDS.new(), namespace["namespace_id"], version_id, now_ms() + ms
            await namespaces.add_history(tx, *entry)

    async def page(**fields: Any) -> Any:
        return (await developer.good("version_history", **target, **fields))["versions"]

    whole = await page(limit=256)
    assert len(whole) == 65
    assert await page() == whole[:64]
    entries: list[Any] = []
    while part := await page(limit=20, **({"anchor": entries[-1]["deploy_ts"]} if entries else {})):
        entries += part
    assert entries == whole


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("limit", 0, "too-low"),
        ("limit", 257, "too-high"),
        ("limit", "many", "wrong-type"),
        ("anchor", "yesterday", "invalid"),
        ("anchor", "2026-02-30T00:00:00.000Z", "invalid"),
    ],
)
async def test_invalid_page_is_refused(owner: Developer, name: str, value: Any, word: str) -> None:
    fields = {"game_id": await owner.game(), "namespace_id": "prod", name: value}
    answer = await owner.call("version_history", **fields)
    assert (answer.code, answer.errors) == ("QUERY_INVALID", ((name, word),))


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
    ports = {"game": {"address": "127.0.0.1", "port": 1}}
    attached = await developer.client.call(
        "attach", {**target, "game_mode": "arena", "ports": ports}, token=env
    )
    assert attached.code == "MATCHMAKER_TOO_MANY_LOBBIES"
    token = await developer.public_token(game_id)
    codes = [
        (await developer.client.call("join", {"lobby_id": lobby["lobby_id"]}, token=token)).code
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
    limits = {"lobby_count_max": 0, "max_players": 0}
    fields: dict[str, Any] = {"game_id": game_id, "namespace_id": "prod", **limits}
    response = await developer.good("validate_mm_config", **fields)
    paths = [["lobby_count_max", "too-low"], ["max_players", "too-low"]]
    assert [one["path"] for one in response["errors"]] == paths
    refusal = await developer.call("set_mm_config", **fields)
    assert (refusal.code, [list(one) for one in refusal.errors]) == ("VALIDATION_FAILED", paths)
    assert set((await limits_of(developer, game_id)).values()) == {512, 256}


async def test_patch_changes_only_the_given_limits(developer: Developer) -> None:
    game_id, _ = await new_game(developer)
    fields: dict[str, Any] = {"game_id": game_id, "namespace_id": "prod"}
    assert await developer.good("patch_mm_config", **fields, max_players_per_client=7) == {}
    assert await developer.good("patch_mm_config", **fields) == {}
    limits = await limits_of(developer, game_id)
    assert (limits["lobby_count_max"], limits["max_players_per_client"]) == (512, 7)
    zeros: dict[str, Any] = {"lobby_count_max": 0, "max_players_per_client": 0}
    refusal = await developer.call("patch_mm_config", **fields, **zeros)
    paths = [["lobby_count_max", "too-low"], ["max_players_per_client", "too-low"]]
    assert (refusal.code, [list(one) for one in refusal.errors]) == ("VALIDATION_FAILED", paths)
    assert await limits_of(developer, game_id) == limits


async def test_concurrent_sets_of_one_version_record_one_change(developer: Developer) -> None:
    target = {"game_id": await developer.arena(), "namespace_id": "prod"}
    version_id = await developer.version(target["game_id"], name="2.0.0")
    changes = (developer.good("set_version", **target, version_id=version_id) for _ in range(8))
    await asyncio.gather(*changes)
    history = (await developer.good("version_history", **target))["versions"]
    assert [one["version_id"] for one in history].count(version_id) == 1


async def test_lobby_keeps_its_join_rules_across_versions(developer: Developer) -> None:
    game_id = await developer.arena()
    target = {"game_id": game_id, "namespace_id": "prod"}
    public, service = await developer.public_token(game_id), await developer.service_token(game_id)
    # Nothing listens at this address, so verification fails.
    verification = {"url": "https://nobody.invalid/ask", "headers": {}}
    verified = {"actions": {"join": {"enabled": True, "verification": verification}}}
    lobbies = []
    for number, actions in enumerate((verified, {}, verified, {})):
        modes = {"arena": {**ARENA_MODES["arena"], **actions}}
        config = {"matchmaker": {"game_modes": modes}}
        version_id = await developer.version(game_id, config, f"2.0.{number}")
        await developer.good("set_version", **target, version_id=version_id)
        lobbies.append((await developer.lobby(game_id, service))["lobby_id"])
    for limit in (None, 100):
        if limit:
            await developer.good("set_mm_config", **target, lobby_count_max=limit, max_players=100)
        joins = [
            await developer.client.call("join", {"lobby_id": n}, token=public) for n in lobbies
        ]
        assert [one.code for one in joins] == ["MATCHMAKER_VERIFICATION_UNAVAILABLE", "OK"] * 2
