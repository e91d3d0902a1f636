"""Starts that hang end at their deadline or by a stop, and leave no process behind.

A start hangs because a keeper or the forked process opens a FIFO without a writer, or because the
keeper launcher is suspended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime import keeper_launcher, run_lifecycle
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.run_requests import RunEnd, RunRequest
from pyservice.runtime.unpacked_builds import BuildSource
from tests.runtime.unstarted_runs import laid_out
from tests.support.build_store import Store
from tests.support.leftover_processes import pids_of
from tests.support.runtime_host import CAPACITY, SHELL, RuntimeHost, is_alive, launcher_of, until

pytestmark = pytest.mark.anyio

NOT_BEGUN: Final = RunEnd("exec_failed", message=run_lifecycle.START_TIMED_OUT)
LATER_S: Final = (0.0, 0.001, 0.002, 0.008, 0.016, 0.032)
MOMENTS_S: Final = (0.004, *(pytest.param(one, marks=pytest.mark.full) for one in LATER_S))


def before_its_record(folder: RunFolder) -> None:
    (folder.path / "spec").unlink()
    os.mkfifo(folder.path / "spec")


def before_its_program(folder: RunFolder) -> None:
    os.mkfifo(folder.path / "hangs")
    spec = folder.path / "spec"
    spec.write_bytes(b"cgroup=" + os.fsencode(folder.path / "hangs") + b"\0" + spec.read_bytes())


HANGS: Final = (before_its_record, before_its_program)
Hang = Callable[[RunFolder], None]


async def hanging(host: RuntimeHost, hang: Hang) -> tuple[RunRequest, list[int]]:
    order = await laid_out(host)
    hang(host.of(order))
    host.supervisor.ensure_running(order)
    count = 1 if hang is before_its_record else 2
    await until(lambda: len(host.of(order).holders()) == count)
    assert host.supervisor.runs[order.id].state == "starting"
    return order, host.of(order).holders()


async def is_over(host: RuntimeHost, order: RunRequest, pids: list[int], end: RunEnd) -> None:
    """Fails unless the run has ended. Its folder stays for its log, which has the message of the end."""
    await until(lambda: order.id not in host.supervisor.runs)
    assert not any(is_alive(pid) for pid in pids)
    assert host.reports.of(order.id) == ["placed", "over"]
    assert host.supervisor.capacity.free == CAPACITY
    assert host.of(order).path.exists() == (host.of(order).was_started() or bool(end.message))
    await host.running()


@pytest.mark.full
@pytest.mark.parametrize("hang", HANGS)
async def test_hanging_start_ends_at_its_deadline(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch, hang: Hang
) -> None:
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", 3.0)
    order, pids = await hanging(host, hang)
    assert await host.reports.end(order.id) == NOT_BEGUN
    await is_over(host, order, pids, NOT_BEGUN)


@pytest.mark.parametrize("hang", HANGS)
async def test_stop_ends_a_hanging_start(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch, hang: Hang
) -> None:
    monkeypatch.setattr(run_lifecycle, "KEEPER_GRACE_S", 0.1)
    order, pids = await hanging(host, hang)
    host.supervisor.end(order.id, 0)
    assert await host.reports.end(order.id) == RunEnd("stopped")
    await is_over(host, order, pids, RunEnd("stopped"))


@pytest.mark.full
async def test_stop_ends_a_hanging_start_after_a_service_restart(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "KEEPER_GRACE_S", 0.1)
    order, pids = await hanging(host, before_its_program)
    await host.anew()
    host.supervisor.end(order.id, 0)
    end = await host.reports.end(order.id)
    assert end == RunEnd("lost", message="its keeper died without recording how it ended")
    assert not any(is_alive(pid) for pid in pids)


async def test_start_ended_by_its_deadline_is_not_repeated_after_a_restart(
    host: RuntimeHost,
) -> None:
    order = await laid_out(host)
    host.of(order).withdraw()
    host.supervisor.ensure_running(order)
    assert await host.reports.end(order.id) == NOT_BEGUN
    assert host.reports.of(order.id) == ["over"]
    assert host.of(order).path.exists()


async def start_with_suspended_launcher(host: RuntimeHost) -> tuple[RunRequest, int]:
    launcher = launcher_of(host)
    os.kill(launcher, signal.SIGSTOP)
    order = host.want()
    await until(lambda: "placed" in host.reports.of(order.id))
    await until(lambda: host.supervisor.runs[order.id].state == "starting")
    return order, launcher


async def test_stop_works_while_the_keeper_launcher_is_suspended(host: RuntimeHost) -> None:
    order, launcher = await start_with_suspended_launcher(host)
    host.supervisor.end(order.id, 0)
    assert await host.reports.end(order.id) == RunEnd("stopped")
    await until(lambda: not host.of(order).path.exists())
    os.kill(launcher, signal.SIGCONT)
    await host.running()
    assert launcher_of(host) == launcher, "the launcher was not restarted"
    assert not host.of(order).path.exists(), "the launcher started no ended run"


@pytest.mark.full
async def test_unresponsive_keeper_launcher_is_replaced(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_launcher, "ANSWER_TIMEOUT_S", 0.1)
    order, launcher = await start_with_suspended_launcher(host)
    other = host.want()
    await until(lambda: "placed" in host.reports.of(other.id))
    host.supervisor.end(order.id, 0)
    await host.reports.wait_for(other.id, "running")
    assert not is_alive(launcher)
    assert await host.reports.end(order.id) == RunEnd("stopped")


@pytest.mark.parametrize("after_s", MOMENTS_S)
async def test_deadline_at_any_moment_leaves_a_running_or_ended_run(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    order = await laid_out(host)
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", after_s + 0.001)
    host.supervisor.ensure_running(order)
    await until(lambda: {"running", "over"} & set(host.reports.of(order.id)))
    if "over" in host.reports.of(order.id):
        assert (await host.reports.end(order.id)).reason in ("exec_failed", "lost")
        await until(lambda: not list(_kept(host, order)))
    else:
        assert is_alive(host.pid_of(order))
        assert host.of(order).is_kept()


@pytest.mark.parametrize("after_s", MOMENTS_S)
async def test_stop_at_any_moment_leaves_no_process(host: RuntimeHost, after_s: float) -> None:
    order = await laid_out(host)
    host.supervisor.ensure_running(order)
    await asyncio.sleep(after_s)
    host.supervisor.end(order.id, 0)
    assert (await host.reports.end(order.id)).reason == "stopped"
    await until(lambda: order.id not in host.supervisor.runs)
    # The keeper reports the end before the keeper process exits.
    await until(lambda: not list(_kept(host, order)))


def _kept(host: RuntimeHost, order: RunRequest) -> list[int]:
    return list(pids_of(host.of(order).path))


class SilentStore(Store):
    async def __call__(self, game_id: str, build_id: str) -> BuildSource:
        await asyncio.Event().wait()
        raise AssertionError


async def test_build_that_arrives_too_late_is_reported(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "BUILD_TIMEOUT_S", 0.05)
    host.store = SilentStore()
    await host.anew()
    order = host.want(build_id="0192f000-0000-7000-8000-0000000000f2")
    end = await host.reports.end(order.id)
    assert end == RunEnd(
        "build_unusable", message="the build could not be fetched and unpacked in time"
    )
    await until(lambda: order.id not in host.supervisor.runs)
    assert host.reports.of(order.id) == ["over"]
    assert host.supervisor.capacity.free == CAPACITY
    await host.running(build_id=SHELL)


async def test_unexpected_error_is_reported_without_its_text(host: RuntimeHost) -> None:
    async def broken(run_id: str, backends: object) -> None:
        raise RuntimeError(f"{host.folder} is where we are")

    host.reports.report_placement = broken  # type: ignore[method-assign]
    end = await host.reports.end(host.want().id)
    assert end == RunEnd(
        "lost",
        message="an unexpected error happened while the run was starting: see the service's log",
    )


async def test_run_that_never_started_leaves_no_control_group(host: RuntimeHost) -> None:
    groups = ControlGroups.find(host.folder)
    if groups.memory is None:
        pytest.skip("no control group can be made here")
    host.node = replace(host.node, groups=groups)
    await host.anew()
    host.reports.blocked.add("placed")
    order = host.want()
    await until(lambda: "placed" in host.reports.tries)
    group = groups.memory / order.id
    assert group.is_dir()
    host.supervisor.end(order.id)
    unusable = host.want("echo \0")
    assert (await host.reports.end(order.id)).reason == "stopped"
    assert (await host.reports.end(unusable.id)).reason == "exec_failed"
    await until(lambda: not host.supervisor.runs)
    assert [path for path in _groups(groups) if path.exists()] == []


def _groups(groups: ControlGroups) -> list[Path]:
    return [parent for parent in (groups.memory, groups.cpu) if parent is not None]
