"""Restores that are killed, late, repeated or beside an edge-guard that still runs."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pyservice.data_formats import UNFINISHED_RESTORE
from pyservice.runtime.run_folder import RunFolder
from tests.support.command_line import run
from tests.support.databases import Databases
from tests.support.fault_shim import Shim, compiled_library
from tests.support.full_service import Developer
from tests.support.hosted_game import Hosted
from tests.support.published_game import Machine, Machines, PublishedGame
from tests.support.published_game import local as local
from tests.support.published_game import machines as machines
from tests.support.server_back_end import ServerBackEnd
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.full]

CALLS = "rename fsync mkdir make write remove"
NEVER = 1 << 40
HOUR_S = 3_600
ROLES = ("all", "data", "control", "edge-guard")
REFUSAL = "has an unfinished restore: run pyservice restore again"


async def backed_up(machine: Machine, target: str) -> PublishedGame:
    """Publishes a game, makes a backup, and ends the machine."""
    game = await machine.publish()
    machine.good("backup", "create", target)
    machine.service.close()
    return game


async def starts_a_lobby(machine: Machine, game: PublishedGame) -> str:
    """Creates a lobby with a game server. Returns its id."""
    async with machine.service.open_client("http") as client:
        created = await client.call("create", {"game_mode": "hosted"}, token=game.tokens["public"])
        assert created.code == "OK", created
        return str(created.body["lobby"]["lobby_id"])


def shim_of(machine: Machine) -> Shim:
    folder = machine.service.folder
    folder.mkdir(exist_ok=True)
    return Shim(compiled_library(), folder / "shim", machine.service.data_dir)


async def finds_a_lobby(machine: Machine, game: PublishedGame) -> str:
    async with machine.service.open_client("http") as client:
        return str((await game.find(client))["lobby"]["lobby_id"])


async def require_refused(machine: Machine) -> None:
    """Each role refuses the data directory, unless the restore has changed nothing in it."""
    data_dir = machine.service.data_dir
    if not (data_dir / UNFINISHED_RESTORE).exists():
        assert not (data_dir / "keys.json").exists()
        assert not list(data_dir.glob("control/*.*"))
        return
    starts = (asyncio.to_thread(run, data_dir, "serve", f"--role={role}") for role in ROLES)
    for ended in await asyncio.gather(*starts):
        assert (ended.returncode, REFUSAL in ended.stderr) == (1, True), ended.stderr


async def test_killed_restore_is_refused_by_each_role_and_repeated(
    machines: Machines, tmp_path: Path
) -> None:
    old, counted, new, target = machines.new(), machines.new(), machines.new(), str(tmp_path / "t")
    game = await backed_up(old, target)
    shim = shim_of(counted)
    count = shim.kill(CALLS, at=NEVER)
    counted.good("restore", target, "--yes", **shim.environment())
    shim = shim_of(new)
    for at in sorted(random.Random(1).sample(range(1, count.matched + 1), 4)):
        rule = shim.kill(CALLS, at=at)
        ended = new.command("restore", target, "--yes", **shim.environment())
        assert (ended.returncode, rule.hits) == (-signal.SIGKILL, 1), ended.stderr
        rule.release()
        await require_refused(new)
    assert UNFINISHED_RESTORE in os.listdir(new.service.data_dir)
    refusal = new.refusal("restore", target)
    assert refusal.startswith("The unfinished restore in the data directory is removed.\n")
    new.good("restore", target, "--yes")
    await asyncio.to_thread(new.service.start)
    assert await finds_a_lobby(new, game)
    assert new.refusal("restore", target, "--yes").endswith("choose a new --data-dir\n")


async def test_restore_that_has_filled_the_database_is_repeated(
    databases: Databases, tmp_path: Path
) -> None:
    machines, target = Machines(tmp_path, databases, "postgresql"), str(tmp_path / "t")
    try:
        old, new = machines.new(), machines.new()
        game = await backed_up(old, target)
        shim = shim_of(new)
        rule = shim.kill("remove", "control/records.db")
        ended = new.command("restore", target, "--yes", **shim.environment())
        assert (ended.returncode, rule.hits) == (-signal.SIGKILL, 1), ended.stderr
        await require_refused(new)
        new.good("restore", target, "--yes")
        await asyncio.to_thread(new.service.start)
        assert await finds_a_lobby(new, game)
        other = machines.new()
        url = new.service.database_url
        assert url is not None
        refused = run(
            other.service.data_dir, "restore", target, "--yes", PYSERVICE_DATABASE_URL=url
        )
        assert "the database is not empty: create a new one" in refused.stderr
        assert await finds_a_lobby(new, game), "its records are untouched"
    finally:
        machines.close()


async def test_plane_looks_for_a_restore_after_it_has_its_lock(local: Machines) -> None:
    machine = local.new()
    shim = shim_of(machine)
    with shim.stalled("rename", "formats.json") as stalled:
        words = ("serve", "--role=data", "--http=127.0.0.1:0", "--metrics=127.0.0.1:0")
        starting = asyncio.create_task(
            asyncio.to_thread(machine.command, *words, **shim.environment())
        )

        async def is_stalled() -> bool:
            return stalled.waiting == 1

        await eventually(is_stalled)
        (machine.service.data_dir / UNFINISHED_RESTORE).touch()
    ended = await starting
    assert (ended.returncode, REFUSAL in ended.stderr) == (1, True), ended.stderr
    assert not (machine.service.data_dir / "keys.json").exists()


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_service_that_started_before_the_answer_keeps_its_keys(
    local: Machines, tmp_path: Path, *, is_stopped: bool
) -> None:
    old, new, target = local.new(), local.new(), str(tmp_path / "t")
    await backed_up(old, target)
    keys = new.service.data_dir / "keys.json"
    with asked_restore(new, target) as (restore, operator):
        game = await new.publish()
        before = keys.read_bytes()
        if is_stopped:
            assert new.service.stop() == 0
        os.write(operator, b"y\n")
        _, text = await asyncio.to_thread(restore.communicate)
    reason = b"is not empty: choose a new" if is_stopped else b"is in use by process"
    assert (restore.returncode, reason in text) == (1, True), text
    assert keys.read_bytes() == before
    if not is_stopped:
        assert await finds_a_lobby(new, game)


@contextmanager
def asked_restore(machine: Machine, target: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A restore that waits for the answer of its operator, and the operator's terminal."""
    words = ("restore", target, "--data-dir", str(machine.service.data_dir))
    operator, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "pyservice", *words],
            env=machine.environment(),
            stdin=terminal,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as restore:
            assert restore.stderr is not None
            text = b""
            while not text.endswith(b"[y/N] "):
                more = os.read(restore.stderr.fileno(), 4_096)
                assert more, text
                text += more
            yield restore, operator
    finally:
        os.close(operator)
        os.close(terminal)


