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
from tests.runtime.build_store import Store
from tests.runtime.node import CAPACITY, SHELL, Place, is_alive, nursery_of, until
from tests.support.leftover_processes import pids_of

pytestmark = pytest.mark.anyio

NOT_BEGUN: Final = RunEnd("exec_failed", message=run_lifecycle.START_TIMED_OUT)
MOMENTS_S: Final = (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)


def before_its_record(folder: RunFolder) -> None:
    (folder.path / "spec").unlink()
    os.mkfifo(folder.path / "spec")


def before_its_program(folder: RunFolder) -> None:
    os.mkfifo(folder.path / "hangs")
    spec = folder.path / "spec"
    spec.write_bytes(b"cgroup=" + os.fsencode(folder.path / "hangs") + b"\0" + spec.read_bytes())


HANGS: Final = (before_its_record, before_its_program)
Hang = Callable[[RunFolder], None]


async def laid_out(place: Place) -> RunRequest:
    place.ear.stuck.add("placed")
    order = place.want()
    await until(lambda: "placed" in place.ear.tries)
    await place.anew()
    return order


async def hanging(place: Place, hang: Hang) -> tuple[RunRequest, list[int]]:
    order = await laid_out(place)
    hang(place.of(order))
    place.supervisor.ensure_running(order)
    count = 1 if hang is before_its_record else 2
    await until(lambda: len(place.of(order).holders()) == count)
    assert place.supervisor.runs[order.id].state == "starting"
    return order, place.of(order).holders()


async def is_over(place: Place, order: RunRequest, pids: list[int]) -> None:
    await until(lambda: order.id not in place.supervisor.runs)
    assert not any(is_alive(pid) for pid in pids)
    assert place.ear.of(order.id) == ["placed", "over"]
    assert place.supervisor.capacity.free == CAPACITY
    assert place.of(order).path.exists() == place.of(order).was_started()
    await place.running()


@pytest.mark.parametrize("hang", HANGS)
async def test_hanging_start_ends_at_its_deadline(
    place: Place, monkeypatch: pytest.MonkeyPatch, hang: Hang
) -> None:
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", 3.0)
    order, pids = await hanging(place, hang)
    assert await place.ear.end(order.id) == NOT_BEGUN
    await is_over(place, order, pids)


@pytest.mark.parametrize("hang", HANGS)
async def test_stop_ends_a_hanging_start(
    place: Place, monkeypatch: pytest.MonkeyPatch, hang: Hang
) -> None:
    monkeypatch.setattr(run_lifecycle, "KEEPER_GRACE_S", 0.1)
    order, pids = await hanging(place, hang)
    place.supervisor.end(order.id, 0)
    assert await place.ear.end(order.id) == RunEnd("stopped")
    await is_over(place, order, pids)


async def test_stop_ends_a_hanging_start_after_a_service_restart(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "KEEPER_GRACE_S", 0.1)
    order, pids = await hanging(place, before_its_program)
    await place.anew()
    place.supervisor.end(order.id, 0)
    end = await place.ear.end(order.id)
    assert end == RunEnd("lost", message="its keeper died without recording how it ended")
    assert not any(is_alive(pid) for pid in pids)


async def test_start_ended_by_its_deadline_is_not_repeated_after_a_restart(
    place: Place,
) -> None:
    order = await laid_out(place)
    place.of(order).withdraw()
    place.supervisor.ensure_running(order)
    assert await place.ear.end(order.id) == NOT_BEGUN
    assert place.ear.of(order.id) == ["over"]
    await until(lambda: not place.of(order).path.exists())


async def start_with_suspended_launcher(place: Place) -> tuple[RunRequest, int]:
    deaf = nursery_of(place)
    os.kill(deaf, signal.SIGSTOP)
    order = place.want()
    await until(lambda: "placed" in place.ear.of(order.id))
    await until(lambda: place.supervisor.runs[order.id].state == "starting")
    return order, deaf


