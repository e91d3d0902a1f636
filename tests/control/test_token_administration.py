"""Commands of the operator on tokens of every identity: list, revoke, disable, enable."""

from __future__ import annotations

from typing import Any

import pytest

from pyservice.ids import RecordIds
from pyservice.storage import token_listing
from pyservice.storage.tables import cloud_tokens
from pyservice.timestamps import now_ms
from tests.control.new_developers import new_developer
from tests.support.command_line import error_output, json_output, output
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records

pytestmark = pytest.mark.anyio


def _as(developer: Developer, token: str) -> Developer:
    return Developer(developer.full_service, developer.client, token)


async def _listed(developer: Developer, *words: str) -> list[dict[str, Any]]:
    data_dir = developer.full_service.data_dir
    tokens: list[dict[str, Any]] = (await json_output(data_dir, "token", "list", *words))["tokens"]
    return tokens


async def _code(developer: Developer, token: str) -> str:
    return (await developer.client.call("inspect_token", {}, token=token)).code


async def _code_in_data_plane(developer: Developer, token: str) -> str:
    return (await developer.client.call("list", {}, token=token)).code


async def test_list_names_the_owner_of_each_token(developer: Developer, records: Records) -> None:
    member, group_id = await new_developer(developer, records)
    own = await member.good("inspect_token")
    game_id = await member.arena(developer_group_id=group_id)
    game_name = (await member.good("get_game", game_id=game_id))["game"]["name_id"]
    child = await member.good("create_game_token", game_id=game_id)
    target = {"game_id": game_id, "namespace_id": "prod"}
    public = await member.good("create_public_token", **target)
    identity = ("--identity", own["identity_id"])
    listed = await _listed(developer, *identity)
    ids = [public["token_id"], child["token_id"], own["token_id"]]
    assert [token["token_id"] for token in listed] == ids
    assert [token["kind"] for token in listed] == ["pub", "cloud", "cloud"]
    assert {token["identity_id"] for token in listed} == {own["identity_id"]}
    assert [token["group_id"] for token in listed] == [group_id, group_id, None]
    assert [token["creator_token_id"] for token in listed] == [own["token_id"]] * 2 + [None]
    assert listed[0]["namespace"] == f"{game_name}/prod"
    data_dir = developer.full_service.data_dir
    lines = (await output(data_dir, "token", "list", *identity)).splitlines()
    owner = f"{own['identity_id']} Somebody"
    assert lines == [
        f"{ids[0]}\tpub\tvalid\t{owner}\tnamespace {game_name}/prod",
        f"{ids[1]}\tcloud\tvalid\t{owner}\tgame {game_id}",
        f"{ids[2]}\tcloud\tvalid\t{owner}\tall groups",
    ]
    secrets = (child["token"], public["token"], member.token)
    assert not any(secret in text for secret in secrets for text in lines)
    of_kind = await _listed(developer, "--group", group_id, "--kind", "public")
    assert [token["token_id"] for token in of_kind] == [public["token_id"]]
    in_group = await _listed(developer, "--group", group_id, "--kind", "cloud")
    assert [token["token_id"] for token in in_group] == ids[1:]


async def test_list_shows_why_a_token_is_refused(developer: Developer, records: Records) -> None:
    identity_id, (group_id,) = await records.identity("States")
    _, valid = await records.cloud_token(identity_id, group_id)
    _, revoked = await records.cloud_token(identity_id, group_id, is_revoked=True)
    _, expired = await records.cloud_token(identity_id, group_id, expires_ms=now_ms() - 1)

    async def states(*words: str) -> dict[str, str]:
        listed = await _listed(developer, "--identity", identity_id, *words)
        return {token["token_id"]: token["state"] for token in listed}

    ended = {revoked: "revoked", expired: "expired"}
    assert await states() == {valid: "valid"}
    assert await states("--ended") == {valid: "valid", **ended}
    data_dir = developer.full_service.data_dir
    await output(data_dir, "identity", "disable", identity_id)
    assert await states("--ended") == {valid: "disabled", **ended}
    await records.leave(identity_id, group_id)
    assert await states() == {valid: "left-group"}


async def test_list_has_every_page(developer: Developer, records: Records) -> None:
    identity_id, (group_id,) = await records.identity("Pages")
    count = token_listing.PAGE + 5
    ids = RecordIds()
    rows = [
        {
            "token_id": token_id,
            "sha256": token_id.encode(),
            "identity_id": identity_id,
            "group_id": group_id,
            "game_id": None,
            "create_ms": 1,
            "expires_ms": None,
            "revoke_ms": None,
        }
        for token_id in (ids.new() for _ in range(count))
    ]
    async with records.database.write() as tx:
        await tx.run(cloud_tokens.insert(), rows)
    listed = await _listed(developer, "--identity", identity_id)
    assert [token["token_id"] for token in listed] == [row["token_id"] for row in reversed(rows)]


