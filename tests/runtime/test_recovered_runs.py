"""Runs that an earlier supervisor left: each one continues, or ends with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice.runtime.run_layout import StoredRun
from pyservice.runtime.run_requests import RunEnd
from tests.runtime.unstarted_runs import laid_out
from tests.support.runtime_host import RuntimeHost, is_alive, until

pytestmark = pytest.mark.anyio

GONE = RunEnd("tier_unknown", message="the tier was removed")


async def test_prepared_run_without_a_request_ends_with_a_reason(host: RuntimeHost) -> None:
    order = await laid_out(host)
    assert host.supervisor.abandon(order.id, GONE)
    assert await host.reports.end(order.id) == GONE
    await until(lambda: order.id not in host.supervisor.runs)
    assert host.supervisor.capacity.free == host.capacity
    assert not host.of(order).path.exists(), "no process was started in the folder"
    assert not host.supervisor.abandon(order.id, GONE)


async def test_running_run_continues_without_its_request(host: RuntimeHost) -> None:
    order = await host.running()
    await host.anew()
    pid = host.pid_of(order)
    assert host.supervisor.abandon(order.id, GONE)
    other = await host.running()
    assert is_alive(pid)
    assert host.supervisor.run_ids("server") == [order.id, other.id]


async def test_run_with_a_damaged_record_is_supervised_and_ended(host: RuntimeHost) -> None:
    order = await host.running()
    pid, state = host.pid_of(order), host.of(order).path / "state"
    with state.open("ab") as record:
        record.write(b"status=run\0ning\nkeeper_pid\n\n")
    await host.anew()
    await until(lambda: host.supervisor.runs[order.id].state == "running")
    host.supervisor.end(order.id, 0)
    end = await host.reports.end(order.id)
    assert end.reason == "stopped"
    assert not is_alive(pid)


async def test_ended_run_with_a_damaged_record_is_lost(host: RuntimeHost) -> None:
    order = await host.running()
    state = host.of(order).path / "state"
    await host.drop()
    host.of(order).stop(0)
    await until(lambda: not host.of(order).is_kept())
    Path(state).write_bytes(b"\0" * 4096 + b"\n\n")
    await host.start()
    end = await host.reports.end(order.id)
    assert (end.reason, end.message) == ("lost", "its keeper died without recording how it ended")
    assert host.supervisor.capacity.free == host.capacity


async def test_runs_continue_but_none_start_without_isolation(host: RuntimeHost) -> None:
    order = await host.running()
    pending = host.order()
    host.isolated_by_nothing()
    await host.anew()
    host.supervisor.ensure_running(pending)
    end = await host.reports.end(pending.id)
    assert (end.reason, end.message) == (
        "exec_failed",
        "no isolation of game servers works on this node",
    )
    assert [line.text for line in host.of(pending).lines()] == [end.message]
    assert is_alive(host.pid_of(order))


async def test_known_end_is_reported_despite_later_errors(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: StoredRun) -> str | None:
        raise RuntimeError(f"{run.folder.path} is where we are")

    monkeypatch.setattr(StoredRun, "failure", broken)
    end = await host.reports.end(host.want("exit 3").id)
    assert (end.reason, end.exit_code) == ("exited", 3)
