"""Join rules of lobbies of an older version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.full_service import ARENA_MODES, Developer

pytestmark = pytest.mark.anyio

ASKS: dict[str, Any] = {
    # Nothing listens at this address, so verification fails.
    "actions": {
        "join": {
            "enabled": True,
            "verification": {"url": "https://nobody.invalid/ask", "headers": {}},
        }
    }
}
UNVERIFIED = "MATCHMAKER_VERIFICATION_UNAVAILABLE"


async def test_lobby_keeps_its_join_rules_across_versions(
    developer: Developer,
) -> None:
    game_id = await developer.arena()
    target = {"game_id": game_id, "namespace_id": "prod"}
    public = await developer.public_token(game_id)
    service = await developer.service_token(game_id)
    mode = ARENA_MODES["arena"]
    join_config = {"matchmaker": {"game_modes": {"arena": {**mode, **ASKS}}}}
    open_ = {"matchmaker": {"game_modes": {"arena": mode}}}
    lobbies = []
    for number, config in enumerate((join_config, open_, join_config, open_)):
        version_id = await developer.version(game_id, config, f"2.0.{number}")
        await developer.good("set_version", **target, version_id=version_id)
        lobbies.append((await developer.lobby(game_id, service))["lobby_id"])

    async def codes() -> list[str]:
        client = developer.door
        joins = [{"lobby_id": one} for one in lobbies]
        return [(await client.call("join", join, token=public)).code for join in joins]

    expected = [UNVERIFIED, "OK", UNVERIFIED, "OK"]
    assert await codes() == expected
    for limit in (100, 101):
        await developer.good("set_mm_config", **target, lobby_count_max=limit, max_players=100)
        assert await codes() == expected