async def test_revocation_ends_tokens_of_any_kind_and_their_children(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.arena(developer_group_id=group_id)
    target = {"game_id": game_id, "namespace_id": "prod"}
    child = await member.good("create_game_token", game_id=game_id)
    grandchild = await _as(developer, child["token"]).good("create_game_token", game_id=game_id)
    public = await member.good("create_public_token", **target)
    created = await _as(developer, child["token"]).good("create_public_token", **target)
    kept = await member.good("create_public_token", **target)
    data_dir = developer.full_service.data_dir
    revoke = ("token", "revoke", child["token_id"], public["token_id"])
    for _ in range(2):
        assert await output(data_dir, *revoke) == ""
        for token in (child, grandchild):
            assert await _code(developer, token["token"]) == "TOKEN_REVOKED"
        assert await _code_in_data_plane(developer, public["token"]) == "TOKEN_REVOKED"
        assert await _code_in_data_plane(developer, created["token"]) == "OK"
    assert await json_output(data_dir, *revoke, "--cascade") == {}
    assert await _code_in_data_plane(developer, created["token"]) == "TOKEN_REVOKED"
    assert await _code_in_data_plane(developer, kept["token"]) == "OK"
    assert await _code(developer, member.token or "") == "OK"
    audit = (await member.good("get_audit", group_id=group_id, limit=2))["entries"]
    assert {entry["object_id"] for entry in audit} == {child["token_id"], public["token_id"]}
    assert {(entry["actor"], entry["operation"]) for entry in audit} == {
        ("operator", "revoke_tokens")
    }


async def test_unknown_id_revokes_nothing(developer: Developer, records: Records) -> None:
    identity_id, (group_id,) = await records.identity("Unknown")
    token, token_id = await records.cloud_token(identity_id, group_id)
    unknown = RecordIds().new()
    data_dir = developer.full_service.data_dir
    message = await error_output(data_dir, "token", "revoke", token_id, unknown)
    assert unknown in message
    assert token_id not in message
    assert await _code(developer, token) == "OK"
    assert "BODY_INVALID" in await error_output(data_dir, "token", "revoke", "no-id")


async def test_disabled_identity_is_refused_until_it_is_enabled(
    developer: Developer, records: Records
) -> None:
    identity_id, (left_id, group_id) = await records.identity("Left", "Stays")
    whole, _ = await records.cloud_token(identity_id)
    of_group, _ = await records.cloud_token(identity_id, group_id)
    revoked, _ = await records.cloud_token(identity_id, group_id, is_revoked=True)
    member = _as(developer, whole)
    game_id = await member.arena(developer_group_id=group_id)
    child = (await member.good("create_game_token", game_id=game_id))["token"]
    target = {"game_id": game_id, "namespace_id": "prod"}
    public = (await member.good("create_public_token", **target))["token"]
    await records.leave(identity_id, left_id)
    assert await _code(developer, whole) == "OK"
    data_dir = developer.full_service.data_dir
    for _ in range(2):
        assert await output(data_dir, "identity", "disable", identity_id) == ""
        answer = await developer.client.call("inspect_token", {}, token=whole)
        assert (answer.code, "operator" in answer.detail) == ("TOKEN_REVOKED", True)
        for token in (of_group, child, revoked):
            assert await _code(developer, token) == "TOKEN_REVOKED"
    assert await _code_in_data_plane(developer, public) == "OK"
    identities = (await json_output(data_dir, "identity", "list"))["identities"]
    state = {one["identity_id"]: one["disable_ms"] for one in identities}
    assert state[identity_id] > 0
    assert None in state.values()
    later, _ = await records.cloud_token(identity_id)
    assert await _code(developer, later) == "TOKEN_REVOKED"
    for _ in range(2):
        assert await json_output(data_dir, "identity", "enable", identity_id) == {}
        for token in (whole, of_group, child, later):
            assert await _code(developer, token) == "OK"
        assert await _code(developer, revoked) == "TOKEN_REVOKED"


async def test_unknown_identity_is_named(developer: Developer) -> None:
    unknown = RecordIds().new()
    for command in ("disable", "enable"):
        data_dir = developer.full_service.data_dir
        assert unknown in await error_output(data_dir, "identity", command, unknown)