async def test_stop_works_while_the_keeper_launcher_is_suspended(place: Place) -> None:
    order, deaf = await start_with_suspended_launcher(place)
    place.supervisor.end(order.id, 0)
    assert await place.ear.end(order.id) == RunEnd("stopped")
    await until(lambda: not place.of(order).path.exists())
    os.kill(deaf, signal.SIGCONT)
    await place.running()
    assert nursery_of(place) == deaf, "it had only to catch up"
    assert not place.of(order).path.exists(), "and began nothing that nobody wants"


async def test_unresponsive_keeper_launcher_is_replaced(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_launcher, "ANSWER_TIMEOUT_S", 0.1)
    order, deaf = await start_with_suspended_launcher(place)
    other = place.want()
    await until(lambda: "placed" in place.ear.of(other.id))
    place.supervisor.end(order.id, 0)
    await place.ear.told(other.id, "running")
    assert not is_alive(deaf)
    assert await place.ear.end(order.id) == RunEnd("stopped")


@pytest.mark.parametrize("after_s", MOMENTS_S)
async def test_deadline_at_any_moment_leaves_a_running_or_ended_run(
    place: Place, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    order = await laid_out(place)
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", after_s + 0.001)
    place.supervisor.ensure_running(order)
    await until(lambda: {"running", "over"} & set(place.ear.of(order.id)))
    if "over" in place.ear.of(order.id):
        assert (await place.ear.end(order.id)).reason in ("exec_failed", "lost")
        await until(lambda: not list(_kept(place, order)))
    else:
        assert is_alive(place.pid_of(order))
        assert place.of(order).is_kept()


@pytest.mark.parametrize("after_s", MOMENTS_S)
async def test_stop_at_any_moment_leaves_no_process(place: Place, after_s: float) -> None:
    order = await laid_out(place)
    place.supervisor.ensure_running(order)
    await asyncio.sleep(after_s)
    place.supervisor.end(order.id, 0)
    assert (await place.ear.end(order.id)).reason == "stopped"
    await until(lambda: order.id not in place.supervisor.runs)
    # The keeper reports the end before the keeper process exits.
    await until(lambda: not list(_kept(place, order)))


def _kept(place: Place, order: RunRequest) -> list[int]:
    return list(pids_of(place.of(order).path))


class Silent(Store):
    async def __call__(self, game_id: str, build_id: str) -> BuildSource:
        await asyncio.Event().wait()
        raise AssertionError


async def test_build_that_arrives_too_late_is_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "BUILD_TIMEOUT_S", 0.05)
    place.store = Silent()
    await place.anew()
    order = place.want(build_id="0192f000-0000-7000-8000-0000000000f2")
    end = await place.ear.end(order.id)
    assert end == RunEnd("build_unusable", message="the build did not come in time")
    await until(lambda: order.id not in place.supervisor.runs)
    assert place.ear.of(order.id) == ["over"]
    assert place.supervisor.capacity.free == CAPACITY
    await place.running(build_id=SHELL)


async def test_unexpected_error_is_reported_without_its_text(place: Place) -> None:
    async def broken(run_id: str, backends: object) -> None:
        raise RuntimeError(f"{place.folder} is where we are")

    place.ear.placed = broken  # type: ignore[method-assign]
    end = await place.ear.end(place.want().id)
    assert end == RunEnd(
        "lost",
        message="an unforeseen error happened while it was starting: the service's log has it",
    )


async def test_run_that_never_started_leaves_no_control_group(place: Place) -> None:
    groups = ControlGroups.find(place.folder)
    if groups.memory is None:
        pytest.skip("no control group can be made here")
    place.node = replace(place.node, groups=groups)
    await place.anew()
    place.ear.stuck.add("placed")
    order = place.want()
    await until(lambda: "placed" in place.ear.tries)
    group = groups.memory / order.id
    assert group.is_dir()
    place.supervisor.end(order.id)
    unusable = place.want("echo \0")
    assert (await place.ear.end(order.id)).reason == "stopped"
    assert (await place.ear.end(unusable.id)).reason == "exec_failed"
    await until(lambda: not place.supervisor.runs)
    assert [path for path in _groups(groups) if path.exists()] == []


def _groups(groups: ControlGroups) -> list[Path]:
    return [parent for parent in (groups.memory, groups.cpu) if parent is not None]
