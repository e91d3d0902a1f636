"""Idempotency keys: replays, reuse, restarts and the secret of stored messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_bytes
from signal import SIGKILL, SIGTERM
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.idempotent_changes import Change, IdempotentChanges
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import devices_pb2 as pb
from pyservice.storage.database import Transaction
from pyservice.storage.tables import idempotent_answers
from tests.control.new_developers import new_developer, unique
from tests.control.service_fixtures import each_database
from tests.support.databases import Databases
from tests.support.full_service import STOP_TIMEOUT_S, Developer, FullService, HttpClient, running
from tests.support.namespace_scenario import Records

pytestmark = pytest.mark.anyio


def new_key() -> str:
    return uuid4().hex


async def games_named(developer: Developer, name: str) -> list[str]:
    response = await developer.good("get_games")
    return [one["game_id"] for one in response["games"] if one["display_name"] == name]


def new_game(developer: Developer) -> dict[str, Any]:
    return {"developer_group_id": developer.full_service.group_id, "display_name": unique()}


async def test_same_key_replays_the_response(developer: Developer) -> None:
    key, fields = new_key(), new_game(developer)
    first = await developer.good("create_game", key, **fields)
    assert await developer.good("create_game", key, **fields) == first
    assert await developer.good("create_game", new_key(), **fields) != first
    assert len(await games_named(developer, fields["display_name"])) == 2


async def test_same_key_with_another_message_is_refused(developer: Developer) -> None:
    key, fields = new_key(), new_game(developer)
    await developer.good("create_game", key, **fields)
    other = {**fields, "display_name": unique()}
    assert await developer.code("create_game", key, **other) == "IDEMPOTENCY_KEY_REUSED"
    assert await games_named(developer, other["display_name"]) == []


async def test_same_key_with_another_operation_is_refused(developer: Developer) -> None:
    key, name = new_key(), unique("Group")
    await developer.good("create_group", key, display_name=name)
    fields = new_game(developer)
    assert await developer.code("create_game", key, **fields) == "IDEMPOTENCY_KEY_REUSED"


async def test_keys_are_shared_by_both_transports(full_service: FullService) -> None:
    key = new_key()
    async with full_service.open_client("http") as http, full_service.open_client("grpc") as grpc:
        first, second = Developer(full_service, http), Developer(full_service, grpc)
        fields = new_game(first)
        response = await first.good("create_game", key, **fields)
        assert await second.good("create_game", key, **fields) == response
        other = {**fields, "display_name": unique()}
        assert await second.code("create_game", key, **other) == "IDEMPOTENCY_KEY_REUSED"


async def test_concurrent_duplicates_share_one_change(developer: Developer) -> None:
    key, fields = new_key(), new_game(developer)
    creations = (developer.good("create_game", key, **fields) for _ in range(16))
    answers = await asyncio.gather(*creations)
    assert len({one["game_id"] for one in answers}) == 1
    assert len(await games_named(developer, fields["display_name"])) == 1


async def test_different_concurrent_message_is_refused(developer: Developer) -> None:
    key = new_key()
    requests = [new_game(developer) for _ in range(8)]
    creations = (developer.call("create_game", key, **fields) for fields in requests)
    answers = await asyncio.gather(*creations)
    assert sorted(one.code for one in answers) == ["IDEMPOTENCY_KEY_REUSED"] * 7 + ["OK"]


async def test_failure_is_retried(developer: Developer) -> None:
    key, game_id = new_key(), await developer.game()
    namespace = await developer.good("get_namespace", game_id=game_id, namespace_id="prod")
    version_id = namespace["namespace"]["version_id"]
    fields = {"game_id": game_id, "name_id": "late", "display_name": "Late"}
    unknown = {**fields, "version_id": str(uuid4())}
    assert await developer.code("create_namespace", key, **unknown) == "VERSION_NOT_FOUND"
    response = await developer.good("create_namespace", key, **fields, version_id=version_id)
    repeat = await developer.good("create_namespace", key, **fields, version_id=version_id)
    assert repeat == response


async def test_name_that_became_free_is_accepted_under_the_same_key(developer: Developer) -> None:
    """The refusal of a taken name is not stored, because the name can become free."""
    game_id, other_id = await developer.arena(), await developer.arena()
    domain, key = f"{uuid4().hex[:16]}.example", new_key()
    first_game = {"game_id": game_id, "namespace_id": "prod", "domain": domain}
    other_game = {**first_game, "game_id": other_id}
    await developer.good("add_domain", **other_game)
    assert await developer.code("add_domain", key, **first_game) == "VALIDATION_FAILED"
    await developer.good("remove_domain", **other_game)
    assert await developer.good("add_domain", key, **first_game) == {}


async def test_callers_have_separate_keys(developer: Developer, records: Records) -> None:
    key, name = new_key(), unique("Group")
    member, _ = await new_developer(developer, records)
    first = await developer.good("create_group", key, display_name=name)
    assert await member.good("create_group", key, display_name=name) != first


async def test_reverted_change_is_not_repeated(developer: Developer) -> None:
    game_id, key = await developer.arena(), new_key()
    target = {"game_id": game_id, "namespace_id": "prod"}
    fields: dict[str, Any] = {**target, "lobby_count_max": 7, "max_players": 7}
    await developer.good("set_mm_config", key, **fields)
    await developer.good("set_mm_config", **{**fields, "lobby_count_max": 9})
    assert await developer.good("set_mm_config", key, **fields) == {}
    response = await developer.good("get_namespace", **target)
    assert response["namespace"]["config"]["matchmaker"]["lobby_count_max"] == 9


@pytest.mark.parametrize("slug", ["create_public_token", "create_development_token"])
async def test_signed_token_is_the_same_under_its_key(developer: Developer, slug: str) -> None:
    fields = {"game_id": await developer.game(), "namespace_id": "prod"}
    key = new_key()
    response = await developer.good(slug, key, **fields)
    assert await developer.good(slug, key, **fields) == response
    assert (await developer.good(slug, new_key(), **fields))["token"] != response["token"]


async def test_key_is_ignored_where_a_secret_is_returned(developer: Developer) -> None:
    game_id, key = await developer.game(), new_key()
    for slug, fields in (
        ("create_service_token", {"game_id": game_id, "environment_id": "prod"}),
        ("create_game_token", {"game_id": game_id}),
    ):
        created = [await developer.good(slug, key, **fields) for _ in range(2)]
        assert created[0]["token_id"] != created[1]["token_id"]
        assert created[0]["token"] != created[1]["token"]


async def test_malformed_key_is_refused_by_both_transports(full_service: FullService) -> None:
    for transport in ("http", "grpc"):
        async with full_service.open_client(transport) as client:
            developer = Developer(full_service, client)
            fields = new_game(developer)
            for key in ("", "x" * 256, "a b"):
                assert await developer.code("create_game", key, **fields) == "HEADER_INVALID"
            assert await games_named(developer, fields["display_name"]) == []
            response = await developer.good("create_game", new_key().ljust(255, "x"), **fields)
            assert await games_named(developer, fields["display_name"]) == [response["game_id"]]


@pytest.mark.parametrize("key", ["é", "a\tb"])
async def test_key_of_other_bytes_is_refused(owner: Developer, key: str) -> None:
    assert isinstance(owner.client, HttpClient)
    headers: Any = {"idempotency-key": key.encode()}
    content = json.dumps(new_game(owner)).encode()
    answer = await owner.client.request(
        "POST", "/cloud/games", content, token=owner.token, headers=headers
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "HEADER_INVALID")


# Secret of stored messages ------------------------------------------------------------------------


async def remembered_by(changes: IdempotentChanges, caller: Caller) -> str:
    created = uuid4().hex

    async def change(_: Transaction) -> pb.GetDeviceLinkResponse:
        return pb.GetDeviceLinkResponse(cloud_token=created)

    request = pb.GetDeviceLinkRequest(device_link_token="secret")
    return (await changes.apply(caller, request, pb.GetDeviceLinkResponse, change)).cloud_token


def caller_with_a_key() -> Caller:
    call = Call(ray_id="0" * 32, address=b"\x7f\0\0\1", idempotency_key=new_key())
    return Caller(TokenKind.CLOUD, uuid4().bytes, b"", uuid4().bytes, call)


async def test_stored_message_needs_the_same_secret(records: Records) -> None:
    caller, secret, other_secret = caller_with_a_key(), token_bytes(32), token_bytes(32)
    created = await remembered_by(IdempotentChanges(records.database, mac_key=secret), caller)
    assert (
        await remembered_by(IdempotentChanges(records.database, mac_key=secret), caller) == created
    )
    for other in (other_secret, None):
        with pytest.raises(ServiceError, match="IDEMPOTENCY_KEY_REUSED"):
            await remembered_by(IdempotentChanges(records.database, mac_key=other), caller)


async def test_stored_hash_depends_on_the_secret(records: Records) -> None:
    async def traces() -> list[bytes]:
        async with records.database.read() as tx:
            return [row.message_hash for row in await tx.all(select(idempotent_answers))]

    before = await traces()
    for mac_key in (token_bytes(32), token_bytes(32), None, None):
        changes = IdempotentChanges(records.database, mac_key=mac_key)
        await remembered_by(changes, caller_with_a_key())
    after = await traces()
    assert (len(after) - len(before), len(set(after) - set(before))) == (4, 4)


# Restart ------------------------------------------------------------------------------------------


@pytest.mark.full
@each_database
async def test_responses_survive_a_restart_and_a_kill_but_not_a_lost_key(
    kind: str, tmp_path: Path, databases: Databases
) -> None:
    with running(FullService(tmp_path, databases.url(kind))) as service:
        async with service.open_client("http") as client:
            developer = Developer(service, client)
            key, fields = new_key(), new_game(developer)
            response = await developer.good("create_game", key, **fields)
            for signal_number in (SIGTERM, SIGKILL):
                stop(service, signal_number)
                service.start()
                assert await developer.good("create_game", key, **fields) == response
            other = {**fields, "display_name": unique()}
            assert await developer.code("create_game", key, **other) == "IDEMPOTENCY_KEY_REUSED"
            # The key file is missing, as after a restore of the database alone.
            stop(service, SIGTERM)
            (service.data_dir / "control" / "keys.json").unlink()
            service.start()
            assert await developer.code("create_game", key, **fields) == "IDEMPOTENCY_KEY_REUSED"
            assert await games_named(developer, fields["display_name"]) == [response["game_id"]]
            assert await developer.good("create_game", new_key(), **fields) != response


def stop(service: FullService, signal_number: int) -> None:
    assert service.process is not None
    service.process.send_signal(signal_number)
    service.process.wait(STOP_TIMEOUT_S)


# Changes that need a resource ---------------------------------------------------------------------


class Ports:
    def __init__(self) -> None:
        self.prepared_count = 0
        self.are_used = False

    @contextlib.asynccontextmanager
    async def prepared(self) -> AsyncIterator[Change[pb.GetDeviceLinkResponse]]:
        if self.are_used:
            raise ServiceError("PORTS_EXHAUSTED")
        self.prepared_count += 1
        number = str(self.prepared_count)

        async def change(_: Transaction) -> pb.GetDeviceLinkResponse:
            return pb.GetDeviceLinkResponse(cloud_token=number)

        yield change


async def change_with(
    ports: Ports, changes: IdempotentChanges, caller: Caller, message: str = "one"
) -> str:
    request = pb.GetDeviceLinkRequest(device_link_token=message)
    answer = await changes.apply_with_resource(
        caller, request, pb.GetDeviceLinkResponse, ports.prepared
    )
    return answer.cloud_token


async def test_replay_succeeds_without_its_resource(records: Records) -> None:
    ports, changes, caller = Ports(), IdempotentChanges(records.database), caller_with_a_key()
    ports.are_used = True
    with pytest.raises(ServiceError):
        await change_with(ports, changes, caller)
    ports.are_used = False
    assert await change_with(ports, changes, caller) == "1", "a failure is not remembered"
    ports.are_used = True
    assert await change_with(ports, changes, caller) == "1"
    with pytest.raises(ServiceError, match="IDEMPOTENCY_KEY_REUSED"):
        await change_with(ports, changes, caller, "another")
    with pytest.raises(ServiceError, match="PORTS_EXHAUSTED"):
        await change_with(ports, changes, caller_with_a_key())


async def test_concurrent_duplicates_prepare_once(records: Records) -> None:
    ports, changes, caller = Ports(), IdempotentChanges(records.database), caller_with_a_key()
    created = await asyncio.gather(*(change_with(ports, changes, caller) for _ in range(8)))
    assert (set(created), ports.prepared_count) == ({"1"}, 1)
