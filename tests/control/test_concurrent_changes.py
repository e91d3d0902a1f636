from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any
from uuid import uuid4

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.idempotent_changes import IdempotentChanges
from pyservice.pb.hosting.v1.devices_pb2 import GetDeviceLinkRequest, GetDeviceLinkResponse
from pyservice.storage.database import Conflict, Transaction
from tests.control.bulk_records import add_users, add_versions
from tests.control.files import tar
from tests.control.namespace_scenario import Records
from tests.support.full_service import Answer, Developer

pytestmark = pytest.mark.anyio

CALLERS = 8
ROUNDS = 6


async def codes_of(calls: list[Awaitable[Answer]]) -> Counter[str]:
    return Counter(answer.code for answer in await asyncio.gather(*calls))


class Builds:
    def __init__(self, developer: Developer, game_id: str, token: str) -> None:
        self.game_id = game_id
        self._developer = developer
        self._target = {"game_id": game_id, "environment_id": "prod"}
        self._token = token

    async def _good(self, slug: str, **fields: Any) -> Any:
        answer = await self._developer.door.call(
            slug, {**self._target, **fields}, token=self._token
        )
        assert answer.code == "OK", answer
        return answer.body

    async def add(self) -> str:
        image = {"path": "server.tar", "content_length": len(tar())}
        created = await self._good("prepare_build", name="server", image_file=image)
        return str(created["build"]["id"])

    def patch(self, build_id: str, tags: dict[str, str], *exclusive: str) -> Awaitable[Answer]:
        fields: dict[str, Any] = {"build_id": build_id, "tags": tags}
        if exclusive:
            fields["exclusive_tags"] = list(exclusive)
        target = {**self._target, **fields}
        return self._developer.door.call("patch_build_tags", target, token=self._token)

    async def tags(self, build_id: str) -> dict[str, str]:
        build = (await self._good("get_build", build_id=build_id))["build"]
        return dict(build["tags"])

    async def listed(self, tags: str) -> list[str]:
        return [one["id"] for one in (await self._good("list_builds", tags_json=tags))["builds"]]


@pytest.fixture
async def builds(developer: Developer) -> Builds:
    game_id = await developer.game()
    return Builds(developer, game_id, await developer.service_token(game_id))


async def test_exclusive_tag_is_on_one_build(
    builds: Builds,
) -> None:
    ids = [await builds.add() for _ in range(CALLERS)]
    for number in range(ROUNDS):
        tags = {"current": str(number)}
        codes = await codes_of([builds.patch(one, tags, "current") for one in ids])
        assert codes == {"OK": CALLERS}
        assert len(await builds.listed(f'{{"current": "{number}"}}')) == 1
        assert ["current" in await builds.tags(one) for one in ids].count(True) == 1


async def test_tag_count_limit_holds(
    builds: Builds,
) -> None:
    build_id = await builds.add()
    several = [{f"tag-{caller}-{number}": "x" for number in range(10)} for caller in range(CALLERS)]
    codes = await codes_of([builds.patch(build_id, tags) for tags in several])
    assert codes == {"OK": 3, "VALIDATION_FAILED": CALLERS - 3}
    assert len(await builds.tags(build_id)) == 30


async def test_tag_set_concurrently_succeeds_for_all(builds: Builds) -> None:
    build_id = await builds.add()
    for number in range(ROUNDS):
        several = [{f"round-{number}": f"{caller}"} for caller in range(CALLERS)]
        codes = await codes_of([builds.patch(build_id, tags) for tags in several])
        assert codes == {"OK": CALLERS}
        assert (await builds.tags(build_id))[f"round-{number}"] in {
            str(caller) for caller in range(CALLERS)
        }


async def test_build_deleted_while_tagged_is_gone(builds: Builds, developer: Developer) -> None:
    for _ in range(ROUNDS):
        build_id = await builds.add()
        removal = developer.call("delete_build", game_id=builds.game_id, build_id=build_id)
        several = [builds.patch(build_id, {f"t{caller}": "x"}) for caller in range(CALLERS)]
        removed, *tagged = await asyncio.gather(removal, *several)
        assert removed.code == "OK"
        assert {one.code for one in tagged} <= {"OK", "BUILD_NOT_FOUND"}


# Repeated conflicts -------------------------------------------------------------------------------


async def test_repeated_conflicts_end_in_success(records: Records) -> None:
    call = Call(ray_id="0" * 32, address=b"\x7f\0\0\1")
    caller = Caller(TokenKind.CLOUD, uuid4().bytes, b"", call.address, call)
    lost = 0

    async def change(_: Transaction) -> GetDeviceLinkResponse:
        nonlocal lost
        if lost < 8:
            lost += 1
            raise Conflict("taken")
        return GetDeviceLinkResponse(cloud_token="made")

    request = GetDeviceLinkRequest(device_link_token="one")
    created = await IdempotentChanges(records.database).apply(
        caller, request, GetDeviceLinkResponse, change
    )
    assert (created.cloud_token, lost) == ("made", 8)


# Users of a site ----------------------------------------------------------------------------------


async def test_last_user_slots_are_given_once(developer: Developer, records: Records) -> None:
    target = {"game_id": await developer.game(), "namespace_id": "prod"}
    got = await developer.good("get_namespace", **target)
    await add_users(records, got["namespace"]["namespace_id"], 1_021)
    calls = [
        developer.call("set_auth_user", **target, user=f"new-{number}", password="x")
        for number in range(CALLERS)
    ]
    assert await codes_of(list(calls)) == {"OK": 3, "VALIDATION_FAILED": CALLERS - 3}
    got = await developer.good("get_namespace", **target)
    assert len(got["namespace"]["config"]["cdn"]["auth_user_list"]) == 1_024
    refused = await developer.call("set_auth_user", **target, user="ada", password="x")
    assert (refused.code, refused.errors) == ("VALIDATION_FAILED", (("user", "too-many"),))
    await developer.good("set_auth_user", **target, user="user-0", password="y")
    await developer.good("remove_auth_user", **target, user="user-0")
    await developer.good("set_auth_user", **target, user="ada", password="x")


async def test_user_set_concurrently_succeeds_for_all(developer: Developer) -> None:
    target = {"game_id": await developer.game(), "namespace_id": "prod"}
    calls = [
        developer.call("set_auth_user", **target, user="ada", password=f"{number}")
        for number in range(CALLERS)
    ]
    assert await codes_of(list(calls)) == {"OK": CALLERS}


# Reserved names -----------------------------------------------------------------------------------


async def test_reserved_names_are_unique(developer: Developer, records: Records) -> None:
    game_id = await developer.game()
    taken = [f"0.0.{number}" for number in range(2, 2_002) if number != 1_500]
    await add_versions(records, game_id, taken)
    answers = await asyncio.gather(
        *(developer.good("reserve_version_name", game_id=game_id) for _ in range(CALLERS))
    )
    names = [one["version_display_name"] for one in answers]
    free = ["0.0.1500", *(f"0.0.{number}" for number in range(2_002, 2_001 + CALLERS))]
    assert sorted(names) == sorted(free)
