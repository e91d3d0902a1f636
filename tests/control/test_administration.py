"""`pyservice group`, `identity` and `token` beside a running service (decisions 3, 8.4, 9): what they make is there at
once, what they end has ended, and what they cannot do has a reason.
"""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.commands import refused, said, told
from tests.control.shapes import ID, NUMBER, TEXT, shape
from tests.control.test_games import unique
from tests.household import Developer

pytestmark = pytest.mark.anyio


async def _person(developer: Developer) -> str:
    """Id of a new identity."""
    return await said(
        developer.house.data_dir, "identity", "create", "--display-name", unique("Person")
    )


async def _group(developer: Developer, *words: str) -> str:
    """Id of a new group."""
    data_dir = developer.house.data_dir
    return await said(data_dir, "group", "create", "--display-name", unique("Group"), *words)


async def test_an_identity_is_made_and_listed_with_its_groups(owner: Developer) -> None:
    data_dir, name = owner.house.data_dir, unique("Person")
    made = await told(data_dir, "identity", "create", "--display-name", name)
    assert shape(made) == {"identity_id": ID}
    group_id = await _group(owner, "--owner", made["identity_id"])
    listed = await told(data_dir, "identity", "list")
    [mine] = [one for one in listed["identities"] if one["identity_id"] == made["identity_id"]]
    assert shape(mine) == {
        "identity_id": ID,
        "display_name": TEXT,
        "create_ms": NUMBER,
        "group_ids": [ID],
    }
    assert (mine["display_name"], mine["group_ids"]) == (name, [group_id])
    lines = (await said(data_dir, "identity", "list")).splitlines()
    assert f"{made['identity_id']}\t{name}" in lines


async def test_a_group_is_the_services_owners_unless_said_otherwise(owner: Developer) -> None:
    data_dir = owner.house.data_dir
    owner_id = (await owner.good("inspect_token"))["identity_id"]
    group_id = await _group(owner)
    listed = (await told(data_dir, "group", "list"))["groups"]
    [mine] = [one for one in listed if one["group_id"] == group_id]
    assert (mine["owner_identity_id"], mine["member_ids"]) == (owner_id, [owner_id])
    lines = (await said(data_dir, "group", "list")).splitlines()
    assert f"{group_id}\t{mine['display_name']}" in lines
    # The owner's token reaches it at once.
    answer = await owner.good("get_group", group_id=group_id)
    assert answer["group"]["member_count"] == 1


async def test_a_new_member_sees_the_group_at_once_and_waits_for_it(developer: Developer) -> None:
    data_dir = developer.house.data_dir
    person = await _person(developer)
    token = await said(data_dir, "token", "create", "--identity", person)
    me = Developer(developer.house, developer.door, token)
    games = await me.good("get_games")
    assert games["groups"] == []
    waiting = asyncio.create_task(me.good("get_games", watch_index=games["watch"]["index"]))
    group_id = developer.house.group_id
    for _ in range(2):
        words = ("group", "add-member", "--group", group_id, "--identity", person)
        assert await said(data_dir, *words) == ""
    answer = await asyncio.wait_for(waiting, 5)
    [group] = answer["groups"]
    assert (group["group_id"], group["is_current_identity_member"]) == (group_id, True)
    waiting = asyncio.create_task(me.good("get_games", watch_index=answer["watch"]["index"]))
    words = ("group", "remove-member", "--group", group_id, "--identity", person)
    assert await said(data_dir, *words) == ""
    answer = await asyncio.wait_for(waiting, 5)
    assert answer["groups"] == []
    assert await me.code("get_group", group_id=group_id) == "GROUP_NOT_FOUND"
    assert await said(data_dir, *words) == ""


async def test_tokens_of_a_group_end_with_the_membership(developer: Developer) -> None:
    data_dir = developer.house.data_dir
    person, group_id = await _person(developer), await _group(developer)
    member = ("--group", group_id, "--identity", person)
    assert "FORBIDDEN" in await refused(data_dir, "token", "create", *member)
    await said(data_dir, "group", "add-member", *member)
    made = await told(data_dir, "token", "create", *member)
    assert shape(made) == {"token": TEXT, "token_id": ID}
    me = Developer(developer.house, developer.door, made["token"])
    game_id = await me.game(developer_group_id=group_id)
    version_id = await me.version(game_id)
    await me.good("set_version", game_id=game_id, namespace_id="prod", version_id=version_id)
    lobby = await me.lobby(game_id, made["token"])
    await said(data_dir, "group", "remove-member", *member)
    assert await me.code("get_group", group_id=group_id) == "TOKEN_REVOKED"

    # The data plane believes a token for less than a second.
    async def is_over() -> bool:
        fields = {"game_id": game_id, "lobby_id": lobby["lobby_id"]}
        return (await me.call("detach", **fields)).code == "TOKEN_REVOKED"

    async with asyncio.timeout(1.5):
        while not await is_over():
            await asyncio.sleep(0.02)


