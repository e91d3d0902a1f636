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
from tests.runtime.deep_folders import create_deep_folders
from tests.support.runtime_host import SHELL, RuntimeHost, build_of, is_alive, open_host, until
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

A_WEEK_S: Final = 7 * 24 * 3600
LONG: Final = "0192f000-0000-7000-8000-0000000000f1"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[RuntimeHost]:
    async with open_host(tmp_path, tmp_path / "builds") as host:
        yield host


async def about_to_be_laid_out(host: RuntimeHost, run_id: str) -> None:
    await until(lambda: host.supervisor.runs[run_id].state == "preparing")
    await until(lambda: host.store.requests)


async def test_failed_preparation_of_a_run_is_retried(host: RuntimeHost) -> None:
    host.store.archives[LONG] = build_of("sleep", "3600")
    host.store.fault = ServiceError("CONTROL_PLANE_UNAVAILABLE")
    order = host.want(build_id=LONG, args=())
    await about_to_be_laid_out(host, order.id)
    servers = host.folder / "servers"
    servers.rename(host.folder / "elsewhere")
    servers.touch()
    host.store.fault = None
    await until(lambda: host.supervisor.runs[order.id].state == "placing")
    servers.unlink()
    (host.folder / "elsewhere").rename(servers)
    await host.reports.wait_for(order.id, "running")
    assert host.reports.of(order.id) == ["placed", "running"]