async def test_second_restore_waits_for_no_first_one(local: Machines, tmp_path: Path) -> None:
    old, new, target = local.new(), local.new(), str(tmp_path / "t")
    game = await backed_up(old, target)
    shim = shim_of(new)
    with shim.stalled("rename", "keys.json") as stalled:
        first = asyncio.create_task(
            asyncio.to_thread(new.good, "restore", target, "--yes", **shim.environment())
        )

        async def is_stalled() -> bool:
            return stalled.waiting == 1

        await eventually(is_stalled)
        assert "is in use by process" in new.refusal("restore", target, "--yes")
    await first
    await asyncio.to_thread(new.service.start)
    assert await finds_a_lobby(new, game)


async def test_repeated_idempotency_key_acts_again_after_a_restore(
    machines: Machines, tmp_path: Path
) -> None:
    old, new, target = machines.new(), machines.new(), str(tmp_path / "t")
    game, key = await old.publish(), uuid4().hex

    async def create_version(machine: Machine) -> str:
        fields = {"game_id": game.game_id, "display_name": "2.0.0", "config": {}}
        async with machine.service.open_client("http") as client:
            developer = Developer(machine.service, client, game.tokens["cloud"])
            return str((await developer.good("create_version", key, **fields))["version_id"])

    first = await create_version(old)
    assert await create_version(old) == first
    old.good("backup", "create", target)
    assert old.service.stop() == 0
    old.good("restore", "--journal-only", "--yes")
    new.good("restore", target, "--yes")
    for machine in (old, new):
        await asyncio.to_thread(machine.service.start)
        second = await create_version(machine)
        assert second != first
        assert await create_version(machine) == second


def routes_of(machine: Machine) -> dict[str, int]:
    """Returns the public port of each lobby and server, as edge-guard has saved it."""
    saved = json.loads((machine.service.data_dir / "edge" / "routes").read_text())
    return {route["owner"]: route["port"] for route in saved["routes"]}


async def require_routes_of_now(machine: Machine, game: PublishedGame, before: str) -> None:
    """The edge-guard of before serves a new lobby, and no route of the lobby of before."""

    async def is_gone() -> bool:
        return before not in routes_of(machine)

    await eventually(is_gone)
    lobby_id = await starts_a_lobby(machine, game)

    async def is_served() -> bool:
        return lobby_id in routes_of(machine)

    await eventually(is_served)
    socket.create_connection(("127.0.0.1", routes_of(machine)[lobby_id]), PATIENCE_S).close()


