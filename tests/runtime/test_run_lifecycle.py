"""Runs over every state, with real keepers and with supervisors that are dropped in each state."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Final

import pytest

from pyservice.errors import ServiceError
from pyservice.runtime import keeper_launcher, run_lifecycle
from pyservice.runtime.run_folder import KeeperFailed, RunFolder
from pyservice.runtime.run_lifecycle import DATABASE_AWAY
from pyservice.runtime.run_requests import PortRequest, Resources, RunEnd
from tests.support.runtime_host import CAPACITY, RuntimeHost, build_of, is_alive, launcher_of, until

pytestmark = pytest.mark.anyio

GAME: Final = {"game": PortRequest("tcp")}
IGNORES_TERM: Final = "trap '' TERM; echo up; while :; do sleep 0.05; done"
UNUSABLE, UNFINDABLE, BROKEN = (f"0192f000-0000-7000-8000-0000000000e{n}" for n in (1, 2, 3))


async def test_run_is_placed_started_stopped_and_reported_in_order(host: RuntimeHost) -> None:
    host.reports.blocked.add("placed")
    order = host.want("touch $HOME/here; echo $PORT_GAME; exec sleep 3600", ports=GAME)
    await until(lambda: "placed" in host.reports.tries)
    assert not host.of(order).was_started(), "no program runs before its ports are known"
    await host.anew()
    host.supervisor.ensure_running(order)
    await host.reports.wait_for(order.id, "running")
    [(address, number)] = (await host.reports.wait_for(order.id, "placed")).values()
    assert address == "127.0.0.1"
    assert 12_000 <= number < 20_000
    assert await host.lines(order, 1) == [str(number)]
    pid = host.pid_of(order)
    assert host.supervisor.end(order.id, 5_000)
    end = await host.reports.end(order.id)
    assert (end.reason, end.exit_code) == ("stopped", 128 + 15)
    assert not is_alive(pid)
    assert host.reports.of(order.id) == ["placed", "running", "over"]
    await until(lambda: host.supervisor.run_ids("server") == [])
    assert not (host.of(order).path / "scratch").exists()
    assert [line.text for line in host.of(order).lines()] == [str(number)], "its log is kept"
    assert not host.supervisor.end(order.id)


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("exit 0", ("exited", 0)),
        ("echo no >&2; exit 7", ("exited", 7)),
        ("kill -SEGV $$", ("killed", 128 + 11)),
    ],
)
async def test_exited_run_is_reported_with_its_code(
    host: RuntimeHost, script: str, end: tuple[str, int]
) -> None:
    order = host.want(script)
    result = await host.reports.end(order.id)
    assert (result.reason, result.exit_code) == end
    assert result.started_ms is not None


async def test_impossible_run_is_reported_with_a_sentence_and_no_process(host: RuntimeHost) -> None:
    host.store.archives |= {
        UNUSABLE: b"no tar " * 100,
        UNFINDABLE: build_of("nobody-has-this"),
        BROKEN: build_of("./not-in-it"),
    }
    orders = {
        "is not a tar": host.want(build_id=UNUSABLE),
        "nobody-has-this is not in any of": host.want(build_id=UNFINDABLE),
        "not-in-it": host.want(build_id=BROKEN),
        "there is no such build": host.want(build_id="0192f000-0000-7000-8000-0000000000ff"),
        "a NUL": host.want("echo \0"),
    }
    ends = {sentence: await host.reports.end(order.id) for sentence, order in orders.items()}
    assert [end.reason for end in ends.values()] == [
        *("build_unusable", "exec_failed", "exec_failed", "build_unusable", "exec_failed")
    ]
    for sentence, end in ends.items():
        assert sentence in end.message
        assert (end.exit_code, end.started_ms) == (None, None)
    await until(lambda: not host.supervisor.runs)
    for sentence, order in orders.items():
        lines = [line.text for line in host.of(order).lines()]
        if ends[sentence].reason == "exec_failed":
            assert lines == [ends[sentence].message]
        else:
            assert not host.of(order).path.exists(), "a run that was not laid out has no folder"
    assert host.supervisor.capacity.free == CAPACITY


class UnavailableDatabase:
    """Answers questions about builds. The first `failures` answers are errors."""

    def __init__(self, failures: float) -> None:
        self.failures = failures
        self.calls = 0

    async def group_of_build(self, _: str) -> str:
        self._answer()
        return "group"

    async def may_use_host_network(self, _: str) -> bool:
        self._answer()
        return True

    def _answer(self) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE")


QUESTIONS: Final = ("group_of_build", "may_use_host_network")


@pytest.mark.parametrize("question", QUESTIONS)
async def test_database_error_during_preparation_is_retried(
    host: RuntimeHost, question: str
) -> None:
    database = UnavailableDatabase(failures=1)
    setattr(host, question, getattr(database, question))
    await host.anew()
    order = await host.running(has_host_network=True)
    assert host.reports.of(order.id) == ["placed", "running"]
    assert database.calls > 1


@pytest.mark.parametrize("question", QUESTIONS)
async def test_run_ends_with_a_cause_when_the_database_stays_away(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    monkeypatch.setattr(run_lifecycle, "BUILD_TIMEOUT_S", 0.05)
    database = UnavailableDatabase(failures=float("inf"))
    setattr(host, question, getattr(database, question))
    await host.anew()
    order = host.want(has_host_network=True)
    assert await host.reports.end(order.id) == RunEnd("lost", message=DATABASE_AWAY)


async def test_repeated_request_starts_one_process(host: RuntimeHost) -> None:
    order = host.want("echo $$; exec sleep 3600")
    host.supervisor.ensure_running(order)
    await host.reports.wait_for(order.id, "running")
    host.supervisor.ensure_running(order)
    await host.anew()
    host.supervisor.ensure_running(order)
    host.supervisor.ensure_running(order)
    host.supervisor.end(order.id, 5_000)
    await host.reports.end(order.id)
    host.supervisor.ensure_running(order)
    await until(lambda: not host.supervisor.runs)
    host.supervisor.ensure_running(order)
    assert not host.supervisor.runs, (
        "an ended run does not start again before its end is acknowledged"
    )
    assert len(await host.lines(order, 1)) == 1
    assert host.reports.of(order.id).count("placed") == host.reports.of(order.id).count("over") == 1


async def test_earliest_of_several_stops_wins(host: RuntimeHost) -> None:
    order = await host.running(IGNORES_TERM)
    await host.lines(order, 1)
    for kill_timeout_ms in (3_600_000, 100, 60_000):
        host.supervisor.end(order.id, kill_timeout_ms)
    end = await host.reports.end(order.id)
    assert (end.reason, end.exit_code) == ("stopped", 128 + 9)


async def test_stop_without_a_deadline_uses_the_requested_one(host: RuntimeHost) -> None:
    order = await host.running(IGNORES_TERM, kill_timeout_ms=100)
    await host.lines(order, 1)
    host.supervisor.end(order.id)
    assert (await host.reports.end(order.id)).exit_code == 128 + 9


async def test_all_runs_can_be_stopped_at_once(host: RuntimeHost) -> None:
    orders = [await host.running() for _ in range(3)]
    waiting = host.want(resources=CAPACITY)
    await host.supervisor.stop_all(asyncio.Event())
    ends = [await host.reports.end(order.id) for order in (*orders, waiting)]
    assert {end.reason for end in ends} == {"stopped"}
    assert host.reports.of(waiting.id) == ["over"]


async def test_forced_shutdown_waits_for_no_deadline(host: RuntimeHost) -> None:
    order = await host.running(IGNORES_TERM, kill_timeout_ms=3_600_000)
    await host.lines(order, 1)
    forced = asyncio.Event()
    ending = asyncio.create_task(host.supervisor.stop_all(forced))
    await until(lambda: host.supervisor.runs[order.id].state == "stopping")
    forced.set()
    await ending
    end = await host.reports.end(order.id)
    assert (end.reason, end.exit_code) == ("stopped", 128 + 9)


async def test_waiting_runs_get_capacity_in_order(host: RuntimeHost) -> None:
    first = await host.running(resources=CAPACITY)
    waiting_requests = [host.want(resources=CAPACITY) for _ in range(3)]
    await until(
        lambda: {host.supervisor.runs[one.id].state for one in waiting_requests} == {"waiting"}
    )
    assert host.supervisor.capacity.free == Resources(0, 0)
    for before, after in zip([first, *waiting_requests], waiting_requests, strict=False):
        assert host.reports.of(after.id) == []
        host.supervisor.end(before.id, 0)
        await host.reports.wait_for(after.id, "running")
    running_ids = [one for event, one, _ in host.reports.received if event == "running"]
    assert running_ids == [first.id, *(one.id for one in waiting_requests)]


async def test_small_run_is_not_delayed_by_a_large_waiting_one(host: RuntimeHost) -> None:
    half = Resources(CAPACITY.cpu_millicores // 2, 64)
    await host.running(resources=half)
    large = host.want(resources=CAPACITY)
    await host.running(resources=half)
    assert host.reports.of(large.id) == []


async def test_run_that_waits_too_long_ends_with_the_missing_capacity(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "CAPACITY_TIMEOUT_S", 0.05)
    await host.running(resources=CAPACITY)
    end = await host.reports.end(host.want(resources=Resources(20, 30)).id)
    assert end == RunEnd("capacity", message="no capacity for 20 millicores and 30 MB on this node")


@pytest.mark.parametrize("event", ["placed", "running", "over"])
async def test_end_is_reported_until_acknowledged_and_then_never(
    host: RuntimeHost, event: str
) -> None:
    host.reports.rejected.add(event)
    order = host.want("trap 'exit 3' TERM; echo up; while :; do sleep 0.02; done")
    if event == "over":
        await host.reports.wait_for(order.id, "running")
        await host.lines(order, 1)
        host.supervisor.end(order.id)
    await until(lambda: host.reports.tries.count(event) > 2)
    assert event not in host.reports.of(order.id)
    assert host.of(order).was_started() == (event != "placed")
    host.reports.rejected.clear()
    await host.reports.wait_for(order.id, "running")
    await host.lines(order, 1)
    host.supervisor.end(order.id)
    assert (await host.reports.end(order.id)).exit_code == 3
    assert host.reports.of(order.id) == ["placed", "running", "over"]


async def test_run_without_an_acknowledged_placement_is_not_started(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", 0.05)
    host.reports.rejected.add("placed")
    order = host.want()
    end = await host.reports.end(order.id)
    assert end.reason == "lost"
    assert "so it was not started" in end.message
    await until(lambda: not host.of(order).path.exists())


@pytest.mark.parametrize(
    "turns", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (0, 1, 3, 4, 5, 6, 7))]
)
async def test_service_crash_at_any_moment_of_a_stop(host: RuntimeHost, turns: int) -> None:
    """The receiver of the end report is gone already."""
    host.reports.blocked.add("placed")
    host.reports.rejected.add("over")
    order = host.want(ports=GAME)
    await until(lambda: "placed" in host.reports.tries)
    host.supervisor.end(order.id)
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await host.drop()
    host.supervisor.ensure_running(host.order())
    going_on = [task for task in asyncio.all_tasks() if task.get_name().startswith("run ")]
    assert going_on == [], "no program is started"


async def _laid_out(host: RuntimeHost) -> tuple[str, dict[str, tuple[str, int]]]:
    host.reports.blocked.add("placed")
    order = host.want(ports=GAME)
    await until(lambda: "placed" in host.reports.tries)
    placement = host.supervisor.runs[order.id].placement
    assert placement is not None
    await host.anew()
    assert host.supervisor.run_ids("server") == [order.id]
    return order.id, placement.backends


async def test_prepared_run_starts_after_a_restart_if_still_requested(host: RuntimeHost) -> None:
    run_id, backends = await _laid_out(host)
    assert host.reports.of(run_id) == []
    host.supervisor.ensure_running(replace(host.order(ports=GAME), id=run_id))
    await host.reports.wait_for(run_id, "running")
    assert await host.reports.wait_for(run_id, "placed") == backends


async def test_prepared_run_that_is_not_requested_never_starts(host: RuntimeHost) -> None:
    run_id, _ = await _laid_out(host)
    host.supervisor.stop_others("lobby", [])
    assert host.supervisor.run_ids("server") == [run_id], "the run is not a lobby"
    host.supervisor.stop_others("server", [])
    assert (await host.reports.end(run_id)).reason == "stopped"
    assert host.reports.of(run_id) == ["over"]
    await until(lambda: not (host.folder / "servers" / run_id).exists())


async def test_running_run_keeps_capacity_and_ports_after_a_restart(host: RuntimeHost) -> None:
    order = await host.running(ports=GAME, resources=Resources(1_000, 500))
    pid, backends = host.pid_of(order), await host.reports.wait_for(order.id, "placed")
    await host.anew()
    assert host.supervisor.run_ids("server") == [order.id]
    assert host.supervisor.capacity.free == CAPACITY - order.resources
    await until(lambda: host.reports.of(order.id).count("running") == 2)
    host.supervisor.ensure_running(order)
    assert (host.pid_of(order), is_alive(pid)) == (pid, True)
    other = await host.running(ports=GAME)
    assert await host.reports.wait_for(other.id, "placed") != backends
    host.supervisor.stop_others("server", [other.id])
    assert (await host.reports.end(order.id)).reason == "stopped"
    assert not is_alive(pid)
    await until(lambda: host.supervisor.run_ids("server") == [other.id])


@pytest.mark.full
async def test_stopping_run_ends_at_its_deadline_despite_a_restart(host: RuntimeHost) -> None:
    order = await host.running(IGNORES_TERM)
    await host.lines(order, 1)
    host.supervisor.end(order.id, 2_000)
    await until(lambda: _status(host, order.id) == "stopping")
    pid = host.pid_of(order)
    await host.anew()
    end = await host.reports.end(order.id)
    assert (end.reason, end.exit_code) == ("stopped", 128 + 9)
    assert not is_alive(pid)


def _status(host: RuntimeHost, run_id: str) -> str:
    state = RunFolder(host.folder / "servers" / run_id).state()
    return "" if state is None else state.status


async def test_end_during_service_downtime_is_reported(host: RuntimeHost) -> None:
    order = await host.running("while [ ! -e $HOME/end ]; do sleep 0.02; done; exit 9")
    await host.drop()
    (host.of(order).scratch / "end").touch()
    await until(lambda: _status(host, order.id) == "ended")
    await host.start()
    end = await host.reports.end(order.id)
    assert (end.reason, end.exit_code) == ("exited", 9)
    # A new supervisor reports the end again only on request.
    await until(lambda: not host.supervisor.runs)
    await host.anew()
    assert not host.supervisor.runs
    host.supervisor.ensure_running(order)
    await until(lambda: host.reports.of(order.id).count("over") == 2)
    assert await host.reports.end(order.id) == end
    assert host.reports.of(order.id).count("placed") == 1


async def test_partly_prepared_run_is_removed_at_start(host: RuntimeHost) -> None:
    await host.drop()
    half = host.folder / "servers" / host.order().id
    (half / "scratch").mkdir(parents=True)
    (half / "spec").write_bytes(b"id=")
    await host.start()
    assert not half.exists()
    assert not host.supervisor.runs


async def test_keeper_launcher_may_exit_at_any_moment(host: RuntimeHost) -> None:
    first = await host.running("exec sleep 3600")
    os.kill(launcher_of(host), signal.SIGKILL)
    second = await host.running("exec sleep 3600")
    launcher = launcher_of(host)
    os.kill(launcher, signal.SIGSTOP)
    third = host.want("exec sleep 3600")
    await until(lambda: host.supervisor.runs[third.id].state == "starting")
    os.kill(launcher, signal.SIGKILL)
    await host.reports.wait_for(third.id, "running")
    for order in (first, second, third):
        assert is_alive(host.pid_of(order))
        assert host.reports.of(order.id).count("running") == 1


async def test_second_service_starts_nothing(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_launcher, "_OPEN_TIMEOUT_S", 0.1)
    runs_of_both = host.folder / "servers"
    with pytest.raises(KeeperFailed, match="another service"):
        await keeper_launcher.KeeperLauncher(host.node.keeper, runs_of_both).open()
    monkeypatch.undo()
    await host.drop()
    other = keeper_launcher.KeeperLauncher(host.node.keeper, runs_of_both)
    await other.open()
    await other.close()
    await host.start()


async def test_run_with_a_killed_keeper_is_lost(host: RuntimeHost) -> None:
    order = await host.running()
    pid = host.pid_of(order)
    os.kill(host.keeper_of(order), signal.SIGKILL)
    end = await host.reports.end(order.id)
    assert end == RunEnd(
        "lost", None, "its keeper died without recording how it ended", end.started_ms
    )
    assert end.started_ms is not None
    await until(lambda: not is_alive(pid))
    assert host.supervisor.capacity.free == CAPACITY


async def test_suspended_keeper_is_killed(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "KEEPER_GRACE_S", 0.1)
    order = await host.running()
    keeper = host.keeper_of(order)
    os.kill(keeper, signal.SIGSTOP)
    host.supervisor.end(order.id, 50)
    assert (await host.reports.end(order.id)).reason == "lost"
    await until(lambda: not is_alive(keeper))


async def test_run_over_its_memory_limit_is_ended(host: RuntimeHost) -> None:
    script = "x=$(head -c 80000000 /dev/zero | tr '\\0' x); sleep 3600"
    order = host.want(script, resources=Resources(10, 16))
    end = await host.reports.end(order.id)
    assert (end.reason, end.exit_code) == ("out_of_memory", 128 + 9)
