"""Tokens that a token created: scope, expiry, creators in lists, and revocation with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyservice.timestamps import now_ms, rfc3339
from tests.control.new_developers import new_developer
from tests.support.full_service import Developer, eventually
from tests.support.namespace_scenario import Records
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

KINDS = ("service", "public", "development")


def _as(developer: Developer, token: str) -> Developer:
    return Developer(developer.full_service, developer.client, token)


async def _game_token(developer: Developer, game_id: str) -> dict[str, str]:
    created: dict[str, str] = await developer.good("create_game_token", game_id=game_id)
    return created


async def _device_token(developer: Developer, game_id: str) -> str:
    link = (await developer.client.call("prepare_device_link", {})).body["device_link_token"]
    fields = {"device_link_token": link}
    await developer.good("complete_device_link", **fields, game_id=game_id)
    response = await developer.client.call("get_device_link", fields)
    token: str = response.body["cloud_token"]
    return token


async def _inspection_code(developer: Developer, token: str) -> str:
    return (await developer.client.call("inspect_token", {}, token=token)).code


async def _own_id(developer: Developer) -> str:
    token_id: str = (await developer.good("inspect_token"))["token_id"]
    return token_id


async def _create_each_kind(developer: Developer, game_id: str) -> dict[str, dict[str, str]]:
    """Creates a token of each kind for the namespace `prod`."""
    created = {}
    for kind in KINDS:
        name = "environment_id" if kind == "service" else "namespace_id"
        fields = {"game_id": game_id, name: "prod"}
        created[kind] = await developer.good(f"create_{kind}_token", **fields)
    return created


async def _code_in_data_plane(developer: Developer, token: str) -> str:
    return (await developer.client.call("list", {}, token=token)).code


async def _namespace_records(developer: Developer, game_id: str) -> dict[str, dict[str, Any]]:
    target = {"game_id": game_id, "namespace_id": "prod"}
    listed = (await developer.good("list_namespace_tokens", **target))["tokens"]
    return {record["token_id"]: record for record in listed}


async def test_created_token_expires_with_its_creator(
    developer: Developer, records: Records
) -> None:
    identity_id, (group_id,) = await records.identity("Contractors")
    expires_ms = now_ms() // 1000 * 1000 + 3_600_000
    token, token_id = await records.cloud_token(identity_id, group_id, expires_ms=expires_ms)
    member = _as(developer, token)
    game_id = await member.game(developer_group_id=group_id)
    child = await _game_token(member, game_id)
    assert child["expires_ts"] == rfc3339(expires_ms)
    grandchild = await _game_token(_as(developer, child["token"]), game_id)
    device = await _device_token(_as(developer, grandchild["token"]), game_id)
    for one in (child["token"], grandchild["token"], device):
        inspected = await _as(developer, one).good("inspect_token")
        assert inspected["expires_ts"] == rfc3339(expires_ms)
        assert (inspected["group_id"], inspected["game_id"]) == (group_id, game_id)
    listed = (await member.good("list_group_tokens", group_id=group_id))["tokens"]
    creators = [record.get("creator", {}).get("token_id") for record in listed]
    assert creators == [grandchild["token_id"], child["token_id"], token_id, None]
    assert {record["identity_id"] for record in listed} == {identity_id}
    assert {record["group_id"] for record in listed} == {group_id}


@pytest.mark.parametrize("generation", [0, 1])
async def test_revocation_ends_every_later_generation(
    developer: Developer, records: Records, generation: int
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.game(developer_group_id=group_id)
    child = await _game_token(member, game_id)
    device = await _device_token(_as(developer, child["token"]), game_id)
    last = await _game_token(_as(developer, device), game_id)
    sibling = await _game_token(member, game_id)
    root_id = [await _own_id(member), child["token_id"]][generation]
    await member.good("revoke_group_token", group_id=group_id, token_id=root_id)
    for token in (child["token"], device, last["token"]):
        assert await _inspection_code(developer, token) == "TOKEN_REVOKED"
    code = await _inspection_code(developer, sibling["token"])
    assert code == ("TOKEN_REVOKED" if generation == 0 else "OK")


async def test_concurrent_creation_does_not_escape_a_revocation(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.game(developer_group_id=group_id)
    child = await _game_token(member, game_id)
    creator = _as(developer, child["token"])

    created: list[str] = []
    has_created = asyncio.Event()

    async def create() -> None:
        while (answer := await creator.call("create_game_token", game_id=game_id)).code == "OK":
            created.append(answer.body["token"])
            has_created.set()
        assert answer.code == "TOKEN_REVOKED"

    creations = [asyncio.create_task(create()) for _ in range(4)]
    async with asyncio.timeout(PATIENCE_S):
        await has_created.wait()
    revoke = {"group_id": group_id, "token_id": child["token_id"]}
    await member.good("revoke_group_token", **revoke)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*creations)
    codes = {await _inspection_code(developer, token) for token in created}
    assert codes == {"TOKEN_REVOKED"}


async def test_namespace_tokens_outlive_their_creator_until_a_cascade(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.arena(developer_group_id=group_id)
    child = await _game_token(member, game_id)
    own = await _create_each_kind(member, game_id)
    created = await _create_each_kind(_as(developer, child["token"]), game_id)
    listed = await _namespace_records(member, game_id)
    identity_id = (await member.good("inspect_token"))["identity_id"]
    for token in created.values():
        creator = {"token_id": child["token_id"], "identity_id": identity_id}
        assert listed[token["token_id"]]["creator"] == creator
    revoke = {"group_id": group_id, "token_id": child["token_id"]}
    await member.good("revoke_group_token", **revoke)
    for token in created.values():
        assert await _code_in_data_plane(developer, token["token"]) == "OK"
    for _ in range(2):
        assert await member.good("revoke_group_token", **revoke, cascade=True) == {}
        for token in created.values():
            assert await _code_in_data_plane(developer, token["token"]) == "TOKEN_REVOKED"
    for token in own.values():
        assert await _code_in_data_plane(developer, token["token"]) == "OK"


async def test_cascade_includes_tokens_of_later_generations(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.arena(developer_group_id=group_id)
    child = await _game_token(member, game_id)
    device = await _device_token(_as(developer, child["token"]), game_id)
    created = await _create_each_kind(_as(developer, device), game_id)
    revoke = {"group_id": group_id, "token_id": child["token_id"]}
    await member.good("revoke_group_token", **revoke, cascade=True)
    for token in created.values():
        assert await _code_in_data_plane(developer, token["token"]) == "TOKEN_REVOKED"


async def test_namespace_token_takes_cascade(developer: Developer) -> None:
    game_id = await developer.arena()
    created = (await _create_each_kind(developer, game_id))["public"]
    revoke = {"game_id": game_id, "namespace_id": "prod", "token_id": created["token_id"]}
    assert await developer.good("revoke_namespace_token", **revoke, cascade=True) == {}
    assert await _code_in_data_plane(developer, created["token"]) == "TOKEN_REVOKED"


async def test_cascade_spares_groups_that_the_identity_left(
    developer: Developer, records: Records
) -> None:
    identity_id, (own_group_id, left_id) = await records.identity("Own", "Left")
    token, _ = await records.cloud_token(identity_id)
    admin, _ = await records.cloud_token(identity_id)
    member = _as(developer, token)
    left_game_id = await member.arena(developer_group_id=left_id)
    game_id = await member.arena(developer_group_id=own_group_id)
    there = await _create_each_kind(member, left_game_id)
    here = await _create_each_kind(member, game_id)
    await records.leave(identity_id, left_id)

    async def has_left() -> bool:
        answer = await _as(developer, admin).call("get_group", group_id=left_id)
        return answer.code == "GROUP_NOT_FOUND"

    await eventually(has_left)
    revoke = {"group_id": own_group_id, "token_id": await _own_id(member)}
    await _as(developer, admin).good("revoke_group_token", **revoke, cascade=True)
    for created in here.values():
        assert await _code_in_data_plane(developer, created["token"]) == "TOKEN_REVOKED"
    for created in there.values():
        assert await _code_in_data_plane(developer, created["token"]) == "OK"


async def test_group_sees_but_does_not_revoke_tokens_of_members_for_all_groups(
    developer: Developer, records: Records
) -> None:
    identity_id, (group_id, other_id) = await records.identity("One", "Two")
    whole, whole_id = await records.cloud_token(identity_id)
    token, token_id = await records.cloud_token(identity_id, group_id)
    await records.cloud_token(identity_id, other_id)
    member = _as(developer, token)
    listed = (await member.good("list_group_tokens", group_id=group_id))["tokens"]
    assert [record["token_id"] for record in listed] == [token_id, whole_id]
    assert [record.get("group_id") for record in listed] == [group_id, None]
    revoke = {"group_id": group_id, "token_id": whole_id}
    assert await member.code("revoke_group_token", **revoke) == "FORBIDDEN"
    assert await _inspection_code(developer, whole) == "OK"
    await _as(developer, whole).good("revoke_group_token", **revoke)
    assert await _inspection_code(developer, whole) == "TOKEN_REVOKED"
