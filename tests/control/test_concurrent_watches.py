"""Concurrent watches of one object with different tokens."""

from __future__ import annotations

import pytest

from pyservice.storage import groups
from pyservice.timestamps import now_ms
from tests.support.command_line import output
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records
from tests.support.parked_watches import answers, watch_all
from tests.support.sample_service import code_of

pytestmark = pytest.mark.anyio

EACH = 98
"""Number of watches of each of three members. Together the watches exceed one batch of responses."""


@pytest.mark.full
@pytest.mark.parametrize("slug", ["get_game", "get_games"])
async def test_change_is_returned_by_each_token(
    owner: Developer, records: Records, slug: str
) -> None:
    full_service = owner.full_service
    owner_id, (group_id,) = await records.identity("Many")
    members = [owner_id]
    for _ in range(3):
        identity_id, _ = await records.identity()
        async with records.database.write() as tx:
            await groups.add_member(tx, group_id, identity_id, now_ms())
        members.append(identity_id)
    *staying, leaving = members
    member = Developer(full_service, owner.client, (await records.cloud_token(owner_id))[0])
    game_id = await member.game(developer_group_id=group_id)
    fields = {"game_id": game_id} if slug == "get_game" else {}
    index = (await member.good(slug, **fields))["watch"]["index"]

    good = [(await records.cloud_token(one))[0] for one in staying for _ in range(EACH)]
    revoked, revoked_id = await records.cloud_token(owner_id, group_id)
    leaving_token, _ = await records.cloud_token(leaving)
    # The list of a former member changes when the member leaves.
    bearers = [
        *good[:EACH],
        revoked,
        *good[EACH:],
        *([leaving_token] if slug == "get_game" else []),
    ]
    path = f"/cloud/games/{game_id}" if slug == "get_game" else "/cloud/games"
    watching = await watch_all(full_service, f"{path}?watch_index={index}", bearers)

    if slug == "get_game":
        member_of = ("--group", group_id, "--identity", leaving)
        await output(full_service.data_dir, "group", "remove-member", *member_of)
    await member.good("revoke_group_token", group_id=group_id, token_id=revoked_id)
    if slug == "get_game":
        await member.version(game_id, {}, "2.0.0")
    else:
        await member.game(developer_group_id=group_id)

    responses = await answers(watching)
    refusal = responses.pop(EACH)
    assert (refusal.status, code_of(refusal)) == (401, "TOKEN_REVOKED")
    if slug == "get_game":
        removed = responses.pop()
        assert (removed.status, code_of(removed)) == (404, "GAME_NOT_FOUND")
    assert {response.status for response in responses} == {200}
    reply = await member.good(slug, **fields)
    assert all(response.json == reply for response in responses)
    assert reply["watch"]["index"] != index
