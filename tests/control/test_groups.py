"""Groups: creation, membership and billing."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.authorization import GrantedScope
from pyservice.control.groups import GroupOperations
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.pb.hosting.v1 import groups_pb2
from pyservice.watch import Topics
from tests.control.feeder_setup import LINKS
from tests.control.new_developers import new_developer, unique
from tests.control.response_shapes import GROUP_SUMMARY, ID, TEXT, WATCH, shape
from tests.support.full_service import Developer
from tests.support.namespace_scenario import IDS, PAID_TS, Records
from tests.support.waiting import PATIENCE_S, is_blocked

pytestmark = pytest.mark.anyio


async def test_new_group_is_closed_and_has_an_owner(developer: Developer) -> None:
    name = unique("Group")
    response = await developer.good("create_group", display_name=name)
    assert shape(response) == {"group_id": ID}
    answer = await developer.good("get_group", group_id=response["group_id"])
    assert shape(answer) == {"group": GROUP_SUMMARY}
    token_info = await developer.good("inspect_token")
    profile = answer["group"]["external"].pop("profile")
    assert profile.endswith(f"/groups/{response['group_id']}")
    assert answer["group"] == {
        "group_id": response["group_id"],
        "display_name": name,
        "external": {},
        "bio": "",
        "is_current_identity_member": True,
        "is_developer": True,
        "member_count": 1,
        "owner_identity_id": token_info["identity_id"],
        "publicity": "closed",
    }


async def test_token_reaches_a_new_group_at_once(developer: Developer) -> None:
    response = await developer.good("create_group", display_name=unique("Group"))
    game_id = await developer.game(developer_group_id=response["group_id"])
    game = (await developer.good("get_game", game_id=game_id))["game"]
    assert game["developer_group_id"] == response["group_id"]


async def test_former_member_is_refused_with_a_cached_token(records: Records) -> None:
    """The token is accepted from the cache, but membership is always read from the database."""
    database = records.database
    context = RecordContext(database, IdempotentChanges(database), IDS, Topics())
    groups = GroupOperations(context, LINKS, lambda: None)
    _, (group_id,) = await records.identity("Ours")
    leaver_id, _ = await records.identity()
    scope = GrantedScope(leaver_id, IDS.new(), None, None, (group_id,))
    caller = Caller(TokenKind.CLOUD, b"", b"", b"token", Call("0" * 32, b"\x7f\0\0\1"), scope)
    response = (await groups.get(groups_pb2.GetGroupRequest(group_id=group_id), caller)).group
    assert (response.is_current_identity_member, response.member_count) == (False, 1)


async def test_name_is_checked_and_may_be_shared(developer: Developer) -> None:
    answer = await developer.call("create_group", display_name=" x")
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (("display_name", "invalid"),))
    name = unique("Group")
    created = [await developer.good("create_group", display_name=name) for _ in range(2)]
    assert created[0] != created[1]


async def test_game_of_an_unknown_group_is_not_created(developer: Developer) -> None:
    fields = {"developer_group_id": str(uuid4()), "display_name": "x"}
    assert await developer.code("create_game", **fields) == "GROUP_NOT_FOUND"


async def test_billing_returns_recorded_times_only(developer: Developer, records: Records) -> None:
    member, group_id = await new_developer(developer, records)
    answer = await member.good("get_billing", group_id=group_id)
    assert shape(answer) == {"group": {}, "watch": WATCH}
    await records.pay(group_id)
    answer = await member.good("get_billing", group_id=group_id)
    assert answer["group"] == {"payment_failed_ts": PAID_TS}


async def test_billing_watch_returns_at_once_with_a_foreign_index(developer: Developer) -> None:
    group_id = developer.full_service.group_id
    index = (await developer.good("get_billing", group_id=group_id))["watch"]["index"]
    fields = {"group_id": group_id, "watch_index": index}
    blocked = asyncio.create_task(developer.good("get_billing", **fields))
    assert await is_blocked(blocked)
    blocked.cancel()
    fields["watch_index"] = "0" * 16 + ".1"
    answer = await asyncio.wait_for(developer.good("get_billing", **fields), PATIENCE_S)
    assert shape(answer["watch"]["index"]) == TEXT
