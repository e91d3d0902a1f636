"""Drain of a machine: matches finish, nothing new starts, and the service exits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import game_programs
from tests.support.command_line import run
from tests.support.data_plane_service import UNLIMITED
from tests.support.drained_service import GUESTS, ONE_IDLE, Machine, open_machine
from tests.support.edge_guard_service import EdgeGuardService, made_server
from tests.support.fault_shim import compiled_library
from tests.support.full_service import eventually
from tests.support.killed_service import KilledService
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.anyio, pytest.mark.full]

DAY_S = 86_400


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text(f"{uuid4()}\n")
    journal = {"segment_bytes": 1 << 20, "boot_id_path": boot_id}
    async with open_machine(tmp_path / "s", journal=journal) as machine:
        yield machine


async def drained_lobbies(machine: Machine) -> int:
    drain = (await machine.status())["drain"]
    assert drain is not None
    return int(drain["lobbies"])


async def drain_deadline(machine: Machine) -> datetime:
    return datetime.fromisoformat((await machine.status())["drain"]["deadline_ts"])


async def test_matches_finish_and_then_the_service_exits(machine: Machine) -> None:
    await machine.deploy(duel={**GUESTS, "max_players": 2}, idle=ONE_IDLE, new={})
    first = await machine.find_lobby("duel")
    await machine.join(first)
    waiting = machine.waiting_drain()
    await machine.until_draining()
    refused = await machine.find("new")
    assert (refused.code, refused.metadata) == ("SHUTTING_DOWN", {"reason": "draining"})
    assert "This machine drains" in refused.detail
    assert refused.headers["retry-after"] == "10"

    async def only_the_match_is_left() -> bool:
        return await drained_lobbies(machine) == 1

    await eventually(only_the_match_is_left)
    second = await machine.find_lobby("duel")
    assert second["lobby"]["lobby_id"] == first["lobby"]["lobby_id"], "matches take players"
    await machine.join(second)
    text = (await machine.command("status")).stdout
    assert "waits for lobbies: 1, servers: 0, players: 2" in text
    await machine.leave()
    assert await machine.exit_status() == 0
    out, errors = await asyncio.to_thread(waiting.communicate, None, PATIENCE_S)
    assert (waiting.returncode, errors) == (0, "")
    assert "waits for lobbies: 1, servers: 0, players: 1\n" in out
    assert out.endswith("The drain is over, and the service has exited.\n")

    await machine.restart()
    assert (await machine.status())["drain"] is None, "the exit ended the drain"
    await machine.find_lobby("duel")


async def test_status_lists_the_oldest_lobbies_that_a_drain_waits_for(machine: Machine) -> None:
    await machine.deploy(duel=GUESTS)
    found = await machine.find_lobby("duel")
    await machine.join(found)
    hosted = found["lobby"]["lobby_id"]
    developer = machine.developer
    game_id = await developer.arena(name_id="elsewhere")
    service_token = await developer.service_token(game_id)
    public_token = await developer.public_token(game_id)
    for _ in range(21):
        lobby = await developer.lobby(game_id, service_token)
        fields = {"lobby_id": lobby["lobby_id"]}
        joined = await developer.client.call("join", fields, token=public_token)
        connected = await developer.client.call(
            "connected",
            {"player_token": joined.body["player"]["token"]},
            token=lobby["lobby_token"],
        )
        assert connected.code == "OK", connected
    await developer.lobby(game_id, service_token)
    await machine.drain("--deadline", "1h")

    drain = (await machine.status())["drain"]
    first, second = drain["oldest_lobbies"][:2]
    assert (first["lobby_id"], first["players"]) == (hosted, 1)
    assert first["namespace"].endswith("/prod")
    assert (second["namespace"], second["players"]) == ("elsewhere/prod", 1)
    times = [lobby["create_ts"] for lobby in drain["oldest_lobbies"]]
    assert times == sorted(times)
    assert (len(times), drain["further_lobbies"]) == (20, 2)
    lines = (await machine.command("status")).stdout.splitlines()
    assert f"lobby {hosted}: {first['namespace']}, players: 1, since {times[0]}" in lines
    assert len([line for line in lines if line.startswith("lobby ")]) == 20
    assert "and 2 more" in lines


async def test_deadline_ends_matches(machine: Machine) -> None:
    await machine.deploy(duel=GUESTS)
    found = await machine.find_lobby("duel")
    await machine.join(found)
    result = await machine.command("drain", "--deadline", "0s")
    assert (result.returncode, result.stderr) == (0, "")
    assert await machine.exit_status() == 0
    await machine.restart()
    stopped = (await machine.over(found["lobby"]["lobby_id"]))["status"]["stopped"]
    assert stopped["exit_code"] == 128 + signal.SIGTERM, "the game server was told to end"


async def test_repeated_drain_changes_the_deadline_and_cancel_ends_it(machine: Machine) -> None:
    await machine.deploy(duel=GUESTS, idle=ONE_IDLE)
    await machine.join(await machine.find_lobby("duel"))
    assert "The machine did not drain." in (await machine.command("drain", "--cancel")).stdout
    await machine.drain("--deadline", "1h")
    early = (await machine.status())["drain"]["deadline_ts"]
    await machine.drain("--deadline", "3h")
    assert (await machine.status())["drain"]["deadline_ts"] > early
    wrong = await machine.failed("drain", "--deadline", "soon")
    assert "--deadline soon: give a duration such as 2h or 0s" in wrong
    assert (await machine.status())["drain"]["deadline_ts"] > early, "the mistake changed nothing"
    assert "at most 30d are allowed" in await machine.failed("drain", "--deadline", "31d")
    await machine.failed("drain", "--cancel", "--no-wait")

    waiting = machine.waiting_drain()
    until(lambda: waiting.stdout is not None and waiting.stdout.readline())
    assert "The drain is cancelled." in (await machine.command("drain", "--cancel")).stdout
    _, errors = await asyncio.to_thread(waiting.communicate, None, PATIENCE_S)
    assert (waiting.returncode, "the drain was cancelled" in errors) == (1, True)
    await machine.find_lobby("idle")
    await machine.leave()


async def test_drain_survives_a_kill_and_ends_with_the_boot(
    machine: Machine, tmp_path: Path
) -> None:
    await machine.deploy(duel=GUESTS, idle={})
    await machine.join(await machine.find_lobby("duel"))
    waiting = machine.waiting_drain()
    await machine.until_draining()
    assert (await machine.find("idle")).code == "SHUTTING_DOWN"
    deadline = await drain_deadline(machine)
    await machine.kill()
    _, errors = await asyncio.to_thread(waiting.communicate, None, PATIENCE_S)
    assert (waiting.returncode, "start it, and it continues to drain" in errors) == (1, True)

    await machine.restart()
    assert abs(await drain_deadline(machine) - deadline) < timedelta(seconds=1)
    assert (await machine.find("idle")).code == "SHUTTING_DOWN"
    await machine.kill()
    (tmp_path / "boot_id").write_text(f"{uuid4()}\n")
    await machine.restart()
    assert (await machine.status())["drain"] is None
    await machine.find_lobby("idle")
    await machine.leave()


@pytest.mark.parametrize(
    ("step_s", "deadline", "at_deadline"), [(DAY_S, "1h", False), (-DAY_S, "3s", True)]
)
async def test_step_of_the_wall_clock_moves_no_deadline(
    tmp_path: Path, step_s: int, deadline: str, at_deadline: bool
) -> None:
    make = partial(KilledService, library=compiled_library(), database_url=None)
    async with open_machine(tmp_path / "s", make) as machine:
        service = machine.service
        assert isinstance(service, KilledService)
        await machine.deploy(duel=GUESTS)
        await machine.join(await machine.find_lobby("duel"))
        await machine.drain("--deadline", deadline)
        service.shim.shift_wall_clock(step_s)
        if not at_deadline:
            # No drain is over within 3 s, and the deadline is checked meanwhile.
            await machine.leave()
        assert await machine.exit_status() == 0
        events = map(json.loads, (service.folder / "log").read_text().splitlines())
        [over] = [event for event in events if event["event"] == "drain is over"]
        assert over["at_deadline"] == at_deadline


async def test_stop_ends_a_drain(machine: Machine) -> None:
    await machine.deploy(duel=GUESTS, idle={})
    await machine.join(await machine.find_lobby("duel"))
    waiting = machine.waiting_drain()
    await machine.until_draining()
    assert await asyncio.to_thread(machine.service.stop) == 0
    _, errors = await asyncio.to_thread(waiting.communicate, None, PATIENCE_S)
    assert (waiting.returncode, "which ended the drain" in errors) == (1, True)
    await machine.restart()
    await machine.find_lobby("idle")


async def test_drain_waits_for_a_control_plane_that_is_down(machine: Machine) -> None:
    await machine.deploy(duel=GUESTS, idle={})
    await machine.join(await machine.find_lobby("duel"))
    control = machine.service.control_pid()
    os.kill(control, signal.SIGSTOP)
    try:
        await machine.part("control", is_up=False)
        lines = (await machine.command("status")).stdout.splitlines()
        assert "control: down, its operations are refused, players are served" in lines
        await machine.drain()
        assert (await machine.find("idle")).code == "SHUTTING_DOWN"
        await machine.leave()

        async def has_no_player() -> bool:
            return bool((await machine.status())["players"] == 0)

        await eventually(has_no_player)
        drain = (await machine.status())["drain"]
        assert (drain["servers"], drain["is_over"]) == (None, False)
    finally:
        os.kill(control, signal.SIGCONT)
    assert await machine.exit_status() == 0


async def test_drain_waits_for_dynamic_servers_and_starts_none(machine: Machine) -> None:
    back_end = await machine.back_end()
    server = await back_end.running()
    await machine.drain()
    refused = await back_end.try_create()
    assert (refused.code, refused.metadata) == ("SHUTTING_DOWN", {"reason": "draining"})
    assert "This machine drains" in refused.detail
    assert (await machine.status())["servers"] == {"running": 1}
    await back_end.good("destroy_server", server_id=server["id"])
    assert await machine.exit_status() == 0


async def test_no_lobby_is_attached_to_a_draining_machine(machine: Machine) -> None:
    game_id = await machine.developer.arena()
    token = await machine.developer.service_token(game_id)
    await machine.developer.lobby(game_id, token)
    await machine.drain("--deadline", "1h")
    fields = {
        "game_id": game_id,
        "namespace_id": "prod",
        "game_mode": "arena",
        "ports": {"game": {"address": "127.0.0.1", "port": 4000}},
    }
    answer = await machine.developer.client.call("attach", fields, token=token)
    assert answer.code == "SHUTTING_DOWN"
    assert await machine.exit_status() == 0, "an attached lobby without players does not count"


def test_drain_of_a_stopped_service(tmp_path: Path) -> None:
    result = run(tmp_path, "drain")
    assert result.returncode == 1
    assert "is no data directory of a service" in result.stderr


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[dict[str, EdgeGuardService]]:
    services = dict[str, EdgeGuardService]()
    for role in ("data", "control", "edge-guard"):
        folder = tmp_path / role
        folder.mkdir()
        settings = {**UNLIMITED, "runtime": game_programs.SETTINGS, "http": "127.0.0.1:0"}
        services[role] = one = EdgeGuardService(folder, settings=settings)
        one.data_dir = tmp_path / "data"
        one.role = ("--role", role)
    services["data"].listeners = ("http", "grpc", "metrics")
    services["control"].listeners = ("cdn",)
    services["edge-guard"].listeners = ()
    yield services
    for one in services.values():
        one.close()


def test_separate_roles_exit_at_the_end_of_a_drain(roles: dict[str, EdgeGuardService]) -> None:
    for one in roles.values():
        one.spawn()
    for one in roles.values():
        until(one.ready_file.exists)
        one.addresses = {name: one.ready()[name] for name in one.listeners if name in one.ready()}
    data = roles["data"]
    made_server(data, roles["control"].ready())
    result = data.command("drain", "--deadline", "0s")
    assert (result.returncode, result.stderr) == (0, "")
    for one in roles.values():
        assert one.process is not None
        assert one.process.wait(2 * PATIENCE_S) == 0, one.log()
    assert data.command("status").returncode == 3
