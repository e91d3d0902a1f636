"""Requests that need edge-guard are refused at once while it is dead. The others go on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.drained_service import MUTE, Machine, open_machine
from tests.support.full_service import ServiceResponse, eventually
from tests.support.server_back_end import ServerBackEnd
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with open_machine(tmp_path / "s", find_wait_ms=600_000) as machine:
        await machine.deploy(duel={"max_players": 4}, mute=MUTE, other={})
        yield machine


def edge_guard_pid(machine: Machine) -> int:
    return int((machine.service.data_dir / "edge" / "LOCK").read_text().split()[0])


async def check_refusals(
    machine: Machine, back_end: ServerBackEnd, waiting: asyncio.Task[ServiceResponse]
) -> None:
    """A find waits ten minutes in this service, so an answer is no timeout."""
    answer = await waiting
    assert (answer.code, answer.metadata) == ("OVERLOADED", {"reason": "edge_guard"})
    for answer in (await machine.find("other"), await machine.find("mute")):
        assert (answer.code, answer.metadata) == ("OVERLOADED", {"reason": "edge_guard"})
        assert (
            "edge-guard, which forwards players to game servers, does not respond" in answer.detail
        )
    server = await back_end.try_create()
    assert (server.code, server.metadata) == ("OVERLOADED", {"reason": "edge_guard"})
    await machine.find_lobby("duel")


async def readiness(machine: Machine) -> str:
    address = machine.service.ready["metrics"]
    async with httpx.AsyncClient() as client:
        response = await client.get(f"http://{address}/readyz?verbose")
    assert response.status_code == 200, "players of running lobbies are served"
    [line] = [line for line in response.text.splitlines() if line.startswith("edge_guard: ")]
    return line


async def waiting_find(machine: Machine) -> asyncio.Task[ServiceResponse]:
    """Starts a find that waits for a lobby that is never ready."""
    waiting = asyncio.create_task(machine.find("mute"))

    async def is_starting() -> bool:
        return bool((await machine.status())["lobbies"].get("starting") == 1)

    await eventually(is_starting)
    return waiting


async def test_killed_edge_guard_is_called_dead(machine: Machine) -> None:
    back_end = await machine.back_end()
    found = await machine.find_lobby("duel")
    waiting = await waiting_find(machine)
    pid = edge_guard_pid(machine)
    assert machine.service.process is not None
    supervisor = machine.service.process.pid
    os.kill(supervisor, signal.SIGSTOP)  # it would start edge-guard again
    try:
        os.kill(pid, signal.SIGKILL)
        detail = await machine.part("edge_guard", is_up=False)
        assert detail.startswith("dead: its process has ended")
        assert await readiness(machine) == f"edge_guard: {detail}"
        await check_refusals(machine, back_end, waiting)
        assert (await machine.command("status")).returncode == 1
    finally:
        os.kill(supervisor, signal.SIGCONT)
    until(lambda: edge_guard_pid(machine) != pid)
    await machine.part("edge_guard", is_up=True)
    assert (await machine.find_lobby("other"))["lobby"] != found["lobby"]
    await back_end.running()


async def test_stopped_edge_guard_is_called_dead(machine: Machine) -> None:
    back_end = await machine.back_end()
    await machine.find_lobby("duel")
    waiting = await waiting_find(machine)
    pid = edge_guard_pid(machine)
    os.kill(pid, signal.SIGSTOP)
    try:
        detail = await machine.part("edge_guard", is_up=False)
        assert detail.startswith(f"dead: its process {pid} does not respond")
        assert await readiness(machine) == f"edge_guard: {detail}"
        await check_refusals(machine, back_end, waiting)
    finally:
        os.kill(pid, signal.SIGCONT)
    await machine.part("edge_guard", is_up=True)
    await machine.find_lobby("other")
    await back_end.running()