def edge_guard_pid(machine: Machine) -> int:
    return int((machine.service.data_dir / "edge" / "LOCK").read_text())


def run_of(machine: Machine, run_id: str) -> RunFolder:
    return RunFolder(machine.service.data_dir / "servers" / run_id)


async def test_lost_journal_ends_game_servers_and_routes(machines: Machines) -> None:
    machine = machines.new()
    game = await machine.publish()
    lobby_id = await starts_a_lobby(machine, game)
    async with machine.service.open_client("http") as client:
        hosted = Hosted(Developer(machine.service, client), game.game_id)
        await hosted.upload()
        server_id = await hosted.server()

        async def is_running() -> bool:
            return run_of(machine, server_id).is_kept()

        await eventually(is_running)
    pid = edge_guard_pid(machine)
    assert machine.service.stop() == 0
    assert run_of(machine, lobby_id).is_kept()
    assert lobby_id in routes_of(machine)
    machine.good("restore", "--journal-only", "--yes")
    assert not run_of(machine, lobby_id).is_kept()
    assert not run_of(machine, server_id).is_kept()
    await asyncio.to_thread(machine.service.start)
    await require_routes_of_now(machine, game, lobby_id)
    assert edge_guard_pid(machine) == pid
    async with machine.service.open_client("http") as client:
        developer = Developer(machine.service, client)
        of_server = {"game_id": game.game_id, "environment_id": "prod", "server_id": server_id}

        async def is_destroyed() -> bool:
            server = (await developer.good("get_server", **of_server))["server"]
            return bool(server.get("destroyed_at"))

        await eventually(is_destroyed)


async def test_restore_ends_the_records_of_lobbies_and_servers_that_ran(
    machines: Machines, tmp_path: Path
) -> None:
    old, new, target = machines.new(), machines.new(), str(tmp_path / "t")
    game = await old.publish()
    lobby_id = await starts_a_lobby(old, game)
    of_lobby = {"game_id": game.game_id, "namespace_id": "prod", "lobby_id": lobby_id}

    async def lobby_status(developer: Developer) -> Any:
        return (await developer.good("get_lobby_record", **of_lobby))["lobby"]["status"]

    async with old.service.open_client("http") as client:
        developer = Developer(old.service, client, game.tokens["cloud"])
        back_end = ServerBackEnd(developer, game.game_id, game.tokens["environment"])
        await back_end.prepare_build()
        server_id = (await back_end.running())["id"]

        async def is_recorded() -> bool:
            found = await developer.call("get_lobby_record", **of_lobby)
            return found.code == "OK" and run_of(old, lobby_id).is_kept()

        await eventually(is_recorded)
        assert "stopped" not in await lobby_status(developer)
        old.good("backup", "create", target)
    old.service.close()
    new.good("restore", target, "--yes")
    await asyncio.to_thread(new.service.start)
    async with new.service.open_client("http") as client:
        developer = Developer(new.service, client, game.tokens["cloud"])

        async def is_stopped() -> bool:
            return "stopped" in await lobby_status(developer)

        await eventually(is_stopped)
        back_end = ServerBackEnd(developer, game.game_id, game.tokens["environment"])
        record = await back_end.until(server_id, "destroyed", "failed")
    assert record["failure"]["reason"] == "LOST"
    assert record["destroyed_at"]
    for run_id in (lobby_id, server_id):
        assert not run_of(new, run_id).is_kept()
        assert run_id not in routes_of(new)


async def test_edge_guard_of_before_takes_the_routes_of_a_restore_with_an_earlier_clock(
    local: Machines, tmp_path: Path
) -> None:
    old, new, target = local.new(), local.new(), str(tmp_path / "t")
    game = await backed_up(old, target)
    shim = shim_of(new)
    shim.shift_wall_clock(HOUR_S)
    new.good("restore", target, "--yes", **shim.environment())
    await asyncio.to_thread(new.service.start)
    lobby_id, pid = await starts_a_lobby(new, game), edge_guard_pid(new)
    first_epoch = epoch_of(new)
    assert new.service.stop() == 0
    run_of(new, lobby_id).stop(0)
    data_dir = new.service.data_dir
    (aside := tmp_path / "aside").mkdir()
    for path in data_dir.iterdir():
        if path.name != "edge":
            path.rename(aside / path.name)
    new.good("restore", target, "--yes")
    assert epoch_of(new) < first_epoch - HOUR_S / 2
    await asyncio.to_thread(new.service.start)
    await require_routes_of_now(new, game, lobby_id)
    assert edge_guard_pid(new) == pid


def epoch_of(machine: Machine) -> int:
    return int(json.loads((machine.service.data_dir / "keys.json").read_text())["first_epoch"])
