from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable
from typing import Any
from uuid import uuid4

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.idempotent_changes import IdempotentChanges
from pyservice.pb.hosting.v1.devices_pb2 import GetDeviceLinkRequest, GetDeviceLinkResponse
from pyservice.storage.database import Conflict, Transaction
from tests.control.bulk_records import add_users, add_versions
from tests.support.full_service import Developer, ServiceResponse
from tests.support.game_back_end import GameBackEnd
from tests.support.game_back_end import back_end as back_end
from tests.support.namespace_scenario import Records
from tests.support.upload_files import tar

pytestmark = pytest.mark.anyio

CALLERS = 8
ROUNDS = 6


async def codes_of(calls: Iterable[Awaitable[ServiceResponse]]) -> Counter[str]:
    return Counter(answer.code for answer in await asyncio.gather(*calls))


async def tags_of(back_end: GameBackEnd, build_id: str) -> dict[str, str]:
    return dict((await back_end.good("get_build", build_id=build_id))["build"]["tags"])


async def test_exclusive_tag_is_on_one_build(back_end: GameBackEnd) -> None:
    ids = [(await back_end.prepare(tar()))["build"]["id"] for _ in range(CALLERS)]
    for number in range(ROUNDS):
        fields: dict[str, Any] = {"tags": {"current": str(number)}, "exclusive_tags": ["current"]}
        calls = [back_end.call("patch_build_tags", build_id=one, **fields) for one in ids]
        assert await codes_of(calls) == {"OK": CALLERS}
        assert len(await back_end.listed(tags_json=f'{{"current": "{number}"}}')) == 1
        assert ["current" in await tags_of(back_end, one) for one in ids].count(True) == 1


async def test_tag_count_limit_holds(back_end: GameBackEnd) -> None:
    build_id = (await back_end.prepare(tar()))["build"]["id"]
    several = [{f"tag-{caller}-{number}": "x" for number in range(10)} for caller in range(CALLERS)]
    calls = [back_end.call("patch_build_tags", build_id=build_id, tags=tags) for tags in several]
    assert await codes_of(calls) == {"OK": 3, "VALIDATION_FAILED": CALLERS - 3}
    assert len(await tags_of(back_end, build_id)) == 30


async def test_tag_set_concurrently_succeeds_for_all(back_end: GameBackEnd) -> None:
    build_id = (await back_end.prepare(tar()))["build"]["id"]
    for number in range(ROUNDS):
        several = [{f"round-{number}": f"{caller}"} for caller in range(CALLERS)]
        calls = [
            back_end.call("patch_build_tags", build_id=build_id, tags=tags) for tags in several
        ]
        assert await codes_of(calls) == {"OK": CALLERS}
        assert (await tags_of(back_end, build_id))[f"round-{number}"] in map(str, range(CALLERS))


async def test_build_deleted_while_tagged_is_gone(back_end: GameBackEnd) -> None:
    for _ in range(ROUNDS):
        build_id = (await back_end.prepare(tar()))["build"]["id"]
        removal = back_end.developer.call(
            "delete_build", game_id=back_end.game_id, build_id=build_id
        )
        several = [{f"t{caller}": "x"} for caller in range(CALLERS)]
        calls = [
            back_end.call("patch_build_tags", build_id=build_id, tags=tags) for tags in several
        ]
        removed, *tagged = await asyncio.gather(removal, *calls)
        assert removed.code == "OK"
        assert {one.code for one in tagged} <= {"OK", "BUILD_NOT_FOUND"}


async def test_repeated_conflicts_end_in_success(records: Records) -> None:
    call = Call(ray_id="0" * 32, address=b"\x7f\0\0\1")
    caller = Caller(TokenKind.CLOUD, uuid4().bytes, b"", uuid4().bytes, call)
    attempts = 0

    async def change(_: Transaction) -> GetDeviceLinkResponse:
        nonlocal attempts
        if attempts < 8:
            attempts += 1
            raise Conflict("taken")
        return GetDeviceLinkResponse(cloud_token="made")

    request = GetDeviceLinkRequest(device_link_token="one")
    created = await IdempotentChanges(records.database).apply(
        caller, request, GetDeviceLinkResponse, change
    )
    assert (created.cloud_token, attempts) == ("made", 8)


async def test_last_user_slots_are_given_once(owner: Developer, records: Records) -> None:
    target = {"game_id": await owner.game(), "namespace_id": "prod"}
    response = await owner.good("get_namespace", **target)
    await add_users(records, response["namespace"]["namespace_id"], 1_021)
    calls = [
        owner.call("set_auth_user", **target, user=f"new-{number}", password="x")
        for number in range(CALLERS)
    ]
    assert await codes_of(calls) == {"OK": 3, "VALIDATION_FAILED": CALLERS - 3}
    response = await owner.good("get_namespace", **target)
    assert len(response["namespace"]["config"]["cdn"]["auth_user_list"]) == 1_024
    refusal = await owner.call("set_auth_user", **target, user="ada", password="x")
    assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (("user", "too-many"),))
    await owner.good("set_auth_user", **target, user="user-0", password="y")
    await owner.good("remove_auth_user", **target, user="user-0")
    await owner.good("set_auth_user", **target, user="ada", password="x")


async def test_user_set_concurrently_succeeds_for_all(owner: Developer) -> None:
    target = {"game_id": await owner.game(), "namespace_id": "prod"}
    calls = [
        owner.call("set_auth_user", **target, user="ada", password=f"{number}")
        for number in range(CALLERS)
    ]
    assert await codes_of(calls) == {"OK": CALLERS}


async def test_reserved_names_are_unique(owner: Developer, records: Records) -> None:
    game_id = await owner.game()
    used_names = [f"0.0.{number}" for number in range(2, 2_002) if number != 1_500]
    await add_versions(records, game_id, used_names)
    answers = await asyncio.gather(
        *(owner.good("reserve_version_name", game_id=game_id) for _ in range(CALLERS))
    )
    names = [one["version_display_name"] for one in answers]
    free = ["0.0.1500", *(f"0.0.{number}" for number in range(2_002, 2_001 + CALLERS))]
    assert sorted(names) == sorted(free)
