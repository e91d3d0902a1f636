"""A second stop signal kills game servers that ignore SIGTERM. The data plane still records their
end.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.support import game_programs
from tests.support.full_service import Developer, FullService, running
from tests.support.leftover_processes import pids_of
from tests.support.lobby_game import Game
from tests.support.supervised_service import is_gone
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.full]


async def test_second_signal_kills_a_lobby_that_ignores_sigterm(tmp_path: Path) -> None:
    # The capacity of the machine, because a larger one is a warning.
    shared_paths = game_programs.SETTINGS["shared_paths"]
    settings = {"shared_paths": shared_paths, "end_with_service": "true"}
    with running(FullService(tmp_path, runtime=settings)) as full_service:
        async with full_service.open_client("http") as client:
            developer = Developer(full_service, client)
            game = Game(developer, await developer.game())
            await game.deploy(unstoppable={"docker": {"env": {"PLAY": "ignore-sigterm"}}})
            assert (await game.find("unstoppable")).code == "OK"
            pids = set(pids_of(full_service.data_dir))
            assert full_service.process is not None
            full_service.process.send_signal(signal.SIGTERM)

            await asyncio.to_thread(until, lambda: '"stopping"' in full_service.log())
            full_service.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(full_service.process.wait) == 0
            assert all(map(is_gone, pids))
            lines = (full_service.folder / "log").read_text().splitlines()
            events = [json.loads(line) for line in lines if line.startswith("{")]
            [ended_event] = [event for event in events if event["event"] == "lobby ended"]
            assert (ended_event["reason"], ended_event["exit_code"]) == ("stopped", 128 + 9)
            assert not [event for event in events if event["level"] != "info"]