async def test_the_owner_of_a_group_stays_its_member(owner: Developer) -> None:
    data_dir = owner.house.data_dir
    group_id = await _group(owner)
    owner_id = (await owner.good("inspect_token"))["identity_id"]
    member = ("--group", group_id, "--identity", owner_id)
    assert "IN_USE" in await refused(data_dir, "group", "remove-member", *member)
    assert (await owner.good("get_group", group_id=group_id))["group"]["member_count"] == 1


async def test_a_token_covers_what_was_asked_for(developer: Developer) -> None:
    data_dir = developer.house.data_dir
    game_id = await developer.game()
    name = (await developer.good("get_game", game_id=game_id))["game"]["name_id"]
    group_id = developer.house.group_id
    for words, scope in (
        (("--group", group_id), (group_id, None)),
        (("--game", game_id), (group_id, game_id)),
        (("--game", name), (group_id, game_id)),
    ):
        token = await said(data_dir, "token", "create", *words)
        assert token.startswith("cloud_")
        whose = await Developer(developer.house, developer.door, token).good("inspect_token")
        assert (whose.get("group_id"), whose.get("game_id")) == scope


async def test_tokens_of_a_namespace_are_good_listed_and_can_be_revoked(
    developer: Developer,
) -> None:
    data_dir = developer.house.data_dir
    game_id = await developer.arena()
    game = (await developer.good("get_game", game_id=game_id))["game"]
    place = {"game_id": game_id, "namespace_id": "prod"}
    names = (f"{game['name_id']}/prod", game["namespaces"][0]["namespace_id"])
    for kind, prefix, name in (("public", "pub", names[0]), ("environment", "env", names[1])):
        words = ("token", "create", "--kind", kind, "--namespace", name)
        made = await told(data_dir, *words)
        assert made["token"].startswith(f"{prefix}_")
        assert (await developer.door.call("regions", {}, token=made["token"])).code == "OK"
        listed = (await developer.good("list_namespace_tokens", **place))["tokens"]
        assert made["token_id"] in {one["token_id"] for one in listed}
        await developer.good("revoke_namespace_token", **place, token_id=made["token_id"])
        answer = await developer.door.call("regions", {}, token=made["token"])
        assert answer.code in ("TOKEN_REVOKED", "TOKEN_INVALID")


async def test_what_is_not_there_is_told_by_its_code(owner: Developer) -> None:
    data_dir, nobody = owner.house.data_dir, str(uuid4())
    create = ("token", "create")
    for words, code in (
        ((*create, "--group", nobody), "GROUP_NOT_FOUND"),
        ((*create, "--game", "nowhere"), "GAME_NOT_FOUND"),
        ((*create, "--identity", nobody), "NOT_FOUND"),
        ((*create, "--kind", "public", "--namespace", "no/where"), "NAMESPACE_NOT_FOUND"),
        ((*create, "--kind", "public", "--namespace", nobody), "NAMESPACE_NOT_FOUND"),
        (("group", "add-member", "--group", nobody, "--identity", nobody), "GROUP_NOT_FOUND"),
        (
            ("group", "add-member", "--group", owner.house.group_id, "--identity", nobody),
            "NOT_FOUND",
        ),
        (("group", "create", "--display-name", "x", "--owner", nobody), "NOT_FOUND"),
        (("group", "create", "--display-name", " x"), "VALIDATION_FAILED"),
        (("identity", "create", "--display-name", "x" * 129), "VALIDATION_FAILED"),
        (("identity", "create", "--display-name", ""), "BODY_INVALID"),
    ):
        assert f"{code}: " in await refused(data_dir, *words), words


async def test_flags_that_do_not_belong_together_are_refused(owner: Developer) -> None:
    data_dir, group_id = owner.house.data_dir, owner.house.group_id
    for words in (
        (),
        ("--kind", "public"),
        ("--namespace", "a/b"),
        ("--group", group_id, "--game", "a"),
        ("--group", group_id, "--kind", "public", "--namespace", "a/b"),
    ):
        assert "--" in await refused(data_dir, "token", "create", *words), words
