"""Player counts after a restart of the control plane are complete in its first response.

The data plane has the counts and the database has none, so the tests use SQLite only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.full_service import Developer, FullService, eventually
from tests.support.supervised_service import is_gone
from tests.support.waiting import POLL_S, within

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

KILLS = 3
UNANSWERED_S = 8.0


def pid(full_service: FullService, lock: str) -> int:
    return int((full_service.data_dir / lock).read_text().split()[0])


def players(answer: httpx.Response) -> int:
    return int(answer.json()["game"]["total_player_count"])


class Playing:
    def __init__(self, developer: Developer, game_id: str) -> None:
        self.developer = developer
        self.full_service = developer.full_service
        self.game_id = game_id

    async def connect(self) -> None:
        developer, client = self.developer, self.developer.client
        lobby = await developer.lobby(self.game_id, await developer.service_token(self.game_id))
        public = await developer.public_token(self.game_id)
        join_response = await client.call("join", {"lobby_id": lobby["lobby_id"]}, token=public)
        assert join_response.code == "OK", join_response
        fields = {"player_token": join_response.body["player"]["token"]}
        connected = await client.call("connected", fields, token=lobby["lobby_token"])
        assert connected.code == "OK", connected

    async def is_counted(self) -> None:
        async def has_new_count() -> bool:
            answer = await self.developer.call("get_game", game_id=self.game_id)
            return answer.code == "OK" and answer.body["game"]["total_player_count"] == 1

        await eventually(has_new_count, 30)

    async def kill(self) -> None:
        killed = pid(self.full_service, "control/LOCK")
        os.kill(killed, signal.SIGKILL)

        async def is_dead() -> bool:
            return is_gone(killed)

        await eventually(is_dead)

    async def first_answer(self) -> httpx.Response:
        path = f"http://control/cloud/games/{self.game_id}"
        headers = {"authorization": f"Bearer {self.developer.token}"}
        behind = httpx.AsyncHTTPTransport(
            uds=str(self.full_service.data_dir / "control" / "http.sock")
        )
        async with httpx.AsyncClient(transport=behind, headers=headers, timeout=60) as client:
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.get(path)
                    break
                assert time.monotonic() < deadline
                await asyncio.sleep(POLL_S)
        assert answer.status_code == 200, answer.text
        return answer


@pytest.fixture
async def playing(tmp_path: Path) -> AsyncIterator[Playing]:
    full_service = FullService(tmp_path)
    try:
        await asyncio.to_thread(full_service.start)
        client = full_service.client("http")
        developer = Developer(full_service, client)
        playing = Playing(developer, await developer.arena())
        await playing.connect()
        await playing.is_counted()
        yield playing
        await client.close()
    finally:
        full_service.close()


async def test_first_response_after_a_kill_counts_connected_players(playing: Playing) -> None:
    for _ in range(KILLS):
        await playing.kill()
        assert players(await playing.first_answer()) == 1


@pytest.mark.timing
async def test_silent_data_plane_does_not_block_control_plane_start(playing: Playing) -> None:
    plane = pid(playing.full_service, "LOCK")
    os.kill(plane, signal.SIGSTOP)
    try:
        await playing.kill()
        with within(UNANSWERED_S):
            answer = await playing.first_answer()
    finally:
        os.kill(plane, signal.SIGCONT)
    assert players(answer) == 0
    await playing.is_counted()
