"""Namespace tokens and cloud tokens: creation, lists, limits and revocation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from pyservice.timestamps import now_ms
from tests.control.bulk_records import add_tokens
from tests.control.new_developers import new_developer
from tests.control.response_shapes import ID, TEXT, TIME, shape
from tests.support.full_service import Developer, eventually
from tests.support.namespace_scenario import Records

pytestmark = pytest.mark.anyio

KINDS = {
    "env": "create_service_token",
    "pub": "create_public_token",
    "dev": "create_development_token",
}


def target_of(game_id: str, slug: str = "") -> dict[str, Any]:
    name = "environment_id" if slug == "create_service_token" else "namespace_id"
    return {"game_id": game_id, name: "prod"}


async def make(developer: Developer, kind: str, game_id: str, **fields: Any) -> dict[str, str]:
    slug = KINDS[kind]
    created: dict[str, str] = await developer.good(slug, **target_of(game_id, slug), **fields)
    return created


async def code_in_data_plane(developer: Developer, token: str) -> str:
    return (await developer.client.call("list", {}, token=token)).code


async def works(developer: Developer, token: str) -> str:
    return (await developer.client.call("inspect_token", {}, token=token)).code


# Namespace tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_new_token_works_at_once_and_is_shown_once(developer: Developer, kind: str) -> None:
    game_id = await developer.arena()
    token = await make(developer, kind, game_id)
    ends = {"expires_ts": TIME} if kind == "dev" else {}
    assert shape(token) == {"token": TEXT, "token_id": ID, **ends}
    assert token["token"].startswith(f"{kind}_")
    assert len(token["token"]) <= 160
    assert await code_in_data_plane(developer, token["token"]) == "OK"
    response = await developer.good("list_namespace_tokens", **target_of(game_id))
    (record,) = response["tokens"]
    creator = {"token_id": ID, "identity_id": ID}
    expected = {"token_id": ID, "kind": TEXT, "create_ts": TIME, **ends, "creator": creator}
    assert shape(record) == expected
    assert (record["token_id"], record["kind"]) == (token["token_id"], kind)
    assert token["token"] not in str(response)


async def test_development_token_lives_30_days(developer: Developer) -> None:
    token = await make(developer, "dev", await developer.game())
    ends = datetime.fromisoformat(token["expires_ts"])
    rest = ends - datetime.now(UTC) - timedelta(days=30)
    assert abs(rest) < timedelta(minutes=1)


async def test_list_is_newest_first_and_has_ended_tokens(developer: Developer) -> None:
    game_id = await developer.arena()
    created = [(await make(developer, kind, game_id))["token_id"] for kind in KINDS]
    revoke = {**target_of(game_id), "token_id": created[1]}
    for _ in range(2):
        assert await developer.good("revoke_namespace_token", **revoke) == {}
    tokens = (await developer.good("list_namespace_tokens", **target_of(game_id)))["tokens"]
    assert [one["token_id"] for one in tokens] == created[::-1]
    assert [shape(one.get("revoke_ts")) for one in tokens] == [None, TIME, None]
    staging = {**target_of(game_id), "namespace_id": "staging"}
    assert await developer.good("list_namespace_tokens", **staging) == {"tokens": []}


@pytest.mark.parametrize("kind", KINDS)
async def test_revoking_one_token_keeps_the_other(developer: Developer, kind: str) -> None:
    game_id = await developer.arena()
    first, second = [await make(developer, kind, game_id) for _ in range(2)]
    assert first["token"] != second["token"]
    fields = {**target_of(game_id), "token_id": first["token_id"]}
    assert await developer.good("revoke_namespace_token", **fields) == {}
    assert await code_in_data_plane(developer, first["token"]) == "TOKEN_REVOKED"
    assert await code_in_data_plane(developer, second["token"]) == "OK"


async def test_reuse_returns_the_newest_valid_public_token(developer: Developer) -> None:
    game_id = await developer.arena()
    first = await make(developer, "pub", game_id, reuse=True)
    assert await make(developer, "pub", game_id, reuse=True) == first
    second = await make(developer, "pub", game_id)
    assert await make(developer, "pub", game_id, reuse=True) == second
    fields = {**target_of(game_id), "token_id": second["token_id"]}
    await developer.good("revoke_namespace_token", **fields)
    assert await make(developer, "pub", game_id, reuse=True) == first
    assert await code_in_data_plane(developer, first["token"]) == "OK"


async def test_token_of_another_namespace_is_not_found(developer: Developer) -> None:
    game_id = await developer.arena()
    token = await make(developer, "pub", game_id)
    staging = {**target_of(game_id), "namespace_id": "staging"}
    for target, token_id, code in (
        (staging, token["token_id"], "TOKEN_NOT_FOUND"),
        (target_of(game_id), str(uuid4()), "TOKEN_NOT_FOUND"),
        ({**staging, "namespace_id": "nowhere"}, token["token_id"], "NAMESPACE_NOT_FOUND"),
        ({**staging, "game_id": "no-such-game"}, token["token_id"], "GAME_NOT_FOUND"),
    ):
        fields = {**target, "token_id": token_id}
        assert await developer.code("revoke_namespace_token", **fields) == code
    assert await code_in_data_plane(developer, token["token"]) == "OK"


async def test_expired_service_token_is_reported(developer: Developer, records: Records) -> None:
    game_id = await developer.arena()
    response = await developer.good("get_namespace", **target_of(game_id))
    token = await records.service_token(response["namespace"]["namespace_id"], now_ms() - 1)
    await make(developer, "env", game_id)
    assert await code_in_data_plane(developer, token) == "TOKEN_EXPIRED"


PORT = {"protocol": "http", "port": 80}
NO_HOSTS = (
    *("localhost:7777", "http://localhost", "bad host!", "a..b", "-a", "a.", "[::1]", "é.example"),
    *("\0", "h" * 64, "*.example", "a/b", "\u212a.example"),
)
HOSTS = ("localhost", "Dev_Box.example", "192.0.2.7", "2001:DB8::7", "h" * 63 + ".example")
INVALID_RANGE = {**PORT, "port_range": {"min": 2, "max": 1}}
INVALID_TOKENS: tuple[tuple[dict[str, Any], str, list[str]], ...] = (
    ({"ports": {"A": PORT}}, "VALIDATION_FAILED", ["ports.A.invalid"]),
    ({"ports": {"a": {"protocol": "HTTP"}}}, "VALIDATION_FAILED", ["ports.a.protocol.not-allowed"]),
    (
        {"ports": {"a": INVALID_RANGE}},
        "VALIDATION_FAILED",
        ["ports.a.port_range.not-allowed", "ports.a.port_range.max.too-low"],
    ),
    ({"ports": {"a": {}}}, "BODY_INVALID", ["ports.a.protocol.required"]),
    ({"ports": {"a": {**PORT, "port": 65_536}}}, "BODY_INVALID", ["ports.a.port.too-high"]),
    ({"ports": {f"p{n}": PORT for n in range(17)}}, "BODY_INVALID", ["ports.too-many"]),
    ({"hostname": ""}, "BODY_INVALID", ["hostname.too-short"]),
    ({"hostname": "h" * 254}, "BODY_INVALID", ["hostname.too-long"]),
    *(({"hostname": text}, "VALIDATION_FAILED", ["hostname.invalid"]) for text in NO_HOSTS),
)


async def test_invalid_development_token_is_not_created(owner: Developer) -> None:
    target = target_of(await owner.game())
    for fields, code, paths in INVALID_TOKENS:
        answer = await owner.call("create_development_token", **target, **fields)
        assert (answer.code, [".".join(path) for path in answer.errors]) == (code, paths), fields
    assert await owner.good("list_namespace_tokens", **target) == {"tokens": []}


async def test_accepted_host_does_not_block_the_feed(developer: Developer) -> None:
    game_id = await developer.arena()
    for number, hostname in enumerate(HOSTS):
        token = (await make(developer, "dev", game_id, hostname=hostname))["token"]
        assert await code_in_data_plane(developer, token) == "OK"
        limits: dict[str, Any] = {"lobby_count_max": number + 1, "max_players": 3}
        await developer.good("set_mm_config", **target_of(game_id), **limits)


async def test_ports_at_their_limits_do_not_block_the_feed(developer: Developer) -> None:
    game_id = await developer.arena()
    ports = {
        "a": {"protocol": "udp"},
        "b": {"protocol": "tcp", "port_range": {"min": 0, "max": 0}},
        "c" * 26: {"protocol": "https", "port_range": {"min": 65_535, "max": 65_535}},
        "a-1": {"protocol": "tcp_tls", "port": 65_535},
    }
    await make(developer, "dev", game_id, ports=ports)
    await make(developer, "dev", game_id, ports={f"p{number}": PORT for number in range(16)})
    await make(developer, "pub", game_id)


# Limits -------------------------------------------------------------------------------------------


async def namespace_of(developer: Developer, game_id: str) -> str:
    response = await developer.good("get_namespace", **target_of(game_id))
    namespace_id: str = response["namespace"]["namespace_id"]
    return namespace_id


TOO_MANY = ("VALIDATION_FAILED", (("tokens", "too-many"),))


@pytest.mark.parametrize("kind", KINDS)
async def test_namespace_token_limit_is_a_thousand_per_kind(
    developer: Developer, records: Records, kind: str
) -> None:
    game_id = await developer.arena()
    token = await make(developer, kind, game_id)
    await add_tokens(records, await namespace_of(developer, game_id), kind, 998)
    last = await make(developer, kind, game_id)
    slug = KINDS[kind]
    answer = await developer.call(slug, **target_of(game_id, slug))
    assert (answer.code, answer.errors) == TOO_MANY
    # Each kind of token has its own limit, and revoked tokens do not count.
    await make(developer, "dev" if kind == "pub" else "pub", game_id)
    revoke = {**target_of(game_id), "token_id": token["token_id"]}
    await developer.good("revoke_namespace_token", **revoke)
    assert await code_in_data_plane(developer, token["token"]) == "TOKEN_REVOKED"
    assert await code_in_data_plane(developer, last["token"]) == "OK"
    await make(developer, kind, game_id)


@pytest.mark.parametrize(("kind", "is_refused"), [("pub", True), ("dev", True), ("env", False)])
async def test_revoked_tokens_count_against_a_limit(
    developer: Developer, records: Records, kind: str, is_refused: bool
) -> None:
    game_id = await developer.arena()
    token = await make(developer, kind, game_id)
    await add_tokens(records, await namespace_of(developer, game_id), kind, 10_001, is_revoked=True)
    slug = KINDS[kind]
    answer = await developer.call(slug, **target_of(game_id, slug))
    assert (answer.code, answer.errors) == (TOO_MANY if is_refused else ("OK", ()))
    # The data plane still receives changes: a new revocation takes effect.
    await developer.good("revoke_namespace_token", **target_of(game_id), token_id=token["token_id"])
    assert await code_in_data_plane(developer, token["token"]) == "TOKEN_REVOKED"


async def test_expired_development_tokens_do_not_count(
    developer: Developer, records: Records
) -> None:
    game_id = await developer.arena()
    namespace_id = await namespace_of(developer, game_id)
    for is_revoked in (False, True):
        await add_tokens(
            records, namespace_id, "dev", 5_001, expires_ms=now_ms() - 1, is_revoked=is_revoked
        )
    token = await make(developer, "dev", game_id)
    assert await code_in_data_plane(developer, token["token"]) == "OK"


async def test_ports_of_older_clients_are_ignored(developer: Developer) -> None:
    fields = {"lobby_ports": [{"label": "x", "any": None}], "hostname": "localhost"}
    token = await make(developer, "dev", await developer.game(), **fields)
    assert token["token"].startswith("dev_")


# Cloud tokens -------------------------------------------------------------------------------------


async def test_inspect_returns_the_token_owner(developer: Developer, records: Records) -> None:
    identity_id, (group_id,) = await records.identity("Inspected")
    token, token_id = await records.cloud_token(identity_id)
    member = Developer(developer.full_service, developer.client, token)
    assert await member.good("inspect_token") == {
        "token_id": token_id,
        "identity_id": identity_id,
        "agent": {"identity": {"identity_id": identity_id}},
    }
    game_id = await member.game(developer_group_id=group_id)
    response = await member.good("create_game_token", game_id=game_id)
    assert shape(response) == {"token": TEXT, "token_id": ID}
    of_game = Developer(member.full_service, member.client, response["token"])
    ids = {"identity_id": identity_id, "group_id": group_id, "game_id": game_id}
    agent = {"game_cloud": {"game_id": game_id}}
    token_info = await of_game.good("inspect_token")
    assert token_info == {"token_id": response["token_id"], **ids, "agent": agent}
    in_an_hour = now_ms() // 1000 * 1000 + 3_600_000
    ending, _ = await records.cloud_token(identity_id, group_id, expires_ms=in_an_hour)
    token_info = await Developer(member.full_service, member.client, ending).good("inspect_token")
    assert datetime.fromisoformat(token_info["expires_ts"]).timestamp() * 1000 == in_an_hour


async def test_game_token_is_listed_and_revoked_at_once(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    game_id = await member.game(developer_group_id=group_id)
    response = await member.good("create_game_token", game_id=game_id)
    tokens = (await member.good("list_group_tokens", group_id=group_id))["tokens"]
    whole = {"token_id": ID, "kind": TEXT, "create_ts": TIME, "identity_id": ID}
    creator = {"token_id": ID, "identity_id": ID}
    expected = [{**whole, "game_id": ID, "group_id": ID, "creator": creator}, whole]
    assert list(map(shape, tokens)) == expected
    assert {one["kind"] for one in tokens} == {"cloud"}
    own_id = (await member.good("inspect_token"))["token_id"]
    assert [one["token_id"] for one in tokens] == [response["token_id"], own_id]
    assert await works(member, response["token"]) == "OK"
    revoke = {"group_id": group_id, "token_id": response["token_id"]}
    for _ in range(2):
        assert await member.good("revoke_group_token", **revoke) == {}
    assert await works(member, response["token"]) == "TOKEN_REVOKED"
    tokens = (await member.good("list_group_tokens", group_id=group_id))["tokens"]
    assert shape(tokens[0]["revoke_ts"]) == TIME
    await member.good("revoke_group_token", group_id=group_id, token_id=own_id)
    assert await member.code("inspect_token") == "TOKEN_REVOKED", "a token can revoke itself"


async def test_token_of_another_group_is_not_found(developer: Developer, records: Records) -> None:
    identity_id, (group_id, other_id) = await records.identity("One", "Two")
    token, _ = await records.cloud_token(identity_id, group_id)
    _, sibling_id = await records.cloud_token(identity_id, other_id)
    member = Developer(developer.full_service, developer.client, token)
    for one in (sibling_id, str(uuid4())):
        fields = {"group_id": group_id, "token_id": one}
        assert await member.code("revoke_group_token", **fields) == "TOKEN_NOT_FOUND"


@pytest.mark.full
async def test_token_ends_at_its_expiry(developer: Developer, records: Records) -> None:
    identity_id, _ = await records.identity("Ending")
    token, _ = await records.cloud_token(identity_id, expires_ms=now_ms() + 1_500)
    member = Developer(developer.full_service, developer.client, token)
    assert await works(member, token) == "OK"

    async def is_over() -> bool:
        return await works(member, token) == "TOKEN_EXPIRED"

    await eventually(is_over)


async def test_group_token_needs_membership(developer: Developer, records: Records) -> None:
    identity_id, (group_id,) = await records.identity("Leaving")
    token, _ = await records.cloud_token(identity_id, group_id)
    assert await works(developer, token) == "OK"
    await records.leave(identity_id, group_id)

    async def is_refused() -> bool:
        return await works(developer, token) == "TOKEN_REVOKED"

    await eventually(is_refused)
