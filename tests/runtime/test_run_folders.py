from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from pyservice.errors import ServiceError
from pyservice.runtime import run_cleanup, run_lifecycle
from pyservice.runtime.filesystem import remove_tree
from pyservice.runtime.run_cleanup import LOG_RETENTION_S
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.unpacked_builds import UNUSED_RETENTION_S
from tests.runtime.node import SHELL, Place, build_of, is_alive, open_place, until
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

A_WEEK_S: Final = 7 * 24 * 3600
LONG: Final = "0192f000-0000-7000-8000-0000000000f1"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path, tmp_path / "builds") as made:
        yield made


async def about_to_be_laid_out(place: Place, run_id: str) -> None:
    await until(lambda: place.supervisor.runs[run_id].state == "preparing")
    await until(lambda: place.store.asked)


async def test_failed_preparation_of_a_run_is_retried(place: Place) -> None:
    place.store.archives[LONG] = build_of("sleep", "3600")
    place.store.fault = ServiceError("CONTROL_PLANE_UNAVAILABLE")
    order = place.want(build_id=LONG, args=())
    await about_to_be_laid_out(place, order.id)
    servers = place.folder / "servers"
    servers.rename(place.folder / "elsewhere")
    servers.touch()
    place.store.fault = None
    await until(lambda: place.supervisor.runs[order.id].state == "placing")
    servers.unlink()
    (place.folder / "elsewhere").rename(servers)
    await place.ear.told(order.id, "running")
    assert place.ear.of(order.id) == ["placed", "running"]


