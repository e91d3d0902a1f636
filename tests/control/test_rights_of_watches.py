"""A watch ends at once when the rights of its token change."""

from __future__ import annotations

import pytest

from tests.control.new_developers import new_developer
from tests.support.command_line import output
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records
from tests.support.parked_watches import answers, watch_all
from tests.support.sample_service import code_of

pytestmark = pytest.mark.anyio

COMMANDS = {
    "revocation": ("token", "revoke", "{token_id}"),
    "disabled identity": ("identity", "disable", "{identity_id}"),
    "removed member": (
        "group",
        "remove-member",
        "--group",
        "{group_id}",
        "--identity",
        "{identity_id}",
    ),
}


@pytest.mark.parametrize("change", ["own revocation", *COMMANDS])
async def test_watch_ends_when_its_token_loses_rights(
    owner: Developer, records: Records, change: str
) -> None:
    """The watches wait for a game that does not change."""
    full_service = owner.full_service
    _, group_id = await new_developer(owner, records)
    identity_id, _ = await records.identity()
    member_of = ("--group", group_id, "--identity", identity_id)
    await output(full_service.data_dir, "group", "add-member", *member_of)
    token, token_id = await records.cloud_token(identity_id)
    member = Developer(full_service, owner.client, token)
    game_id = await member.game(developer_group_id=group_id)
    child = await member.good("create_game_token", game_id=game_id)
    index = (await member.good("get_game", game_id=game_id))["watch"]["index"]
    target = f"/cloud/games/{game_id}?watch_index={index}"
    watching = await watch_all(full_service, target, [token, child["token"]])

    if change == "own revocation":
        await member.good("revoke_group_token", group_id=group_id, token_id=token_id)
    else:
        ids = {"token_id": token_id, "identity_id": identity_id, "group_id": group_id}
        words = [word.format(**ids) for word in COMMANDS[change]]
        await output(full_service.data_dir, *words)
    responses = await answers(watching)
    own = (404, "GAME_NOT_FOUND") if change == "removed member" else (401, "TOKEN_REVOKED")
    assert [(one.status, code_of(one)) for one in responses] == [own, (401, "TOKEN_REVOKED")]


async def test_watch_ends_when_the_game_of_its_token_is_deleted(
    owner: Developer, records: Records
) -> None:
    member, group_id = await new_developer(owner, records)
    game_id = await member.game(developer_group_id=group_id)
    child = await member.good("create_game_token", game_id=game_id)
    of_game = Developer(owner.full_service, owner.client, child["token"])
    index = (await of_game.good("get_games"))["watch"]["index"]
    (watching,) = await watch_all(
        owner.full_service, f"/cloud/games?watch_index={index}", [child["token"]]
    )
    await member.good("delete_game", game_id=game_id)
    (response,) = await answers([watching])
    assert (response.status, code_of(response)) == (401, "TOKEN_INVALID")
