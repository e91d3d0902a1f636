"""Requests during the start of the control plane: errors are temporary, and answers are right."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import container_images, game_programs
from tests.support.breakable_service import BreakableService
from tests.support.full_service import Developer, FullService, eventually, running
from tests.support.lobby_game import Game
from tests.support.server_back_end import open_back_end
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]

HELD = """#!/bin/sh
if [ -p {gate} ]; then : > {request_file}; read _ < {gate}; fi
exec crun "$@"
"""


SLOW = '''"""The feeder of a control plane that is started here has not fed anything for a long time."""
import asyncio, sys

if "--role=control" in sys.orig_argv:
    from pyservice.control.feeder import Feeder

    async def for_ever(self):
        await asyncio.Event().wait()

    Feeder.run = for_ever
'''


LATE = '''"""A control plane that takes longer to start than the data plane waits for, and asks a little later."""
import asyncio, sys

if "--role=control" in sys.orig_argv:
    from pyservice.app.control_plane import ControlPlane
    from pyservice.control.lobby_runs import LobbyRuns

    recover, run = ControlPlane.recover, LobbyRuns.run

    async def late(self, signals):
        await asyncio.sleep(4)
        return await recover(self, signals)

    async def later(self, runs):
        await asyncio.sleep(0.5)
        await run(self, runs)

    ControlPlane.recover, LobbyRuns.run = late, later
'''


@container_images.needs_oci_runtime
async def test_server_request_during_the_runtime_check_is_retryable(tmp_path: Path) -> None:
    """The container runtime blocks its start-up check until the test opens a pipe."""
    gate, request_file, runtime = (tmp_path / name for name in ("gate", "asked", "crun-held"))
    runtime.write_text(HELD.format(gate=gate, request_file=request_file))
    runtime.chmod(0o755)
    settings = {
        **game_programs.SETTINGS,
        "kinds": container_images.KINDS,
        "oci_runtime": str(runtime),
    }
    with running(FullService(tmp_path / "s", runtime=settings)) as full_service:
        async with open_back_end(full_service, "http") as back_end:
            os.mkfifo(gate)
            os.kill(full_service.control_pid(), signal.SIGKILL)

            async def is_requested() -> bool:
                return request_file.exists()

            await eventually(is_requested)
            request = asyncio.create_task(back_end.try_create())
            # A wrong refusal would arrive within this time.
            await asyncio.wait({request}, timeout=0.5)
            with gate.open("w"):
                gate.unlink()
            answer = await request
            while answer.code == "CONTROL_PLANE_UNAVAILABLE":
                answer = await back_end.try_create()
            assert answer.code == "OK", answer


async def test_links_keep_their_address_after_a_restart(tmp_path: Path) -> None:
    """The public port is random and must be the same after a restart."""
    with running(FullService(tmp_path / "s")) as full_service:
        async with full_service.open_client("http") as client:
            developer = Developer(full_service, client)
            response = await developer.good("get_group", group_id=full_service.group_id)
            assert full_service.ready["http"] in response["group"]["external"]["profile"]
            for _ in range(3):
                os.kill(full_service.control_pid(), signal.SIGKILL)

                async def is_back() -> Any:
                    answer = await developer.call("get_group", group_id=full_service.group_id)
                    return answer.body if answer.code == "OK" else None

                assert await eventually(is_back) == response


async def test_links_use_the_public_domain(tmp_path: Path) -> None:
    service = FullService(tmp_path / "s", domains={"main": "api.example.com"})
    with running(service) as full_service:
        async with full_service.open_client("http") as client:
            response = await Developer(full_service, client).good(
                "get_group", group_id=full_service.group_id
            )
        document = httpx.get(
            f"http://{full_service.ready['http']}/openapi.json", timeout=PATIENCE_S
        ).json()
    assert response["group"]["external"]["profile"].startswith("https://api.example.com/")
    assert document["servers"] == [{"url": "https://api.example.com"}]


async def test_links_are_right_before_the_first_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = BreakableService(tmp_path / "s", SLOW)
    monkeypatch.setenv("PYTHONPATH", str(service.code))
    with running(service) as full_service:
        async with full_service.open_client("http") as client:
            response = await Developer(full_service, client).good(
                "get_group", group_id=full_service.group_id
            )
        assert full_service.ready["http"] in response["group"]["external"]["profile"]


async def test_lobbies_start_as_soon_as_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_service = BreakableService(tmp_path / "s", LATE, runtime=game_programs.SETTINGS)
    with running(full_service):
        async with full_service.open_client("http") as client:
            developer = Developer(full_service, client)
            game = Game(developer, await developer.game())
            await game.deploy(duel={})
            assert full_service.stop() == 0
            monkeypatch.setenv("PYTHONPATH", str(full_service.code))
            await asyncio.to_thread(full_service.start)
            assert (await game.find("duel")).code == "OK"
