"""Restores that are killed, late, repeated or beside an edge-guard that still runs."""

from __future__ import annotations

import asyncio
import os
import pty
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyservice.data_formats import UNFINISHED_RESTORE
from tests.support.command_line import run
from tests.support.databases import KINDS, Databases
from tests.support.fault_shim import Shim, compiled_library
from tests.support.published_game import Machine, Machines, PublishedGame
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.full]

CALLS = "rename fsync mkdir make write remove"
NEVER = 1 << 40
HOUR_S = 3_600
ROLES = ("all", "data", "control", "edge-guard")
REFUSAL = "has an unfinished restore: run pyservice restore again"


@pytest.fixture(params=KINDS)
def machines(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> Iterator[Machines]:
    machines = Machines(tmp_path, databases, request.param)
    yield machines
    machines.close()


@pytest.fixture
def local(databases: Databases, tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path, databases, "sqlite")
    yield machines
    machines.close()


async def backed_up(machine: Machine, target: str) -> PublishedGame:
    """Publishes a game, makes a backup, and ends the machine."""
    game = await machine.publish()
    machine.good("backup", "create", target)
    machine.service.close()
    return game


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
