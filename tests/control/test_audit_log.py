"""Audit log of a group: an entry for each change, pages, and entries of deleted objects."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import uuid4

import pytest

from pyservice.openapi import has_side_effects
from pyservice.schema.methods import METHODS
from tests.control.new_developers import new_developer
from tests.support.authorization_results import OK, Row, expected
from tests.support.authorization_rows import ROWS
from tests.support.command_line import json_output
from tests.support.full_service import Developer, ServiceClient
from tests.support.namespace_scenario import Bearer, NamespaceScenario, Records
from tests.support.tiers import one_of
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

WITHOUT_CALLER: Final = {"prepare_device_link"}
"""Changes that need no token have no entry."""
IN_DATA_PLANE: Final = {"start_trial"}
"""Changes of the data plane only, with an entry."""
CHANGES: Final = [
    row
    for row in ROWS
    if (row.changes and row.slug not in WITHOUT_CALLER) or row.slug in IN_DATA_PLANE
]
FIELDS: Final = {
    *("audit_id", "ts", "actor", "operation", "outcome", "group_id", "identity_id", "token_id"),
    *("address", "game_id", "namespace_id", "object_type", "object_id", "actor_name"),
}


def test_every_operation_that_writes_has_a_row_with_changes() -> None:
    data_plane = ("hosting.v1.Matchmaker.", "hosting.v1.Events.")
    writing = {
        method.slug
        for method in METHODS.values()
        if has_side_effects(method) and not method.name.startswith(data_plane)
    }
    assert writing == {row.slug for row in CHANGES} | WITHOUT_CALLER


async def _newest(developer: Developer, group_id: str, limit: int = 1) -> list[dict[str, Any]]:
    response = await developer.good("get_audit", group_id=group_id, limit=limit)
    return list(response["entries"])


@pytest.mark.parametrize("row", one_of(9, CHANGES), ids=lambda row: row.slug)
async def test_change_has_one_entry_with_caller_and_object(
    scenario: NamespaceScenario, client: ServiceClient, row: Row
) -> None:
    admitted = [one for one in scenario.bearers if expected(row, one) == OK]
    for kind in ("cloud", "env"):
        for bearer in [one for one in admitted if one.kind == kind][:1]:
            await _assert_entry(scenario, client, row, bearer)


async def _assert_entry(
    scenario: NamespaceScenario, client: ServiceClient, row: Row, bearer: Bearer
) -> None:
    fields = await row.fields(scenario)
    before = await _newest(scenario.owner, scenario.group_id)
    answer = await client.call(row.slug, fields, token=bearer.token)
    assert answer.code == OK, answer
    group_id = answer.body.get("group_id", scenario.group_id)
    entries = await _newest(scenario.owner, group_id, limit=2)
    assert entries[1:] == (before if group_id == scenario.group_id else [])
    entry = entries[0]
    assert entry.keys() <= FIELDS
    assert (entry["operation"], entry["outcome"]) == (row.slug, "OK")
    assert (entry["group_id"], entry["address"]) == (group_id, "127.0.0.1")
    if bearer.kind == "cloud":
        caller = await Developer(scenario.full_service, client, bearer.token).good("inspect_token")
        assert (entry["token_id"], entry["identity_id"]) == (
            caller["token_id"],
            caller["identity_id"],
        )
        assert entry["actor_name"] == await _name_of(scenario, caller["identity_id"])
    else:
        target = {"game_id": scenario.game_id, "namespace_id": "prod"}
        listed = (await scenario.owner.good("list_namespace_tokens", **target))["tokens"]
        assert entry["token_id"] in {one["token_id"] for one in listed}
        assert "identity_id" not in entry
        game = (await scenario.owner.good("get_game", game_id=scenario.game_id))["game"]
        assert entry["actor_name"] == f"{game['name_id']}/prod"
    assert entry["actor"] == bearer.kind
    if row.slug != "complete_device_link":
        ids = scenario.game_id, scenario.namespace_id, scenario.sibling_id
        known = str({**fields, **answer.body, "ids": ids})
        assert entry["object_id"] in known


async def _name_of(scenario: NamespaceScenario, identity_id: str) -> str:
    data_dir = scenario.full_service.data_dir
    listed = await json_output(data_dir, "identity", "list")
    [name] = [
        one["display_name"] for one in listed["identities"] if one["identity_id"] == identity_id
    ]
    return str(name)


async def test_pages_go_from_the_newest_to_the_oldest_entry(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    games = [await member.game(developer_group_id=group_id) for _ in range(5)]
    cursor: dict[str, Any] = {}
    seen: list[Any] = []
    sizes = []
    while True:
        page = await member.good("get_audit", group_id=group_id, limit=2, **cursor)
        seen += page["entries"]
        sizes.append(len(page["entries"]))
        if "cursor" not in page:
            break
        cursor = {"cursor": page["cursor"]}
    assert sizes == [2, 2, 1]
    assert [one["game_id"] for one in seen] == games[::-1]
    assert seen == (await member.good("get_audit", group_id=group_id))["entries"]


async def test_watch_wakes_on_a_new_entry_of_the_group(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    other, other_id = await new_developer(developer, records)
    index = (await member.good("get_audit", group_id=group_id))["watch"]["index"]
    waiting_task = asyncio.create_task(
        member.good("get_audit", group_id=group_id, watch_index=index)
    )
    await other.game(developer_group_id=other_id)
    done, _ = await asyncio.wait({waiting_task}, timeout=0.25)
    assert not done
    await member.game(developer_group_id=group_id)
    answer = await asyncio.wait_for(waiting_task, PATIENCE_S)
    assert [one["operation"] for one in answer["entries"]] == ["create_game"]


async def test_entries_of_a_deleted_game_remain(developer: Developer, records: Records) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.game(developer_group_id=group_id)
    await member.good("reserve_version_name", game_id=game_id)
    await member.good("delete_game", str(uuid4()), game_id=game_id)
    entries = await _newest(member, group_id, limit=10)
    assert [one["operation"] for one in entries] == [
        *("delete_game", "reserve_version_name", "create_game")
    ]
    assert {one["game_id"] for one in entries} == {game_id}


async def test_replayed_response_adds_no_entry(developer: Developer, records: Records) -> None:
    member, group_id = await new_developer(developer, records)
    fields = {"developer_group_id": group_id, "display_name": "Game"}
    first = await member.good("create_game", "key", **fields)
    assert await member.good("create_game", "key", **fields) == first
    assert len(await _newest(member, group_id, limit=10)) == 1


async def test_log_of_another_group_is_not_found(developer: Developer, records: Records) -> None:
    member, _ = await new_developer(developer, records)
    _, other_id = await new_developer(developer, records)
    assert await member.code("get_audit", group_id=other_id) == "GROUP_NOT_FOUND"


async def test_secrets_of_a_request_are_not_in_its_entry(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.game(developer_group_id=group_id)
    password, target = uuid4().hex, {"game_id": game_id, "namespace_id": "prod"}
    await member.good("set_auth_user", **target, user="tester", password=password)
    token = (await member.good("create_game_token", game_id=game_id))["token"]
    entries = await _newest(member, group_id, limit=10)
    assert [one["object_type"] for one in entries] == ["token", "user", "game"]
    assert password not in str(entries)
    assert token not in str(entries)


async def test_name_with_a_character_that_the_database_refuses_is_recorded(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.game(developer_group_id=group_id)
    fields = {"game_id": game_id, "namespace_id": "prod", "domain": "a\0b"}
    await member.good("remove_domain", **fields)
    [entry] = await _newest(member, group_id)
    assert entry["object_id"].startswith("a\ufffdb")
