"""Default quotas of the settings: their change by SIGHUP, and those of lobbies without a control plane."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.full_service import Developer, FullService, ServiceResponse, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@contextlib.contextmanager
def suspended_control_plane(full_service: FullService) -> Iterator[None]:
    pid = full_service.control_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_sighup_applies_quotas_and_lobbies_need_no_control_plane(tmp_path: Path) -> None:
    service, config = FullService(tmp_path / "s", quotas={}), tmp_path / "service.toml"
    config.write_text("[quotas]\nlobbies = 1\ngames = 1\n")
    with running(service, "--config", str(config)):
        async with service.open_client("http") as client:
            developer = Developer(service, client)
            game_id = await developer.arena()
            token = await developer.service_token(game_id)
            fields = {
                "game_id": game_id,
                "namespace_id": "prod",
                "game_mode": "arena",
                "ports": {"game": {"address": "127.0.0.1", "port": 4000}},
            }

            async def attach() -> ServiceResponse:
                return await client.call("attach", fields, token=token)

            async def create_game() -> ServiceResponse:
                group = {"developer_group_id": service.group_id, "display_name": "Game"}
                return await developer.call("create_game", **group, name_id=f"g{uuid4().hex[:20]}")

            def send_sighup() -> None:
                assert service.process is not None
                service.process.send_signal(signal.SIGHUP)

            async def has_room() -> bool:
                return (await attach()).code == "OK"

            async def has_room_for_a_game() -> bool:
                return (await create_game()).code == "OK"

            with suspended_control_plane(service):
                assert (await attach()).code == "OK"
                assert (await attach()).metadata["limit"] == "1"
                config.write_text("[quotas]\nlobbies = 2\ngames = 2\n")
                send_sighup()
                await eventually(has_room)
                assert (await attach()).metadata["limit"] == "2"
            await eventually(has_room_for_a_game)
            config.write_text("[quotas]\nlobbies = 2\ngames = 1\n")
            send_sighup()

            async def is_lower() -> bool:
                return (await create_game()).metadata.get("limit") == "1"

            await eventually(is_lower)
            assert "changed settings need a restart" not in service.log()
