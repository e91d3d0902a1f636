"""`pyservice status` of a machine: parts, lobbies, servers, room, drain and last backup."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run
from tests.support.drained_service import GUESTS, Machine, open_machine
from tests.support.full_service import eventually
from tests.support.service_process import clean_environment

SERVER_MEMORY_MB = 128
pytestmark = [pytest.mark.anyio, pytest.mark.full]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with open_machine(tmp_path / "s") as machine:
        yield machine


async def test_status_shows_the_whole_machine(machine: Machine, tmp_path: Path) -> None:
    await machine.deploy(duel=GUESTS)
    back_end = await machine.back_end()
    empty = await machine.status()
    assert (empty["lobbies"].get("ready", 0), empty["servers"], empty["players"]) == (0, {}, 0)
    await machine.join(await machine.find_lobby("duel"))
    await back_end.running()
    await machine.command("backup", "create", str(tmp_path / "backups"))

    async def is_counted() -> Any:
        seen = await machine.status()
        return seen if seen["servers"] == {"running": 1} else None

    full = await eventually(is_counted)
    assert full["lobbies"]["ready"] == 1
    assert full["players"] == 1
    assert {name for name, part in full["parts"].items() if part["is_up"]} == {
        *("data_plane", "control", "database", "object_store"),
        *("cdn", "runtime", "edge_guard", "storage"),
    }
    assert full["room"]["cpu_millicores"] == 64_000
    assert full["room"]["used_memory_mb"] > SERVER_MEMORY_MB, "the lobby counts too"
    ports = full["ports"]["tcp"]
    assert (ports["leased"], ports["free"]) == (2, empty["ports"]["tcp"]["free"] - 2)
    assert full["drain"] is None
    assert full["last_backup_ts"] > "20"
    assert full["owner_epoch"] >= 1

    async def text_of_success() -> Any:
        text = await machine.command("status")
        return text if text.returncode == 0 else None

    text = await eventually(text_of_success)
    for line in ("edge_guard: up", "lobbies: 1 (1 ready)", "servers: 1 (1 running)", "players: 1"):
        assert line in text.stdout

    await asyncio.to_thread(machine.service.stop)
    stopped = await machine.command("status", "--json")
    assert stopped.returncode == 3
    seen = json.loads(stopped.stdout)
    assert (seen["is_running"], seen["last_backup_ts"]) == (False, full["last_backup_ts"])
    text = await machine.command("status")
    assert f"The service of {machine.service.data_dir} does not run." in text.stdout
    assert f"last backup: {full['last_backup_ts']}" in text.stdout
    assert "is stopped: start it first" in await machine.failed("drain")


def test_status_of_a_wrong_folder(tmp_path: Path) -> None:
    result = run(tmp_path, "status")
    assert (result.returncode, result.stdout) == (1, "")
    assert "is no data directory of a service" in result.stderr


def test_status_without_options_is_the_command_of_developers() -> None:
    words = [sys.executable, "-m", "pyservice", "status"]
    developers, operators = (
        subprocess.run(
            [*words, *more, "--help"],
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for more in ([], ["--data-dir", "data"])
    )
    assert "--watch" in developers
    assert "--watch" not in operators
    assert "last backup of this machine" in operators