async def test_unprepared_run_ends_after_a_minute_without_revealing_paths(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", 0.3)
    host.store.archives[LONG] = build_of("sleep", "3600")
    host.store.fault = ServiceError("CONTROL_PLANE_UNAVAILABLE")
    order, stopped = (host.want(build_id=LONG, args=()) for _ in range(2))
    for one in (order, stopped):
        await about_to_be_laid_out(host, one.id)
    servers = host.folder / "servers"
    servers.rename(host.folder / "elsewhere")
    servers.touch()
    host.store.fault = None
    await until(lambda: host.supervisor.runs[stopped.id].state == "placing")
    host.supervisor.end(stopped.id)
    assert (await host.reports.end(stopped.id)).reason == "stopped"
    end = await host.reports.end(order.id)
    servers.unlink()
    (host.folder / "elsewhere").rename(servers)
    assert (end.reason, end.exit_code) == ("exec_failed", None)
    assert end.message == "this node could not create the run folder: Not a directory"


def _remove_owner(folder: RunFolder) -> None:
    spec = folder.path / "spec"
    spec.write_bytes(spec.read_bytes().rpartition(b"note=")[0])


async def test_run_without_an_owner_record_is_ended_unless_requested(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cleanup, "UNOWNED_GRACE_S", 0.5)
    owned, foreign, other = [await host.running() for _ in range(3)]
    pids = {order.id: host.pid_of(order) for order in (owned, foreign, other)}
    await host.drop()
    for order in (owned, foreign):
        _remove_owner(host.of(order))
    await host.start()
    host.supervisor.ensure_running(owned)
    await until(lambda: (host.of(foreign).path / "told").exists())
    assert not is_alive(pids[foreign.id])
    assert host.supervisor.runs.keys() == {owned.id, other.id}
    assert is_alive(pids[owned.id])
    assert is_alive(pids[other.id])
    host.supervisor.end(owned.id, 0)
    assert (await host.reports.end(owned.id)).reason == "stopped"
    await host.anew()
    assert host.supervisor.runs.keys() == {other.id}


async def test_write_errors_neither_lose_nor_repeat_an_end(host: RuntimeHost) -> None:
    order = await host.running()
    in_the_way = host.of(order).path / "told"
    in_the_way.symlink_to(host.folder / "nothing" / "told")
    host.supervisor.end(order.id, 0)
    assert (await host.reports.end(order.id)).reason == "stopped"
    # The supervisor retries each second. Until then the run does not count as over, so the next
    # service reports its end too.
    assert order.id in host.supervisor.runs
    in_the_way.unlink()
    await until(lambda: not host.supervisor.runs)
    assert in_the_way.exists()
    assert host.reports.of(order.id).count("over") == 1


async def test_unreadable_run_folder_hides_no_other(host: RuntimeHost) -> None:
    broken, other = [await host.running() for _ in range(2)]
    await host.drop()
    spec = host.of(broken).path / "spec"
    spec_content = spec.read_bytes()
    spec.unlink()
    spec.mkdir()
    await host.start()
    assert host.supervisor.runs.keys() == {other.id}
    await host.drop()
    spec.rmdir()
    spec.write_bytes(spec_content)
    await host.start()
    assert host.supervisor.runs.keys() == {broken.id, other.id}


async def test_folders_of_reported_runs_are_not_read(host: RuntimeHost) -> None:
    order = host.want("echo said")
    await host.reports.end(order.id)
    await until(lambda: not host.supervisor.runs)
    await host.drop()
    # After this time other runs may use the ports.
    then = time.time() - 24 * 3600
    os.utime(host.of(order).path / "told", (then, then))
    _become_fifo(host.of(order).path / "spec")
    with _opened_in_the_end(host.of(order).path / "spec") as was_waited_for:
        await host.start()
    assert not was_waited_for()
    assert host.of(order).path.exists()
    assert not host.supervisor.runs


async def test_recovery_of_runs_does_not_block_the_loop(host: RuntimeHost) -> None:
    order = await host.running()
    await host.drop()
    path = host.of(order).path / "spec"
    content = path.read_bytes()
    _become_fifo(path)
    with _opened_in_the_end(path) as was_waited_for:
        starting = asyncio.create_task(host.start())
        descriptors: list[int] = []
        await until(lambda: _opened_by_a_reader(path, descriptors))
        assert not was_waited_for()
        os.write(descriptors[0], content)
        os.close(descriptors[0])
        await starting
    assert host.supervisor.run_ids("server") == [order.id]


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


async def test_build_is_kept_for_a_day_after_its_last_run(host: RuntimeHost) -> None:
    host.store.archives[LONG] = build_of("sleep", "3600")
    order = await host.running(build_id=LONG, args=())
    folder = host.folder / "builds" / LONG
    then = time.time() - 2 * UNUSED_RETENTION_S
    os.utime(folder, (then, then))
    await host.anew()
    host.supervisor.end(order.id)
    await until(lambda: not host.supervisor.runs)
    await host.supervisor.builds.remove_unused(set, is_full=False)
    assert folder.is_dir()


async def test_logs_are_kept_for_seven_days_after_the_acknowledged_end(host: RuntimeHost) -> None:
    orders = [host.want("echo said") for _ in range(3)]
    for order in orders:
        await host.reports.end(order.id)
    goes_on = await host.running("echo said; exec sleep 3600")
    await until(lambda: set(host.supervisor.runs) == {goes_on.id})
    await host.drop()
    now = time.time()
    for order, age_s in zip(orders, (0, A_WEEK_S - 60, A_WEEK_S + 60), strict=True):
        os.utime(host.of(order).path / "told", (now - age_s, now - age_s))
    for path in (host.of(goes_on).path, *host.of(goes_on).path.iterdir()):
        os.utime(path, (now - 2 * A_WEEK_S, now - 2 * A_WEEK_S), follow_symlinks=False)
    await host.start()
    await host.supervisor._remove_expired()
    await until(lambda: not host.of(orders[2]).path.exists())
    remaining = [order for order in (*orders, goes_on) if host.of(order).path.exists()]
    assert remaining == [*orders[:2], goes_on]
    for order in remaining:
        assert await host.lines(order, 1) == ["said"]


@pytest.mark.full
async def test_folder_that_cannot_be_removed_blocks_no_other(host: RuntimeHost) -> None:
    orders = [host.want("exit 0") for _ in range(4)]
    for order in orders:
        await host.reports.end(order.id)
    await until(lambda: not host.supervisor.runs)
    await host.drop()
    folders = [host.of(order).path for order in orders]
    for folder in folders[:2]:
        create_deep_folders(folder / "scratch")
    then = time.time() - LOG_RETENTION_S - 60
    for folder in folders[:3]:
        os.utime(folder / "told", (then, then))
    builds = host.folder / "builds"
    os.utime(builds / SHELL, (then, then))
    (builds / f"{SHELL}.unpacking" / "root").mkdir(parents=True)
    (builds / f"{SHELL}.unpacking" / "boot_id").write_bytes(
        (builds / SHELL / "boot_id").read_bytes()
    )
    try:
        await host.start()
        await until(lambda: [folder.exists() for folder in folders] == [False, False, False, True])
    finally:
        for folder in folders:
            remove_tree(folder)
