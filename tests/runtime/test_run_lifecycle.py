"""Runs over every state, with real keepers and with supervisors that are dropped in each state."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Final

import pytest

from pyservice.runtime import keeper_launcher, run_lifecycle
from pyservice.runtime.run_folder import KeeperFailed, RunFolder
from pyservice.runtime.run_requests import PortRequest, Resources, RunEnd
from tests.runtime.node import CAPACITY, Place, build_of, is_alive, nursery_of, until

pytestmark = pytest.mark.anyio

GAME: Final = {"game": PortRequest(is_datagram=False)}
DEAF: Final = "trap '' TERM; echo up; while :; do sleep 0.05; done"
UNUSABLE, UNFINDABLE, BROKEN = (f"0192f000-0000-7000-8000-0000000000e{n}" for n in (1, 2, 3))


async def test_run_is_placed_started_stopped_and_reported_in_order(place: Place) -> None:
    place.ear.stuck.add("placed")
    order = place.want("touch $HOME/here; echo $PORT_GAME; exec sleep 3600", ports=GAME)
    await until(lambda: "placed" in place.ear.tries)
    assert not place.of(order).was_started(), "nothing runs before it is known where"
    await place.anew()
    place.supervisor.ensure_running(order)
    await place.ear.told(order.id, "running")
    [(address, number)] = (await place.ear.told(order.id, "placed")).values()
    assert address == "127.0.0.1"
    assert 12_000 <= number < 20_000
    assert await place.lines(order, 1) == [str(number)]
    pid = place.pid_of(order)
    assert place.supervisor.end(order.id, 5_000)
    end = await place.ear.end(order.id)
    assert (end.reason, end.exit_code) == ("stopped", 128 + 15)
    assert not is_alive(pid)
    assert place.ear.of(order.id) == ["placed", "running", "over"]
    await until(lambda: place.supervisor.run_ids("server") == [])
    assert not (place.of(order).path / "scratch").exists()
    assert [line.text for line in place.of(order).lines()] == [str(number)], "its log is kept"
    assert not place.supervisor.end(order.id)


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("exit 0", ("exited", 0)),
        ("echo no >&2; exit 7", ("exited", 7)),
        ("kill -SEGV $$", ("killed", 128 + 11)),
    ],
)
async def test_exited_run_is_reported_with_its_code(
    place: Place, script: str, end: tuple[str, int]
) -> None:
    order = place.want(script)
    told = await place.ear.end(order.id)
    assert (told.reason, told.exit_code) == end
    assert told.started_ms is not None


async def test_impossible_run_is_reported_with_a_sentence_and_no_process(
    place: Place,
) -> None:
    place.store.archives |= {
        UNUSABLE: b"no tar " * 100,
        UNFINDABLE: build_of("nobody-has-this"),
        BROKEN: build_of("./not-in-it"),
    }
    wanted = {
        "is not a tar": place.want(build_id=UNUSABLE),
        "nobody-has-this is not in any of": place.want(build_id=UNFINDABLE),
        "not-in-it": place.want(build_id=BROKEN),
        "there is no such build": place.want(build_id="0192f000-0000-7000-8000-0000000000ff"),
        "a NUL": place.want("echo \0"),
    }
    ends = {sentence: await place.ear.end(order.id) for sentence, order in wanted.items()}
    assert [end.reason for end in ends.values()] == [
        *("build_unusable", "exec_failed", "exec_failed", "build_unusable", "exec_failed")
    ]
    for sentence, end in ends.items():
        assert sentence in end.message
        assert (end.exit_code, end.started_ms) == (None, None)
    await until(lambda: not place.supervisor.runs)
    begun = [order for order in wanted.values() if place.of(order).path.exists()]
    assert begun == [wanted["not-in-it"]], "what no keeper began has no folder"
    assert place.supervisor.capacity.free == CAPACITY


async def test_repeated_request_starts_one_process(place: Place) -> None:
    order = place.want("echo $$; exec sleep 3600")
    place.supervisor.ensure_running(order)
    await place.ear.told(order.id, "running")
    place.supervisor.ensure_running(order)
    await place.anew()
    place.supervisor.ensure_running(order)
    place.supervisor.ensure_running(order)
    place.supervisor.end(order.id, 5_000)
    await place.ear.end(order.id)
    place.supervisor.ensure_running(order)
    await until(lambda: not place.supervisor.runs)
    place.supervisor.ensure_running(order)
    assert not place.supervisor.runs, "who wants it has not heard of its end yet"
    assert len(await place.lines(order, 1)) == 1
    assert place.ear.of(order.id).count("placed") == place.ear.of(order.id).count("over") == 1


async def test_earliest_of_several_stops_wins(place: Place) -> None:
    order = await place.running(DEAF)
    await place.lines(order, 1)
    for kill_timeout_ms in (3_600_000, 100, 60_000):
        place.supervisor.end(order.id, kill_timeout_ms)
    end = await place.ear.end(order.id)
    assert (end.reason, end.exit_code) == ("stopped", 128 + 9)


async def test_stop_without_a_deadline_uses_the_requested_one(place: Place) -> None:
    order = await place.running(DEAF, kill_timeout_ms=100)
    await place.lines(order, 1)
    place.supervisor.end(order.id)
    assert (await place.ear.end(order.id)).exit_code == 128 + 9


async def test_all_runs_can_be_stopped_at_once(place: Place) -> None:
    orders = [await place.running() for _ in range(3)]
    waiting = place.want(resources=CAPACITY)
    await place.supervisor.stop_all(asyncio.Event())
    ends = [await place.ear.end(order.id) for order in (*orders, waiting)]
    assert {end.reason for end in ends} == {"stopped"}
    assert place.ear.of(waiting.id) == ["over"]


async def test_forced_shutdown_waits_for_no_deadline(place: Place) -> None:
    order = await place.running(DEAF, kill_timeout_ms=3_600_000)
    await place.lines(order, 1)
    hurry = asyncio.Event()
    ending = asyncio.create_task(place.supervisor.stop_all(hurry))
    await until(lambda: place.supervisor.runs[order.id].state == "stopping")
    hurry.set()
    await ending
    end = await place.ear.end(order.id)
    assert (end.reason, end.exit_code) == ("stopped", 128 + 9)


async def test_waiting_runs_get_capacity_in_order(place: Place) -> None:
    first = await place.running(resources=CAPACITY)
    waiting = [place.want(resources=CAPACITY) for _ in range(3)]
    await until(lambda: {place.supervisor.runs[one.id].state for one in waiting} == {"waiting"})
    assert place.supervisor.capacity.free == Resources(0, 0)
    for before, after in zip([first, *waiting], waiting, strict=False):
        assert place.ear.of(after.id) == []
        place.supervisor.end(before.id, 0)
        await place.ear.told(after.id, "running")
    started = [one for what, one, _ in place.ear.heard if what == "running"]
    assert started == [first.id, *(one.id for one in waiting)]


async def test_small_run_is_not_delayed_by_a_large_waiting_one(place: Place) -> None:
    half = Resources(CAPACITY.cpu_millicores // 2, 64)
    await place.running(resources=half)
    large = place.want(resources=CAPACITY)
    await place.running(resources=half)
    assert place.ear.of(large.id) == []


async def test_run_that_waits_too_long_is_told_the_missing_capacity(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "CAPACITY_TIMEOUT_S", 0.05)
    await place.running(resources=CAPACITY)
    end = await place.ear.end(place.want(resources=Resources(20, 30)).id)
    assert end == RunEnd("capacity", message="no room for 20 millicores and 30 MB on this node")


@pytest.mark.parametrize("what", ["placed", "running", "over"])
async def test_end_is_reported_until_acknowledged_and_then_never(place: Place, what: str) -> None:
    place.ear.deaf.add(what)
    order = place.want("trap 'exit 3' TERM; echo up; while :; do sleep 0.02; done")
    if what == "over":
        await place.ear.told(order.id, "running")
        await place.lines(order, 1)
        place.supervisor.end(order.id)
    await until(lambda: place.ear.tries.count(what) > 2)
    assert what not in place.ear.of(order.id)
    assert place.of(order).was_started() == (what != "placed")
    place.ear.deaf.clear()
    await place.ear.told(order.id, "running")
    await place.lines(order, 1)
    place.supervisor.end(order.id)
    assert (await place.ear.end(order.id)).exit_code == 3
    assert place.ear.of(order.id) == ["placed", "running", "over"]


async def test_run_without_an_acknowledged_placement_is_not_started(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", 0.05)
    place.ear.deaf.add("placed")
    order = place.want()
    end = await place.ear.end(order.id)
    assert end.reason == "lost"
    assert "so it was not started" in end.message
    await until(lambda: not place.of(order).path.exists())


@pytest.mark.parametrize("turns", range(8))
async def test_service_crash_at_any_moment_of_a_stop(place: Place, turns: int) -> None:
    """The receiver of the end report is gone already."""
    place.ear.stuck.add("placed")
    place.ear.deaf.add("over")
    order = place.want(ports=GAME)
    await until(lambda: "placed" in place.ear.tries)
    place.supervisor.end(order.id)
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await place.drop()
    place.supervisor.ensure_running(place.order())
    going_on = [task for task in asyncio.all_tasks() if task.get_name().startswith("run ")]
    assert going_on == [], "and nothing is begun"


async def _laid_out(place: Place) -> tuple[str, dict[str, tuple[str, int]]]:
    place.ear.stuck.add("placed")
    order = place.want(ports=GAME)
    await until(lambda: "placed" in place.ear.tries)
    placed = place.supervisor.runs[order.id].placed
    assert placed is not None
    await place.anew()
    assert place.supervisor.run_ids("server") == [order.id]
    return order.id, placed.backends


async def test_prepared_run_starts_after_a_restart_if_still_requested(
    place: Place,
) -> None:
    run_id, backends = await _laid_out(place)
    assert place.ear.of(run_id) == []
    place.supervisor.ensure_running(replace(place.order(ports=GAME), id=run_id))
    await place.ear.told(run_id, "running")
    assert await place.ear.told(run_id, "placed") == backends


async def test_prepared_run_that_is_not_requested_never_starts(
    place: Place,
) -> None:
    run_id, _ = await _laid_out(place)
    place.supervisor.stop_others("lobby", [])
    assert place.supervisor.run_ids("server") == [run_id], "it is no lobby"
    place.supervisor.stop_others("server", [])
    assert (await place.ear.end(run_id)).reason == "stopped"
    assert place.ear.of(run_id) == ["over"]
    await until(lambda: not (place.folder / "servers" / run_id).exists())


async def test_running_run_keeps_capacity_and_ports_after_a_restart(place: Place) -> None:
    order = await place.running(ports=GAME, resources=Resources(1_000, 500))
    pid, backends = place.pid_of(order), await place.ear.told(order.id, "placed")
    await place.anew()
    assert place.supervisor.run_ids("server") == [order.id]
    assert place.supervisor.capacity.free == CAPACITY - order.resources
    await until(lambda: place.ear.of(order.id).count("running") == 2)
    place.supervisor.ensure_running(order)
    assert (place.pid_of(order), is_alive(pid)) == (pid, True)
    other = await place.running(ports=GAME)
    assert await place.ear.told(other.id, "placed") != backends
    place.supervisor.stop_others("server", [other.id])
    assert (await place.ear.end(order.id)).reason == "stopped"
    assert not is_alive(pid)
    await until(lambda: place.supervisor.run_ids("server") == [other.id])


async def test_stopping_run_ends_at_its_deadline_despite_a_restart(place: Place) -> None:
    order = await place.running(DEAF)
    await place.lines(order, 1)
    place.supervisor.end(order.id, 2_000)
    await until(lambda: _status(place, order.id) == "stopping")
    pid = place.pid_of(order)
    await place.anew()
    end = await place.ear.end(order.id)
    assert (end.reason, end.exit_code) == ("stopped", 128 + 9)
    assert not is_alive(pid)


def _status(place: Place, run_id: str) -> str:
    state = RunFolder(place.folder / "servers" / run_id).state()
    return "" if state is None else state.status


async def test_end_during_service_downtime_is_reported(place: Place) -> None:
    order = await place.running("while [ ! -e $HOME/end ]; do sleep 0.02; done; exit 9")
    await place.drop()
    (place.of(order).scratch / "end").touch()
    await until(lambda: _status(place, order.id) == "ended")
    await place.start()
    end = await place.ear.end(order.id)
    assert (end.reason, end.exit_code) == ("exited", 9)
    # A new supervisor reports the end again only on request.
    await until(lambda: not place.supervisor.runs)
    await place.anew()
    assert not place.supervisor.runs
    place.supervisor.ensure_running(order)
    await until(lambda: place.ear.of(order.id).count("over") == 2)
    assert await place.ear.end(order.id) == end
    assert place.ear.of(order.id).count("placed") == 1


async def test_partly_prepared_run_is_removed_at_start(place: Place) -> None:
    await place.drop()
    half = place.folder / "servers" / place.order().id
    (half / "scratch").mkdir(parents=True)
    (half / "spec").write_bytes(b"id=")
    await place.start()
    assert not half.exists()
    assert not place.supervisor.runs


async def test_keeper_launcher_may_exit_at_any_moment(place: Place) -> None:
    first = await place.running("exec sleep 3600")
    os.kill(nursery_of(place), signal.SIGKILL)
    second = await place.running("exec sleep 3600")
    deaf = nursery_of(place)
    os.kill(deaf, signal.SIGSTOP)
    third = place.want("exec sleep 3600")
    await until(lambda: place.supervisor.runs[third.id].state == "starting")
    os.kill(deaf, signal.SIGKILL)
    await place.ear.told(third.id, "running")
    for order in (first, second, third):
        assert is_alive(place.pid_of(order))
        assert place.ear.of(order.id).count("running") == 1


async def test_second_service_starts_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_launcher, "_OPEN_TIMEOUT_S", 0.1)
    runs_of_both = place.folder / "servers"
    with pytest.raises(KeeperFailed, match="another service"):
        await keeper_launcher.KeeperLauncher(place.node.keeper, runs_of_both).open()
    monkeypatch.undo()
    await place.drop()
    other = keeper_launcher.KeeperLauncher(place.node.keeper, runs_of_both)
    await other.open()
    await other.close()
    await place.start()


async def test_run_with_a_killed_keeper_is_lost(place: Place) -> None:
    order = await place.running()
    pid = place.pid_of(order)
    os.kill(place.keeper_of(order), signal.SIGKILL)
    end = await place.ear.end(order.id)
    assert end == RunEnd(
        "lost", None, "its keeper died without recording how it ended", end.started_ms
    )
    assert end.started_ms is not None
    await until(lambda: not is_alive(pid))
    assert place.supervisor.capacity.free == CAPACITY


async def test_suspended_keeper_is_killed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lifecycle, "KEEPER_GRACE_S", 0.1)
    order = await place.running()
    keeper = place.keeper_of(order)
    os.kill(keeper, signal.SIGSTOP)
    place.supervisor.end(order.id, 50)
    assert (await place.ear.end(order.id)).reason == "lost"
    await until(lambda: not is_alive(keeper))


async def test_run_over_its_memory_limit_is_ended(place: Place) -> None:
    script = "x=$(head -c 80000000 /dev/zero | tr '\\0' x); sleep 3600"
    order = place.want(script, resources=Resources(10, 16))
    end = await place.ear.end(order.id)
    assert (end.reason, end.exit_code) == ("out_of_memory", 128 + 9)
