"""Processes that a game server started end with the run, even if the keeper was killed. Processes
of other users stay.

The programs run without a PID namespace.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime import run_cleanup
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.isolation_trials import choose_isolation
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.node_preparation import SYSTEM_PATHS
from pyservice.runtime.run_requests import RunEnd, RunRequest
from tests.support.runtime_host import RuntimeHost, is_alive, open_host, until

pytestmark = [pytest.mark.anyio, pytest.mark.full]

LOST: Final = "its keeper died without recording how it ended"
WAITS: Final = "sleep 3600 & echo $!; wait"
DAEMON: Final = "setsid sh -c 'echo $$; exec sleep 3600' & wait"
"""Runs in a session of its own and keeps the environment of the run."""
CLEARED: Final = "env -i /bin/sleep 3600 & echo $!; sleep 3600 & echo $!; wait"
FORKS: Final = "sh -c 'echo $$; while :; do sleep 0.01 & wait; done' & wait"
UNMARKED: Final = "setsid env -i /bin/sh -c 'echo $$; exec sleep 3600' & wait"
"""Has no trace of the run in its environment, session or working folder."""


@pytest.fixture
async def host() -> AsyncIterator[RuntimeHost]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        async with open_host(Path(name), Path(name) / "builds") as host:
            yield host


@pytest.fixture(autouse=True)
async def end_all_runs(host: RuntimeHost) -> AsyncIterator[None]:
    """Ends all processes below the test process after the test."""
    yield
    for run_id in list(host.supervisor.runs):
        host.supervisor.end(run_id, 0)
    await until(lambda: not host.supervisor.runs)


@pytest.fixture(params=["none", "landlock"])
async def isolated_host(host: RuntimeHost, request: pytest.FixtureRequest) -> RuntimeHost:
    isolation = await choose_isolation(request.param, KEEPER_BINARY, host.folder, SYSTEM_PATHS)
    if isolation is None:
        pytest.skip("no Landlock here")
    host.node = replace(host.node, isolation=isolation, shared_paths=SYSTEM_PATHS)
    await host.anew()
    # Under Landlock, the game server runs as another user and must pass these folders.
    for folder in ("servers", "builds"):
        os.chmod(host.folder / folder, 0o711)
    return host


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[ControlGroups]:
    control_groups = ControlGroups.find(tmp_path)
    if control_groups.memory is None and control_groups.cpu is None:
        pytest.skip("no control group can be made here")
    yield control_groups
    control_groups.remove_others(())


async def started_run(
    host: RuntimeHost, script: str, count: int = 1
) -> tuple[RunRequest, list[int]]:
    order = await host.running(script)
    return order, [int(line) for line in await host.lines(order, count)]


async def reported_lost(host: RuntimeHost, order: RunRequest) -> RunEnd:
    end = await host.reports.end(order.id)
    assert (end.reason, end.message) == ("lost", LOST)
    return end


@pytest.mark.parametrize(("script", "count"), [(WAITS, 1), (DAEMON, 1), (CLEARED, 2), (FORKS, 1)])
async def test_no_process_of_a_run_is_left_when_its_end_is_reported(
    isolated_host: RuntimeHost, script: str, count: int
) -> None:
    order, below = await started_run(isolated_host, script, count)
    other, others = await started_run(isolated_host, script, count)
    assert all(map(is_alive, [*below, *others]))
    os.kill(isolated_host.keeper_of(order), signal.SIGKILL)
    await reported_lost(isolated_host, order)
    assert not any(map(is_alive, below))
    assert all(map(is_alive, [isolated_host.pid_of(other), *others])), "the process of another run"


async def test_new_service_ends_processes_of_runs_that_ended_meanwhile(
    isolated_host: RuntimeHost,
) -> None:
    order, below = await started_run(isolated_host, WAITS)
    await isolated_host.drop()
    pid = isolated_host.pid_of(order)
    os.kill(isolated_host.keeper_of(order), signal.SIGKILL)
    await until(lambda: not is_alive(pid))
    assert all(map(is_alive, below)), "the kernel ends no more than the first"
    await isolated_host.start()
    await reported_lost(isolated_host, order)
    assert not any(map(is_alive, below))


async def test_killed_keeper_leaves_no_processes(
    isolated_host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyservice.runtime.run_lifecycle.KEEPER_GRACE_S", 0.1)
    order, below = await started_run(isolated_host, WAITS)
    os.kill(isolated_host.keeper_of(order), signal.SIGSTOP)
    isolated_host.supervisor.end(order.id, 50)
    await reported_lost(isolated_host, order)
    assert not any(map(is_alive, below))


async def test_process_with_only_a_control_group_mark_is_found(
    isolated_host: RuntimeHost, groups: ControlGroups
) -> None:
    isolated_host.node = replace(isolated_host.node, groups=groups)
    await isolated_host.anew()
    order, below = await started_run(isolated_host, UNMARKED)
    os.kill(isolated_host.keeper_of(order), signal.SIGKILL)
    await reported_lost(isolated_host, order)
    assert not any(map(is_alive, below))
    await until(lambda: not isolated_host.supervisor.runs)
    parents = [parent for parent in (groups.memory, groups.cpu) if parent is not None]
    assert not [parent for parent in parents if (parent / order.id).exists()]


async def test_process_with_only_a_reused_session_number_stays(host: RuntimeHost) -> None:
    """Session numbers are reused, so a process with the same number may be foreign."""
    order, below = await started_run(host, WAITS)
    await host.drop()
    os.kill(host.keeper_of(order), signal.SIGKILL)
    for pid in below:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not any(map(is_alive, [host.pid_of(order), *below])))
    unrelated = subprocess.Popen(["sleep", "3600"], start_new_session=True, env={})
    try:
        _pretend(host, order, unrelated.pid)
        await asyncio.to_thread(
            run_cleanup.end_leftover_processes, host.of(order), host.node.groups
        )
        await host.start()
        await reported_lost(host, order)
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def _pretend(host: RuntimeHost, order: RunRequest, pid: int) -> None:
    path = host.of(order).path / "state"
    path.write_text(path.read_text().replace(f"\npid={host.pid_of(order)}\n", f"\npid={pid}\n"))
    assert host.pid_of(order) == pid


async def test_processes_of_running_or_reported_runs_stay(host: RuntimeHost) -> None:
    goes_on, below = await started_run(host, WAITS)
    ended_run = host.want("exit 0")
    await host.reports.end(ended_run.id)
    # This process has every mark of the run.
    environment = {"HOME": str(host.of(ended_run).scratch), "HOSTING_SERVER_ID": ended_run.id}
    unrelated = subprocess.Popen(["sleep", "3600"], start_new_session=True, env=environment)
    try:
        for order in (goes_on, ended_run):
            await asyncio.to_thread(
                run_cleanup.end_leftover_processes, host.of(order), host.node.groups
            )
        assert all(map(is_alive, below))
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


async def test_process_is_found_by_its_variables_despite_its_own_home(host: RuntimeHost) -> None:
    order = host.order("sleep 3600 & echo $!; wait", env={"HOME": "/", "TMPDIR": "/"})
    order = replace(order, own_env={"HOSTING_LOBBY_ID": order.id})
    host.supervisor.ensure_running(order)
    [below] = map(int, await host.lines(order, 1))
    os.kill(host.keeper_of(order), signal.SIGKILL)
    await reported_lost(host, order)
    assert not is_alive(below)
