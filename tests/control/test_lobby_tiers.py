"""Changes of lobby tiers at SIGHUP and between two starts."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.control.test_lobby_processes import TIER, Game
from tests.support.full_service import Developer, Door, FullService, eventually

pytestmark = pytest.mark.anyio


class Operator:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "settings.toml"
        self.clients: list[Door] = []
        self.full_service = FullService(
            folder / "s", runtime=programs.SETTINGS, empty_lobby_grace_ms=200
        )

    @property
    def words(self) -> tuple[str, str]:
        return "--config", str(self.path)

    def write(self, **memory_mb: int) -> None:
        self.path.write_text("".join(_tier(name, size) for name, size in memory_mb.items()))

    async def hang_up(self) -> None:
        before = self._reloads()
        assert self.full_service.process is not None
        self.full_service.process.send_signal(signal.SIGHUP)

        async def is_read() -> bool:
            return self._reloads() >= before + 2

        await eventually(is_read)

    def _reloads(self) -> int:
        return (self.full_service.folder / "log").read_text().count('"reloaded"')

    def door(self) -> Door:
        self.clients.append(self.full_service.door("http"))
        return self.clients[-1]

    async def game(self) -> Game:
        developer = Developer(self.full_service, self.door())
        return Game(developer, await developer.game())


def _tier(name: str, memory_mb: int) -> str:
    fields = {"tier_name_id": name.replace("_", "-"), "memory": memory_mb}
    others = ("cpu", "disk", "bandwidth", "service_cores_numerator")
    fields |= dict.fromkeys(others, 1) | {"service_cores_denominator": 8}
    return "[[tiers]]\n" + "".join(f"{key} = {json.dumps(one)}\n" for key, one in fields.items())


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    created = Operator(tmp_path)
    created.write(basic_1d8=64, small=32)
    try:
        await asyncio.to_thread(created.full_service.start, *created.words)
        yield created
    finally:
        for client in created.clients:
            await client.close()
        await asyncio.to_thread(created.full_service.close)


async def test_sighup_gives_tiers_to_lobbies(operator: Operator) -> None:
    operator.write(basic_1d8=64, large=48, too_large=1_000_000)
    await operator.hang_up()
    game = await operator.game()
    await game.deploy(duel={"tier": "large"}, crowd={"tier": "too-large"})
    lobby_id = (await game.found("duel"))["lobby"]["lobby_id"]
    variables = json.loads((await game.logs(lobby_id))[0])
    assert variables["HOSTING_MEMORY"] == "48"
    full = await game.find("crowd")
    assert full.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES", "there is no such room on this node"


@pytest.mark.parametrize("how", ["at a hangup", "over a restart"])
async def test_removed_tier_ends_only_its_new_lobbies(operator: Operator, how: str) -> None:
    affected, other = await operator.game(), await operator.game()
    await affected.deploy(duel={"tier": "small"})
    await other.deploy(duel={"tier": TIER})
    standing = (await affected.found("duel"))["lobby"]["lobby_id"]
    lobby_id = (await other.found("duel"))["lobby"]["lobby_id"]
    operator.write(basic_1d8=64)
    if how == "at a hangup":
        await operator.hang_up()
    else:
        await asyncio.to_thread(operator.full_service.stop)
        await asyncio.to_thread(operator.full_service.start, *operator.words)
        for game in (affected, other):
            game.developer.door = operator.door()

    fields: dict[str, Any] = {"game_modes": ["duel"]}
    await affected.developer.good("detach", game_id=affected.game_id, lobby_id=standing)
    ended = await affected.over(standing)
    assert "failure" not in ended, "it was begun with the size that there was"
    client = affected.developer.door
    finding = [
        asyncio.create_task(client.call("find", fields, token=affected.public_token))
        for _ in range(3)
    ]
    await other.developer.good("detach", game_id=other.game_id, lobby_id=lobby_id)
    await other.over(lobby_id)
    await other.found("duel")
    answers = await asyncio.gather(*finding)
    assert {answer.code for answer in answers} == {"MATCHMAKER_LOBBY_START_FAILED"}
    listed = await affected.developer.good(
        "list_lobby_records", game_id=affected.game_id, namespace_id="prod"
    )
    failed = [one for one in listed["lobbies"] if one["lobby_id"] != standing]

    async def failures() -> bool:
        records = [await affected.over(one["lobby_id"]) for one in failed]
        return [record.get("failure") for record in records] == ["TIER_UNKNOWN"] * len(failed)

    assert failed
    await eventually(failures)
