"""Memory and CPU limits of runs, in both layouts of control groups. Skipped where no control group
can be created.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.runtime.containers import PROCESSES_MAX
from pyservice.runtime.control_groups import ControlGroups, GroupUsage
from pyservice.runtime.filesystem import apply_changes
from pyservice.runtime.run_requests import Resources, RunRequest
from tests.support.runtime_host import RuntimeHost, until

pytestmark = pytest.mark.anyio

LEAKS = "x=x; while :; do x=$x$x; done"


class Groups:
    def __init__(self, control_groups: ControlGroups) -> None:
        assert control_groups.memory is not None
        assert control_groups.cpu is not None
        self.parents = {"memory": control_groups.memory, "cpu": control_groups.cpu}
        self._is_unified = control_groups.is_unified

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
async def groups(host: RuntimeHost, tmp_path: Path) -> AsyncIterator[Groups]:
    control_groups = ControlGroups.find(tmp_path)
    if control_groups.memory is None or control_groups.cpu is None:
        pytest.skip("; ".join(control_groups.unenforced))
    await host.drop()
    host.node = dataclasses.replace(host.node, groups=control_groups)
    await host.start()
    groups = Groups(control_groups)
    yield groups
    await host.supervisor.stop_all(asyncio.Event())
    assert [path for path in groups.parents.values() if path.exists()] == []


@pytest.mark.parametrize(
    ("resources", "limits"),
    [
        (Resources(100, 48), (48 << 20, 100)),
        (Resources(500, 256), (256 << 20, 500)),
        (Resources(2_000, 1_024), (1 << 30, 2_000)),
    ],
)
async def test_run_and_its_children_are_in_a_group_with_its_limits(
    host: RuntimeHost, groups: Groups, resources: Resources, limits: tuple[int, int]
) -> None:
    script = "sleep 3600 & echo $!; exec sleep 3600"
    order = await host.running(script, resources=resources)
    child = int((await host.lines(order, 1))[0])
    assert groups.limits(order) == limits
    for controller in groups.parents:
        assert groups.inside(order, controller) == {host.pid_of(order), child}
    # The keeper is outside the group: it does not count against the limit and survives an
    # out-of-memory kill.
    assert host.keeper_of(order) not in groups.inside(order, "memory")
    host.supervisor.end(order.id, 0)
    await host.reports.end(order.id)


@pytest.mark.full
async def test_runs_of_two_sizes_have_separate_groups(host: RuntimeHost, groups: Groups) -> None:
    small = await host.running(resources=Resources(100, 32))
    large = await host.running(resources=Resources(1_000, 512))
    assert (groups.limits(small), groups.limits(large)) == ((32 << 20, 100), (512 << 20, 1_000))
    assert not groups.inside(small, "memory") & groups.inside(large, "memory")
    host.supervisor.end(small.id, 0)
    await host.reports.end(small.id)
    parent = groups.parents["memory"]
    await until(lambda: [path.name for path in parent.iterdir() if path.is_dir()] == [large.id])


async def test_kernel_ends_a_leaking_program_without_memory_polling(
    host: RuntimeHost, groups: Groups
) -> None:
    # The group and its counters stay until the end of the run is acknowledged.
    host.reports.rejected.add("over")
    order = host.want(LEAKS, resources=Resources(500, 32))
    await until(lambda: "over" in host.reports.tries)
    assert groups.oom_kills(order) == 1
    spec = (host.of(order).path / "spec").read_bytes().split(b"\0")
    watched = [record for record in spec if record.startswith(b"memory_max_bytes=")]
    assert watched in ([], [b"memory_max_bytes=0"])
    host.reports.rejected.clear()
    end = await host.reports.end(order.id)
    assert (end.reason, end.exit_code) == ("out_of_memory", 128 + 9)


@pytest.mark.full
async def test_leak_in_one_run_does_not_affect_others(host: RuntimeHost, groups: Groups) -> None:
    well = await host.running(resources=Resources(100, 32))
    leaking = host.want(LEAKS, resources=Resources(100, 32))
    assert (await host.reports.end(leaking.id)).reason == "out_of_memory"
    os.kill(host.pid_of(well), 0)
    assert groups.oom_kills(well) == 0
    host.supervisor.end(well.id, 0)
    await host.reports.end(well.id)


FORKS = (
    "exec perl -e '$| = 1; while (defined($pid = fork)) { $pid or sleep 1000; $made++ } "
    'print "$made ", $! + 0, "\\n"; sleep 1000\''
)


@pytest.mark.full
async def test_processes_of_a_run_end_at_its_limit(host: RuntimeHost, groups: Groups) -> None:
    if host.node.groups.processes is None:
        pytest.skip("no control group of processes can be created")
    order = await host.running(FORKS, resources=Resources(1_000, 1_024))
    made, error = (await host.lines(order, 1))[0].split()
    assert PROCESSES_MAX - 2 <= int(made) < PROCESSES_MAX
    assert int(error) == errno.EAGAIN
    host.supervisor.end(order.id, 0)
    await host.reports.end(order.id)


async def test_processor_limit_is_that_of_the_setting_or_a_larger_tier(tmp_path: Path) -> None:
    found = ControlGroups.find(tmp_path)
    if found.cpu is None:
        pytest.skip("; ".join(found.unenforced))
    groups = dataclasses.replace(found, cpu_limit_millicores=1_000)
    name = "cpu.max" if groups.is_unified else "cpu.cfs_quota_us"
    for run_id, millicores, quota_us in (("small", 125, 100_000), ("large", 2_000, 200_000)):
        groups.make_parents()
        apply_changes(groups.steps(run_id, Resources(millicores, 64)))
        assert (found.cpu / run_id / name).read_text().split()[0] == str(quota_us)
        groups.remove(run_id)


async def test_socket_queues_are_limited_to_the_memory_of_the_tier(tmp_path: Path) -> None:
    groups = ControlGroups.find(tmp_path)
    if groups.memory is None or groups.is_unified:
        pytest.skip("no control group counts the queues of sockets apart")
    groups.make_parents()
    apply_changes(groups.steps("run", Resources(125, 64)))
    limit = groups.memory / "run" / "memory.kmem.tcp.limit_in_bytes"
    try:
        if not limit.exists():
            pytest.skip("this kernel does not limit the queues of sockets")
        assert int(limit.read_text()) == 64 << 20
    finally:
        groups.remove("run")


BURNS = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo done; exec sleep 1000"


async def test_usage_of_a_run_is_known_until_its_end_is_reported(
    host: RuntimeHost, groups: Groups
) -> None:
    order = await host.running(BURNS, resources=Resources(500, 64))
    await host.lines(order, 1)
    running = (await host.supervisor.usages())[order.id]
    assert running.cpu_time_us is not None
    assert running.memory_bytes is not None
    assert running.cpu_time_us > 0 < running.memory_bytes < 64 << 20
    host.supervisor.end(order.id, 0)
    await host.reports.end(order.id)
    await until(lambda: order.id not in host.supervisor.runs)
    last = (await host.supervisor.usages())[order.id]
    assert last.cpu_time_us is not None
    assert last.cpu_time_us >= running.cpu_time_us
    assert await host.supervisor.usages() == {}


def test_usage_is_read_from_both_versions_of_control_groups(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    version_1 = ControlGroups(tmp_path, tmp_path)
    version_2 = ControlGroups(tmp_path, None, is_unified=True, network=tmp_path)
    both = ControlGroups(tmp_path, tmp_path, network=tmp_path)
    assert version_1.usage("run") == version_2.usage("run") == GroupUsage(None, None)
    (folder / "cpuacct.usage").write_text("1500999\n")
    (folder / "memory.usage_in_bytes").write_text("4096\n")
    assert version_1.usage("run") == GroupUsage(1_500, 4_096)
    (folder / "cpu.stat").write_text("usage_usec 2500\nuser_usec 2000\nsystem_usec 500\n")
    (folder / "memory.current").write_text("8192\n")
    assert version_2.usage("run") == GroupUsage(2_500, 8_192)
    assert both.usage("run") == GroupUsage(2_500, 4_096)
