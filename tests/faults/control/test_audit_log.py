"""SIGKILL of the control plane under load. Each acknowledged change has its audit entry."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.databases import KINDS, Databases
from tests.support.full_service import Developer, FullService, ServiceClient, running
from tests.support.killed_service import answer_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

CALLERS: Final = 8
KILLS: Final = 2
CHANGES_BEFORE_KILL: Final = 40


class Load:
    """Callers that create namespaces, and the ids that the service acknowledged."""

    def __init__(self, service: FullService, client: ServiceClient, game: dict[str, Any]) -> None:
        self._developer = Developer(service, client)
        self._game = game
        self._numbers = count()
        self.acknowledged: list[str] = []
        self.is_over = False

    async def call(self) -> None:
        while not self.is_over:
            name = f"n{next(self._numbers)}"
            fields = {**self._game, "name_id": name, "display_name": name}
            response = await answer_of(self._developer.call("create_namespace", **fields))
            if response is None:
                await asyncio.sleep(0.02)
            else:
                assert response.code == "OK", response
                self.acknowledged.append(response.body["namespace_id"])


async def _entries(developer: Developer, group_id: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        page = await developer.good("get_audit", group_id=group_id, limit=1_000, **cursor)
        entries += page["entries"]
        if "cursor" not in page:
            return entries
        cursor = {"cursor": page["cursor"]}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_acknowledged_change_has_an_entry_after_a_kill(
    kind: str, tmp_path: Path, databases: Databases
) -> None:
    quotas = {"namespaces": 100_000}
    with running(FullService(tmp_path / "s", databases.url(kind), quotas=quotas)) as service:
        async with service.open_client("http") as client:
            developer = Developer(service, client)
            game_id = await developer.game()
            version_id = await developer.version(game_id)
            load = Load(service, client, {"game_id": game_id, "version_id": version_id})
            async with asyncio.TaskGroup() as group:
                for _ in range(CALLERS):
                    group.create_task(load.call())
                for _ in range(KILLS):
                    enough = len(load.acknowledged) + CHANGES_BEFORE_KILL

                    async def is_busy(enough: int = enough) -> bool:
                        return len(load.acknowledged) >= enough

                    await eventually(is_busy)
                    os.kill(service.control_pid(), signal.SIGKILL)

                async def is_up() -> bool:
                    response = await answer_of(developer.call("get_game", game_id=game_id))
                    return response is not None and response.code == "OK"

                await eventually(is_up)
                load.is_over = True
            changed = [
                entry["object_id"]
                for entry in await _entries(developer, service.group_id)
                if entry["operation"] == "create_namespace" and entry["outcome"] == "OK"
            ]
            game = await developer.good("get_game", game_id=game_id)
            stored = {one["namespace_id"] for one in game["game"]["namespaces"][2:]}
    assert len(changed) == len(set(changed))
    assert set(load.acknowledged) <= set(changed)
    # An entry without its change, or a change without its entry, does not exist.
    assert set(changed) == stored
