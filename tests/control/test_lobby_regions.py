"""Removal of a region between two starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.control.test_lobby_processes import Game, echoed
from tests.control.test_servers import Servers, reached
from tests.support.full_service import Developer, Door, FullService, eventually

pytestmark = pytest.mark.anyio

KEPT_REGION, REMOVED_REGION = "north", "south"
LONG_MS = 3_600_000
"""Lifetime of player tokens, long enough for slow machines."""
IN_REMOVED_REGION: dict[str, Any] = {"regions": {REMOVED_REGION: {}}, "player_token_ttl": LONG_MS}


class Operator:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "settings.toml"
        self.clients: list[Door] = []
        self.full_service = FullService(
            folder / "s", runtime=programs.SETTINGS, empty_lobby_grace_ms=200
        )

    async def start(self, *regions: str) -> Door:
        tables = (
            f'[[regions]]\nname_id = "{one}"\nregion_display_name = "{one.title()}"\n'
            for one in regions
        )
        self.path.write_text("".join(tables))
        await asyncio.to_thread(self.full_service.start, "--config", str(self.path))
        self.clients.append(self.full_service.door("http"))
        return self.clients[-1]

    async def remove_region(self, *games: Game) -> None:
        await asyncio.to_thread(self.full_service.stop)
        client = await self.start(KEPT_REGION)
        for game in games:
            game.developer.door = client

    async def game(self, **modes: Any) -> Game:
        developer = Developer(self.full_service, self.clients[-1])
        created = Game(developer, await developer.game())
        await created.deploy(**modes)
        return created


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    created = Operator(tmp_path)
    try:
        await created.start(KEPT_REGION, REMOVED_REGION)
        yield created
    finally:
        for client in created.clients:
            await client.close()
        await asyncio.to_thread(created.full_service.close)


async def ids_of_listed(game: Game) -> set[str]:
    answer = await game.developer.door.call("list", {}, token=game.public_token)
    assert answer.code == "OK", answer
    return {one["lobby_id"] for one in answer.body["lobbies"]}


async def test_removed_region_gets_no_new_players(
    operator: Operator,
) -> None:
    affected, other = await operator.game(duel=IN_REMOVED_REGION), await operator.game(duel={})
    there = await affected.found("duel", regions=[REMOVED_REGION])
    lobby_id = there["lobby"]["lobby_id"]
    assert there["lobby"]["region"] == {
        "region_id": REMOVED_REGION,
        "display_name": REMOVED_REGION.title(),
    }
    everywhere = (await other.found("duel", regions=[REMOVED_REGION]))["lobby"]["lobby_id"]
    await operator.remove_region(affected, other)

    for game in (affected, other):
        answer = await game.find("duel", regions=[REMOVED_REGION])
        assert answer.code == "MATCHMAKER_REGION_NOT_FOUND"
    assert (await affected.find("duel")).code == "MATCHMAKER_REGION_NOT_ENABLED"
    found = await other.found("duel")
    assert found["lobby"]["lobby_id"] != everywhere
    assert found["lobby"]["region"] == {
        "region_id": KEPT_REGION,
        "display_name": KEPT_REGION.title(),
    }
    client, query = affected.developer.door, {"lobby_id": lobby_id}
    joined = await client.call("join", query, token=affected.public_token)
    assert joined.code == "OK", joined
    assert joined.body["lobby"]["region"] == {
        "region_id": REMOVED_REGION,
        "display_name": REMOVED_REGION,
    }
    assert await asyncio.to_thread(echoed, joined.body["ports"]["game"]) == b"hello"
    assert await asyncio.to_thread(echoed, there["ports"]["game"]) == b"hello"
    assert await ids_of_listed(affected) == {lobby_id}
    for slug in ("regions", "statistics"):
        assert (await client.call(slug, {}, token=affected.public_token)).code == "OK"
    affected.public_token = await affected.developer.public_token(affected.game_id)
    assert await ids_of_listed(affected) == {lobby_id}
    assert (await affected.record(lobby_id))["region_id"] == REMOVED_REGION
    await affected.developer.good("detach", game_id=affected.game_id, lobby_id=lobby_id)
    assert "failure" not in await affected.over(lobby_id)


async def test_removed_region_keeps_its_servers(
    operator: Operator,
) -> None:
    game = await operator.game(duel={})
    developer = game.developer
    back = Servers(developer, game.game_id, await developer.service_token(game.game_id))
    await back.prepare_build()
    created = await back.running(datacenter=REMOVED_REGION)
    await operator.remove_region(game)
    assert (await back.get(created["id"]))["status"] == "running"
    await eventually(lambda: reached(created))
    assert (await back.try_create(datacenter=REMOVED_REGION)).code == "REGION_NOT_FOUND"
    await back.good("destroy_server", server_id=created["id"], override_kill_timeout=0)
    await back.until(created["id"], "destroyed")


async def test_idle_lobbies_of_a_removed_region_end(
    operator: Operator,
) -> None:
    idle = {"idle_lobbies": {"min": 1, "max": 1}}
    affected = await operator.game(duel={**IN_REMOVED_REGION, **idle})
    other = await operator.game(duel={**idle, "player_token_ttl": LONG_MS})
    [alone] = await eventually(lambda: ids_of_listed(affected))

    async def both_lobbies() -> set[str] | None:
        ids = await ids_of_listed(other)
        return ids if len(ids) == 2 else None

    pair = await eventually(both_lobbies)
    await operator.remove_region(affected, other)
    for game, lobby_ids in ((affected, {alone}), (other, pair)):
        for lobby_id in lobby_ids:
            listed = await eventually(partial(game.record, lobby_id))
            if listed["region_id"] == REMOVED_REGION:
                record = await game.over(lobby_id)
                assert record.get("failure") is None, str(record)
    assert await ids_of_listed(affected) == set()
    [left] = await ids_of_listed(other)
    found = await other.found("duel", prevent_auto_create_lobby=True)
    assert found["lobby"]["lobby_id"] == left
