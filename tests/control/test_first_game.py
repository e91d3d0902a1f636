from __future__ import annotations

import pytest

from tests.support.full_service import Developer

pytestmark = pytest.mark.anyio


async def test_new_game_is_playable_from_the_first_token(developer: Developer) -> None:
    game_id = await developer.arena()
    public_token = await developer.public_token(game_id)
    service_token = await developer.service_token(game_id)
    lobby = await developer.lobby(game_id, service_token)
    found = await developer.door.call("find", {"game_modes": ["arena"]}, token=public_token)
    assert found.code == "OK", found
    assert found.body["lobby"]["lobby_id"] == lobby["lobby_id"]
    fields = {"player_token": found.body["player"]["token"]}
    assert (await developer.door.call("connected", fields, token=lobby["lobby_token"])).code == "OK"
    again = await developer.door.call("connected", fields, token=lobby["lobby_token"])
    assert again.code == "PLAYER_TOKEN_CONSUMED"
