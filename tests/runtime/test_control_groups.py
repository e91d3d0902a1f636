"""Memory and CPU limits of runs, in both layouts of control groups. Skipped where no control group
can be created.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.run_requests import Resources, RunRequest
from tests.runtime.node import Place, until

pytestmark = pytest.mark.anyio

LEAKS = "x=x; while :; do x=$x$x; done"


class Groups:
    def __init__(self, found: ControlGroups) -> None:
        assert found.memory is not None
        assert found.cpu is not None
        self.parents = {"memory": found.memory, "cpu": found.cpu}
        self._is_unified = found.is_unified

    def limits(self, order: RunRequest) -> tuple[int, int]:
        if self._is_unified:
            memory, weight = self._text(order, "memory.max"), self._text(order, "cpu.weight")
            return int(memory), int(weight) * 10
        memory = self._text(order, "memory.limit_in_bytes")
        return int(memory), round(int(self._text(order, "cpu.shares")) / 1.024)

    def inside(self, order: RunRequest, controller: str) -> set[int]:
        return {int(pid) for pid in self._text(order, "cgroup.procs", controller).split()}

    def oom_kills(self, order: RunRequest) -> int:
        name = "memory.events" if self._is_unified else "memory.oom_control"
        lines = dict(line.split() for line in self._text(order, name).splitlines())
        return int(lines["oom_kill"])

    def _text(self, order: RunRequest, name: str, controller: str | None = None) -> str:
        parent = self.parents[controller or name.split(".")[0]]
        return (parent / order.id / name).read_text().strip()


@pytest.fixture
async def groups(place: Place, tmp_path: Path) -> AsyncIterator[Groups]:
    found = ControlGroups.find(tmp_path)
    if found.unenforced:
        pytest.skip("; ".join(found.unenforced))
    await place.drop()
    place.node = dataclasses.replace(place.node, groups=found)
    await place.start()
    made = Groups(found)
    yield made
    await place.supervisor.stop_all(asyncio.Event())
    assert [path for path in made.parents.values() if path.exists()] == []


@pytest.mark.parametrize(
    ("resources", "limits"),
    [
        (Resources(100, 48), (48 << 20, 100)),
        (Resources(500, 256), (256 << 20, 500)),
        (Resources(2_000, 1_024), (1 << 30, 2_000)),
    ],
)
async def test_run_and_its_children_are_in_a_group_with_its_limits(
    place: Place, groups: Groups, resources: Resources, limits: tuple[int, int]
) -> None:
    script = "sleep 3600 & echo $!; exec sleep 3600"
    order = await place.running(script, resources=resources)
    child = int((await place.lines(order, 1))[0])
    assert groups.limits(order) == limits
    for controller in groups.parents:
        assert groups.inside(order, controller) == {place.pid_of(order), child}
    # The keeper is outside the group: it does not count against the limit and survives an
    # out-of-memory kill.
    assert place.keeper_of(order) not in groups.inside(order, "memory")
    place.supervisor.end(order.id, 0)
    await place.ear.end(order.id)


async def test_runs_of_two_sizes_have_separate_groups(place: Place, groups: Groups) -> None:
    small = await place.running(resources=Resources(100, 32))
    large = await place.running(resources=Resources(1_000, 512))
    assert (groups.limits(small), groups.limits(large)) == ((32 << 20, 100), (512 << 20, 1_000))
    assert not groups.inside(small, "memory") & groups.inside(large, "memory")
    place.supervisor.end(small.id, 0)
    await place.ear.end(small.id)
    parent = groups.parents["memory"]
    await until(lambda: [path.name for path in parent.iterdir() if path.is_dir()] == [large.id])


async def test_kernel_ends_a_leaking_program_without_memory_polling(
    place: Place, groups: Groups
) -> None:
    # The group and its counters stay until the end of the run is acknowledged.
    place.ear.deaf.add("over")
    order = place.want(LEAKS, resources=Resources(500, 32))
    await until(lambda: "over" in place.ear.tries)
    assert groups.oom_kills(order) == 1
    spec = (place.of(order).path / "spec").read_bytes().split(b"\0")
    watched = [record for record in spec if record.startswith(b"memory_max_bytes=")]
    assert watched in ([], [b"memory_max_bytes=0"])
    place.ear.deaf.clear()
    end = await place.ear.end(order.id)
    assert (end.reason, end.exit_code) == ("out_of_memory", 128 + 9)


async def test_leak_in_one_run_does_not_affect_others(place: Place, groups: Groups) -> None:
    well = await place.running(resources=Resources(100, 32))
    leaking = place.want(LEAKS, resources=Resources(100, 32))
    assert (await place.ear.end(leaking.id)).reason == "out_of_memory"
    os.kill(place.pid_of(well), 0)
    assert groups.oom_kills(well) == 0
    place.supervisor.end(well.id, 0)
    await place.ear.end(well.id)
