"""SIGKILL of either plane at every step of the start and end of a lobby.

Find returns a lobby, each live lobby has one process, and each process has a lobby.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.faults.servers.failing_game import PLAIN, FailingGame, address_of, echoed, failing_game
from tests.support import game_programs
from tests.support.databases import KINDS, Databases
from tests.support.full_service import ServiceResponse, eventually
from tests.support.killed_service import (
    ENDED,
    JOURNAL,
    MOMENTS,
    STARTED,
    KilledService,
    Step,
    answer_of,
    kill_at_step,
)
from tests.support.running_servers import processes_of_runs

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

Data = tuple[Step, ...]


def _of_journal(batches: int) -> Data:
    calls = {"not written": ("pwrite", False), "not synced": ("fdatasync", False)}
    calls["durable without notification"] = ("fdatasync", True)
    return tuple(
        Step(f"batch {number} is {name}", "data", call, JOURNAL, at=number, after=after)
        for number in range(1, batches + 1)
        for name, (call, after) in calls.items()
    )


BEGUN: Final = (*STARTED, *_of_journal(3), *MOMENTS)
OVER: Final = (
    *ENDED,
    Step("its end is durable and unconfirmed", "control", "fdatasync", JOURNAL, at=2, other="data"),
    *_of_journal(2),
    *MOMENTS,
)
AWAY: Final = "MATCHMAKER_NO_AVAILABLE_LOBBIES"
"""Find returns this code if the control plane was silent for three seconds. A restart on a slow
machine takes longer.
"""


class LobbyKills:
    def __init__(self, full_service: KilledService, game: FailingGame, service_token: str) -> None:
        self.full_service = full_service
        self.game = game
        self._service_token = service_token

    async def begin(self, step: Step) -> Any:
        await self.full_service.refresh()
        answer: ServiceResponse | None = await kill_at_step(
            self.full_service, step, lambda: answer_of(self.game.find(PLAIN))
        )
        if step.role == "control":
            assert answer is not None, str(step)
        if answer is None or answer.code == AWAY:
            answer = await eventually(self._found)
        assert answer.code == "OK", (str(step), answer)
        await self.check()
        port = answer.body["ports"]["game"]
        assert await asyncio.to_thread(echoed, address_of(port)) == b"hello", str(step)
        return answer.body

    async def begun(self) -> Any:
        return (await eventually(self._found)).body

    async def _found(self) -> ServiceResponse | None:
        answer = await answer_of(self.game.find(PLAIN))
        return answer if answer is not None and answer.code == "OK" else None

    async def end(self, lobby_id: str, step: Step) -> None:
        await self.full_service.refresh()
        fields = {"game_id": self.game.game_id, "lobby_id": lobby_id}

        async def ask() -> ServiceResponse | None:
            client = self.game.developer.client
            return await answer_of(client.call("detach", fields, token=self._service_token))

        answer = await kill_at_step(self.full_service, step, ask)
        if answer is None:
            assert step.role == "data", str(step)
            answer = await eventually(ask)
        assert answer.code in ("OK", "MATCHMAKER_LOBBY_STOPPED"), (str(step), answer)

        async def is_over() -> bool:
            with contextlib.suppress(AssertionError, httpx.TransportError):
                return lobby_id not in await self.game.alive(PLAIN)
            return False

        # The answer only says that the end is requested.
        await eventually(is_over)
        await self.check()

    async def end_all(self) -> None:
        for lobby_id in await self.game.alive(PLAIN):
            await self.game.remove(lobby_id)
        await self.check()

    async def check(self) -> None:
        async def is_so() -> bool:
            # The plane may not have restarted yet.
            with contextlib.suppress(AssertionError, httpx.TransportError):
                alive = set(await self.game.alive(PLAIN))
                response = await self.game.developer.client.call(
                    "list", {}, token=self.game.public_token
                )
                lobby_ids = {one["lobby_id"] for one in response.body["lobbies"]}
                once = dict.fromkeys(alive, 1)
                return processes_of_runs(self.full_service) == once and lobby_ids == alive
            return False

        await eventually(is_so)


@contextlib.asynccontextmanager
async def killed(folder: Path, library: Path, url: str | None) -> AsyncIterator[LobbyKills]:
    full_service = KilledService(
        folder, library, url, rays={"per_second": 0}, runtime=game_programs.SETTINGS
    )
    try:
        full_service.start()
        async with failing_game(full_service) as game:
            token = await game.developer.service_token(game.game_id)
            yield LobbyKills(full_service, game, token)
        assert full_service.stop() == 0
    finally:
        full_service.close()


def _named(steps: Data, *names: str) -> list[Step]:
    matching = [step for step in steps if step.name in names]
    assert len(matching) == len(names)
    return matching


FEW_BEGUN: Final = _named(
    BEGUN, "after half of the spec", "after the start request", "batch 2 is not synced"
)
FEW_OVER: Final = _named(OVER, "after the stop command", "before the marker file of the end")


@pytest.mark.parametrize("kind", KINDS)
async def test_kill_during_lobby_start_or_end_leaves_one_process_or_none(
    kind: str, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    async with killed(tmp_path / "s", shim_library, databases.url(kind)) as game:
        for begun, over in zip(FEW_BEGUN, [*FEW_OVER, OVER[-1]], strict=True):
            placement = await game.begin(begun)
            await game.end(placement["lobby"]["lobby_id"], over)
            await game.end_all()


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
async def test_kill_at_every_step_of_a_lobby_start(
    kind: str, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    async with killed(tmp_path / "s", shim_library, databases.url(kind)) as game:
        for step in BEGUN:
            await game.begin(step)
            await game.end_all()


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
async def test_kill_at_every_step_of_a_lobby_end(
    kind: str, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    async with killed(tmp_path / "s", shim_library, databases.url(kind)) as game:
        for step in OVER:
            placement = await game.begun()
            await game.end(placement["lobby"]["lobby_id"], step)