async def test_unprepared_run_ends_after_a_minute_without_revealing_paths(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", 0.3)
    place.store.archives[LONG] = build_of("sleep", "3600")
    place.store.fault = ServiceError("CONTROL_PLANE_UNAVAILABLE")
    order, stopped = (place.want(build_id=LONG, args=()) for _ in range(2))
    for one in (order, stopped):
        await about_to_be_laid_out(place, one.id)
    servers = place.folder / "servers"
    servers.rename(place.folder / "elsewhere")
    servers.touch()
    place.store.fault = None
    await until(lambda: place.supervisor.runs[stopped.id].state == "placing")
    place.supervisor.end(stopped.id)
    assert (await place.ear.end(stopped.id)).reason == "stopped"
    end = await place.ear.end(order.id)
    servers.unlink()
    (place.folder / "elsewhere").rename(servers)
    assert (end.reason, end.exit_code) == ("exec_failed", None)
    assert end.message == "this node could not lay it out: Not a directory"


def _remove_owner(folder: RunFolder) -> None:
    spec = folder.path / "spec"
    spec.write_bytes(spec.read_bytes().rpartition(b"note=")[0])


async def test_run_without_an_owner_record_is_ended_unless_requested(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cleanup, "UNOWNED_GRACE_S", 0.5)
    wanted, stranger, other = [await place.running() for _ in range(3)]
    pids = {order.id: place.pid_of(order) for order in (wanted, stranger, other)}
    await place.drop()
    for order in (wanted, stranger):
        _remove_owner(place.of(order))
    await place.start()
    place.supervisor.ensure_running(wanted)
    await until(lambda: (place.of(stranger).path / "told").exists())
    assert not is_alive(pids[stranger.id])
    assert place.supervisor.runs.keys() == {wanted.id, other.id}
    assert is_alive(pids[wanted.id])
    assert is_alive(pids[other.id])
    place.supervisor.end(wanted.id, 0)
    assert (await place.ear.end(wanted.id)).reason == "stopped"
    await place.anew()
    assert place.supervisor.runs.keys() == {other.id}


async def test_write_errors_neither_lose_nor_repeat_an_end(
    place: Place,
) -> None:
    order = await place.running()
    in_the_way = place.of(order).path / "told"
    in_the_way.symlink_to(place.folder / "nothing" / "told")
    place.supervisor.end(order.id, 0)
    assert (await place.ear.end(order.id)).reason == "stopped"
    # The supervisor retries each second. Until then the run does not count as over, so the next
    # service reports its end too.
    assert order.id in place.supervisor.runs
    in_the_way.unlink()
    await until(lambda: not place.supervisor.runs)
    assert in_the_way.exists()
    assert place.ear.of(order.id).count("over") == 1


async def test_unreadable_run_folder_hides_no_other(place: Place) -> None:
    broken, other = [await place.running() for _ in range(2)]
    await place.drop()
    spec = place.of(broken).path / "spec"
    kept = spec.read_bytes()
    spec.unlink()
    spec.mkdir()
    await place.start()
    assert place.supervisor.runs.keys() == {other.id}
    await place.drop()
    spec.rmdir()
    spec.write_bytes(kept)
    await place.start()
    assert place.supervisor.runs.keys() == {broken.id, other.id}


async def test_folders_of_reported_runs_are_not_read(place: Place) -> None:
    order = place.want("echo said")
    await place.ear.end(order.id)
    await until(lambda: not place.supervisor.runs)
    await place.drop()
    # After this time other runs may use the ports.
    then = time.time() - 24 * 3600
    os.utime(place.of(order).path / "told", (then, then))
    _become_fifo(place.of(order).path / "spec")
    with _opened_in_the_end(place.of(order).path / "spec") as was_waited_for:
        await place.start()
    assert not was_waited_for()
    assert place.of(order).path.exists()
    assert not place.supervisor.runs


async def test_recovery_of_runs_does_not_block_the_loop(place: Place) -> None:
    order = await place.running()
    await place.drop()
    path = place.of(order).path / "spec"
    content = path.read_bytes()
    _become_fifo(path)
    with _opened_in_the_end(path) as was_waited_for:
        starting = asyncio.create_task(place.start())
        descriptors: list[int] = []
        await until(lambda: _opened_by_a_reader(path, descriptors))
        assert not was_waited_for()
        os.write(descriptors[0], content)
        os.close(descriptors[0])
        await starting
    assert place.supervisor.run_ids("server") == [order.id]


def _become_fifo(path: Path) -> None:
    """Replaces a file by a FIFO. A reader of the FIFO waits for a writer."""
    path.unlink()
    os.mkfifo(path)


def _opened_by_a_reader(fifo: Path, descriptors: list[int]) -> bool:
    with contextlib.suppress(OSError):
        descriptors.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    return bool(descriptors)


@contextlib.contextmanager
def _opened_in_the_end(fifo: Path) -> Iterator[Callable[[], bool]]:
    """Opens the FIFO for writing, which ends every wait on it. Returns whether a reader waited."""
    descriptors: list[int] = []
    timer = threading.Timer(PATIENCE_S, _opened_by_a_reader, (fifo, descriptors))
    timer.start()
    try:
        yield lambda: bool(descriptors)
    finally:
        timer.cancel()
        timer.join()
        for descriptor in descriptors:
            os.close(descriptor)


async def test_build_is_kept_for_a_day_after_its_last_run(place: Place) -> None:
    place.store.archives[LONG] = build_of("sleep", "3600")
    order = await place.running(build_id=LONG, args=())
    folder = place.folder / "builds" / LONG
    then = time.time() - 2 * UNUSED_RETENTION_S
    os.utime(folder, (then, then))
    await place.anew()
    place.supervisor.end(order.id)
    await until(lambda: not place.supervisor.runs)
    await place.supervisor.builds.remove_unused(set, is_full=False)
    assert folder.is_dir()


async def test_logs_are_kept_for_seven_days_after_the_acknowledged_end(place: Place) -> None:
    orders = [place.want("echo said") for _ in range(3)]
    for order in orders:
        await place.ear.end(order.id)
    goes_on = await place.running("echo said; exec sleep 3600")
    await until(lambda: set(place.supervisor.runs) == {goes_on.id})
    await place.drop()
    now = time.time()
    for order, age_s in zip(orders, (0, A_WEEK_S - 60, A_WEEK_S + 60), strict=True):
        os.utime(place.of(order).path / "told", (now - age_s, now - age_s))
    for path in (place.of(goes_on).path, *place.of(goes_on).path.iterdir()):
        os.utime(path, (now - 2 * A_WEEK_S, now - 2 * A_WEEK_S), follow_symlinks=False)
    await place.start()
    await place.supervisor._remove_expired()
    await until(lambda: not place.of(orders[2]).path.exists())
    kept = [order for order in (*orders, goes_on) if place.of(order).path.exists()]
    assert kept == [*orders[:2], goes_on]
    for order in kept:
        assert await place.lines(order, 1) == ["said"]


async def test_folder_that_cannot_be_removed_blocks_no_other(place: Place) -> None:
    orders = [place.want("exit 0") for _ in range(4)]
    for order in orders:
        await place.ear.end(order.id)
    await until(lambda: not place.supervisor.runs)
    await place.drop()
    folders = [place.of(order).path for order in orders]
    for folder in folders[:2]:
        _fill_deep(folder / "scratch")
    then = time.time() - LOG_RETENTION_S - 60
    for folder in folders[:3]:
        os.utime(folder / "told", (then, then))
    builds = place.folder / "builds"
    os.utime(builds / SHELL, (then, then))
    (builds / f"{SHELL}.unpacking" / "root").mkdir(parents=True)
    (builds / f"{SHELL}.unpacking" / "boot_id").write_bytes(
        (builds / SHELL / "boot_id").read_bytes()
    )
    try:
        await place.start()
        await until(lambda: [folder.exists() for folder in folders] == [False, False, False, True])
    finally:
        for folder in folders:
            remove_tree(folder)


def _fill_deep(folder: Path) -> None:
    """Creates folders that are nested deeper than Python's recursion limit."""
    folder.mkdir(exist_ok=True)
    at = os.open(folder, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("deep", dir_fd=at)
        below = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
