"""Lobbies and servers after the operator removed their region or tier."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import game_programs
from tests.support.full_service import (
    SHARED_QUOTAS,
    Developer,
    FullService,
    ServiceClient,
    eventually,
)
from tests.support.lobby_game import TIER, Game, echoed
from tests.support.server_back_end import ServerBackEnd, reached

pytestmark = [pytest.mark.anyio, pytest.mark.full]

KEPT_REGION, REMOVED_REGION = "north", "south"
LONG_MS = 3_600_000
"""Lifetime of player tokens, long enough for slow machines."""
IN_REMOVED_REGION: dict[str, Any] = {"regions": {REMOVED_REGION: {}}, "player_token_ttl": LONG_MS}
OTHER_TIER_FIELDS = ("cpu", "disk", "bandwidth", "service_cores_numerator")


class Operator:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "settings.toml"
        self.clients: list[ServiceClient] = []
        self.full_service = FullService(
            folder / "s",
            runtime=game_programs.SETTINGS,
            empty_lobby_grace_ms=200,
            quotas=SHARED_QUOTAS | {"lobby_memory_mb": 10_000_000},
        )

    def write(self, *, regions: Sequence[str] = (), tiers: Mapping[str, int] | None = None) -> None:
        """Writes the settings file. `tiers` has the memory of each tier in MiB."""
        tables = [table("regions", name_id=n, region_display_name=n.title()) for n in regions]
        for name, memory_mb in (tiers or {}).items():
            others = dict.fromkeys(OTHER_TIER_FIELDS, 1) | {"service_cores_denominator": 8}
            tables.append(table("tiers", tier_name_id=name, memory=memory_mb, **others))
        self.path.write_text("".join(tables))

    async def start(self) -> None:
        await asyncio.to_thread(self.full_service.start, "--config", str(self.path))
        self.clients.append(self.full_service.client("http"))

    async def restart(self, *games: Game, regions: Sequence[str] = ()) -> None:
        await asyncio.to_thread(self.full_service.stop)
        if regions:
            self.write(regions=regions)
        await self.start()
        for game in games:
            game.developer.client = self.clients[-1]

    async def hang_up(self) -> None:
        before = self._reloads()
        assert self.full_service.process is not None
        self.full_service.process.send_signal(signal.SIGHUP)

        async def is_read() -> bool:
            return self._reloads() >= before + 2

        await eventually(is_read)

    def _reloads(self) -> int:
        return (self.full_service.folder / "log").read_text().count('"reloaded"')

    async def game(self) -> Game:
        developer = Developer(self.full_service, self.clients[-1])
        return Game(developer, await developer.game())

    async def deployed_game(self, **modes: Any) -> Game:
        created = await self.game()
        await created.deploy(**modes)
        return created


def table(name: str, **fields: Any) -> str:
    return f"[[{name}]]\n" + "".join(f"{key} = {json.dumps(one)}\n" for key, one in fields.items())


def region_of(region_id: str, display_name: str) -> dict[str, str]:
    return {"region_id": region_id, "display_name": display_name}


@pytest.fixture
async def operator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Operator]:
    operator = Operator(tmp_path)
    operator.write(**request.param)
    try:
        await operator.start()
        yield operator
    finally:
        for client in operator.clients:
            await client.close()
        await asyncio.to_thread(operator.full_service.close)


def started_with(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("operator", [settings], indirect=True, ids=[""])


with_regions = started_with(regions=[KEPT_REGION, REMOVED_REGION])
with_tiers = started_with(tiers={"basic-1d8": 64, "small": 32})


async def ids_of_listed(game: Game) -> set[str]:
    answer = await game.developer.client.call("list", {}, token=game.public_token)
    assert answer.code == "OK", answer
    return {one["lobby_id"] for one in answer.body["lobbies"]}


@with_regions
async def test_removed_region_gets_no_new_players(operator: Operator) -> None:
    affected = await operator.deployed_game(duel=IN_REMOVED_REGION)
    other = await operator.deployed_game(duel={})
    old_placement = await affected.find_lobby("duel", regions=[REMOVED_REGION])
    lobby_id = old_placement["lobby"]["lobby_id"]
    assert old_placement["lobby"]["region"] == region_of(REMOVED_REGION, REMOVED_REGION.title())
    everywhere = (await other.find_lobby("duel", regions=[REMOVED_REGION]))["lobby"]["lobby_id"]
    await operator.restart(affected, other, regions=[KEPT_REGION])

    for game in (affected, other):
        answer = await game.find("duel", regions=[REMOVED_REGION])
        assert answer.code == "MATCHMAKER_REGION_NOT_FOUND"
    assert (await affected.find("duel")).code == "MATCHMAKER_REGION_NOT_ENABLED"
    placement = await other.find_lobby("duel")
    assert placement["lobby"]["lobby_id"] != everywhere
    assert placement["lobby"]["region"] == region_of(KEPT_REGION, KEPT_REGION.title())
    client, query = affected.developer.client, {"lobby_id": lobby_id}
    join_response = await client.call("join", query, token=affected.public_token)
    assert join_response.code == "OK", join_response
    assert join_response.body["lobby"]["region"] == region_of(REMOVED_REGION, REMOVED_REGION)
    assert await asyncio.to_thread(echoed, join_response.body["ports"]["game"]) == b"hello"
    assert await asyncio.to_thread(echoed, old_placement["ports"]["game"]) == b"hello"
    assert await ids_of_listed(affected) == {lobby_id}
    for slug in ("regions", "statistics"):
        assert (await client.call(slug, {}, token=affected.public_token)).code == "OK"
    affected.public_token = await affected.developer.public_token(affected.game_id)
    assert await ids_of_listed(affected) == {lobby_id}
    assert (await affected.record(lobby_id))["region_id"] == REMOVED_REGION
    await affected.developer.good("detach", game_id=affected.game_id, lobby_id=lobby_id)
    assert "failure" not in await affected.over(lobby_id)


@with_regions
async def test_removed_region_keeps_its_servers(operator: Operator) -> None:
    game = await operator.deployed_game(duel={})
    developer = game.developer
    back_end = ServerBackEnd(developer, game.game_id, await developer.service_token(game.game_id))
    await back_end.prepare_build()
    server = await back_end.running(datacenter=REMOVED_REGION)
    await operator.restart(game, regions=[KEPT_REGION])
    assert (await back_end.get(server["id"]))["status"] == "running"
    await eventually(lambda: reached(server))
    assert (await back_end.try_create(datacenter=REMOVED_REGION)).code == "REGION_NOT_FOUND"
    await back_end.good("destroy_server", server_id=server["id"], override_kill_timeout=0)
    await back_end.until(server["id"], "destroyed")


@with_regions
async def test_idle_lobbies_of_a_removed_region_end(operator: Operator) -> None:
    idle = {"idle_lobbies": {"min": 1, "max": 1}}
    affected = await operator.deployed_game(duel={**IN_REMOVED_REGION, **idle})
    other = await operator.deployed_game(duel={**idle, "player_token_ttl": LONG_MS})
    [alone] = await eventually(lambda: ids_of_listed(affected))

    async def both_lobbies() -> set[str] | None:
        ids = await ids_of_listed(other)
        return ids if len(ids) == 2 else None

    pair = await eventually(both_lobbies)
    await operator.restart(affected, other, regions=[KEPT_REGION])
    for game, lobby_ids in ((affected, {alone}), (other, pair)):
        for lobby_id in lobby_ids:
            listed = await eventually(partial(game.record, lobby_id))
            if listed["region_id"] == REMOVED_REGION:
                record = await game.over(lobby_id)
                assert record.get("failure") is None, str(record)
    assert await ids_of_listed(affected) == set()
    [remaining_id] = await ids_of_listed(other)
    placement = await other.find_lobby("duel", prevent_auto_create_lobby=True)
    assert placement["lobby"]["lobby_id"] == remaining_id


@with_tiers
async def test_sighup_gives_tiers_to_lobbies(operator: Operator) -> None:
    operator.write(tiers={"basic-1d8": 64, "large": 48, "too-large": 1_000_000})
    await operator.hang_up()
    game = await operator.game()
    await game.deploy(duel={"tier": "large"}, huge={"tier": "too-large"})
    lobby_id = (await game.find_lobby("duel"))["lobby"]["lobby_id"]
    assert (await game.variables(lobby_id))["HOSTING_MEMORY"] == "48"
    full = await game.find("huge")
    assert full.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES", "no node has the capacity"


@with_tiers
@pytest.mark.parametrize("how", ["at a hangup", "over a restart"])
async def test_removed_tier_ends_only_its_new_lobbies(operator: Operator, how: str) -> None:
    affected, other = await operator.game(), await operator.game()
    await affected.deploy(duel={"tier": "small"})
    await other.deploy(duel={"tier": TIER})
    before = (await affected.find_lobby("duel"))["lobby"]["lobby_id"]
    lobby_id = (await other.find_lobby("duel"))["lobby"]["lobby_id"]
    operator.write(tiers={"basic-1d8": 64})
    if how == "at a hangup":
        await operator.hang_up()
    else:
        await operator.restart(affected, other)

    fields: dict[str, Any] = {"game_modes": ["duel"]}
    await affected.developer.good("detach", game_id=affected.game_id, lobby_id=before)
    ended = await affected.over(before)
    assert "failure" not in ended, "a started lobby keeps its size"
    client = affected.developer.client
    requests = (client.call("find", fields, token=affected.public_token) for _ in range(3))
    finding = asyncio.gather(*requests)
    await other.developer.good("detach", game_id=other.game_id, lobby_id=lobby_id)
    await other.over(lobby_id)
    await other.find_lobby("duel")
    answers = await finding
    assert {answer.code for answer in answers} == {"MATCHMAKER_LOBBY_START_FAILED"}
    target = {"game_id": affected.game_id, "namespace_id": "prod"}
    response = await affected.developer.good("list_lobby_records", **target)
    failed = [one for one in response["lobbies"] if one["lobby_id"] != before]

    async def failures() -> bool:
        records = [await affected.over(one["lobby_id"]) for one in failed]
        return [record.get("failure") for record in records] == ["TIER_UNKNOWN"] * len(failed)

    assert failed
    await eventually(failures)
