"""Lobby records and counts of the real planes after a kill of one plane."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyservice.process.directory_lock import lock_holder_pid
from tests.control.test_lobby_records import Arena
from tests.support.databases import KINDS, Databases
from tests.support.full_service import Developer, FullService, eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
def own_service(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> Iterator[FullService]:
    created = FullService(tmp_path / "s", databases.url(request.param))
    try:
        yield created.start()
    finally:
        created.close()


@pytest.mark.parametrize("folder", [".", "control"], ids=["data plane", "control plane"])
async def test_records_and_counts_are_right_after_a_kill(
    own_service: FullService, folder: str
) -> None:
    async with own_service.opened("http") as client:
        arena = Arena(Developer(own_service, client), await Developer(own_service, client).arena())
        for _ in range(2):
            stays, leaves = await arena.lobby(), await arena.lobby()
            await arena.send("connected", stays, player_token=await arena.player(stays))
            pid = lock_holder_pid(own_service.data_dir / folder)
            assert pid is not None
            fields = {"game_id": arena.game_id, "lobby_id": leaves["lobby_id"]}
            await arena.developer.good("detach", **fields)
            os.kill(pid, signal.SIGKILL)

            await eventually(lambda pid=pid: _is_another(own_service.data_dir / folder, pid), 30)
            over, record = await eventually(
                lambda both=(leaves, stays): _ended_records(arena, *both), 30
            )
            assert "stopped" in over["status"]
            assert (record["connected_count"], record["status"]) == (1, {"running": {}})
        listed = (await arena.developer.good("list_lobby_records", **arena.target))["lobbies"]
        assert len(listed) == len({one["lobby_id"] for one in listed}) == 4

        async def is_counted() -> bool:
            game = await arena.developer.good("get_game", game_id=arena.game_id)
            return bool(game["game"]["total_player_count"] == 2)

        await eventually(is_counted)


async def _is_another(folder: Path, pid: int) -> bool:
    return lock_holder_pid(folder) not in (None, pid)


async def _ended_records(arena: Arena, over: Any, alive: Any) -> list[Any] | None:
    try:
        answers = [await arena.record(one) for one in (over, alive)]
    except httpx.TransportError:
        return None
    if any(answer.code != "OK" for answer in answers):
        return None
    records = [answer.body["lobby"] for answer in answers]
    return records if "stopped" in records[0]["status"] else None
