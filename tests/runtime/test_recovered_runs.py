"""Runs that an earlier supervisor left: each one continues, or ends with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice.runtime.run_layout import StoredRun
from pyservice.runtime.run_requests import RunEnd
from tests.runtime.node import Place, is_alive, until
from tests.runtime.test_hanging_starts import laid_out

pytestmark = pytest.mark.anyio

GONE = RunEnd("tier_unknown", message="no tier of that name is there any more")


async def test_prepared_run_without_a_request_ends_with_a_reason(
    place: Place,
) -> None:
    order = await laid_out(place)
    assert place.supervisor.abandon(order.id, GONE)
    assert await place.ear.end(order.id) == GONE
    await until(lambda: order.id not in place.supervisor.runs)
    assert place.supervisor.capacity.free == place.capacity
    assert not place.of(order).path.exists(), "nothing was started in it"
    assert not place.supervisor.abandon(order.id, GONE)


async def test_running_run_continues_without_its_request(place: Place) -> None:
    order = await place.running()
    await place.anew()
    pid = place.pid_of(order)
    assert place.supervisor.abandon(order.id, GONE)
    other = await place.running()
    assert is_alive(pid)
    assert place.supervisor.run_ids("server") == [order.id, other.id]


async def test_run_with_a_damaged_record_is_supervised_and_ended(place: Place) -> None:
    order = await place.running()
    pid, state = place.pid_of(order), place.of(order).path / "state"
    with state.open("ab") as record:
        record.write(b"status=run\0ning\nkeeper_pid\n\n")
    await place.anew()
    await until(lambda: place.supervisor.runs[order.id].state == "running")
    place.supervisor.end(order.id, 0)
    end = await place.ear.end(order.id)
    assert end.reason == "stopped"
    assert not is_alive(pid)


async def test_ended_run_with_a_damaged_record_is_lost(place: Place) -> None:
    order = await place.running()
    state = place.of(order).path / "state"
    await place.drop()
    place.of(order).stop(0)
    await until(lambda: not place.of(order).is_kept())
    Path(state).write_bytes(b"\0" * 4096 + b"\n\n")
    await place.start()
    end = await place.ear.end(order.id)
    assert (end.reason, end.message) == ("lost", "its keeper died without recording how it ended")
    assert place.supervisor.capacity.free == place.capacity


async def test_runs_continue_but_none_start_without_isolation(
    place: Place,
) -> None:
    order = await place.running()
    pending = place.order()
    place.isolated_by_nothing()
    await place.anew()
    place.supervisor.ensure_running(pending)
    end = await place.ear.end(pending.id)
    assert (end.reason, end.message) == (
        "exec_failed",
        "no isolation of game servers works on this node",
    )
    assert not place.of(pending).path.exists()
    assert is_alive(place.pid_of(order))


async def test_known_end_is_reported_despite_later_errors(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(found: StoredRun) -> str | None:
        raise RuntimeError(f"{found.folder.path} is where we are")

    monkeypatch.setattr(StoredRun, "failure", broken)
    end = await place.ear.end(place.want("exit 3").id)
    assert (end.reason, end.exit_code) == ("exited", 3)
