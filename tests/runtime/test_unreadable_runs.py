"""Runs with folders that cannot be read when a service starts.

A link to `/proc/self/mem` stands for the unreadable file: reading its first page is an I/O error.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyservice.runtime import run_cleanup, run_lifecycle, run_supervisor
from pyservice.runtime.run_requests import RunRequest
from tests.runtime.unstarted_runs import laid_out
from tests.support.captured_logs import logged
from tests.support.runtime_host import RuntimeHost, is_alive, until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_supervisor, "_READ_RETRY_DELAYS_S", (0.01,))
    monkeypatch.setattr(run_cleanup, "UNOWNED_GRACE_S", 0.5)


def _become_unreadable(spec: Path) -> bytes:
    content = spec.read_bytes()
    spec.unlink()
    spec.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"):
        spec.read_bytes()
    return content


def _become_readable(spec: Path, content: bytes) -> None:
    spec.unlink()
    spec.write_bytes(content)


async def unreadable(host: RuntimeHost) -> RunRequest:
    order = await host.running()
    await host.drop()
    _become_unreadable(host.of(order).path / "spec")
    await host.start()
    return order


async def test_unreadable_run_is_ended_and_others_continue(host: RuntimeHost) -> None:
    other = await host.running()
    order = await unreadable(host)
    pid = host.pid_of(order)
    assert not host.supervisor.is_known(order.id), "the owner of its record reports it as lost"
    await until(lambda: (host.of(order).path / "told").exists())
    assert not is_alive(pid)
    assert host.supervisor.runs.keys() == {other.id}
    assert is_alive(host.pid_of(other))


async def test_run_that_becomes_readable_continues(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_supervisor, "_READ_RETRY_DELAYS_S", (0.01,) * 1_000)
    order = await host.running()
    await host.drop()
    spec = host.of(order).path / "spec"
    content = _become_unreadable(spec)
    with logged() as log:
        starting = asyncio.create_task(host.start())
        await until(lambda: "a run folder could not be read" in log.getvalue())
        _become_readable(spec, content)
        await starting
    assert host.supervisor.run_ids("server") == [order.id]
    assert is_alive(host.pid_of(order))


async def test_request_for_an_unreadable_run_receives_its_end(host: RuntimeHost) -> None:
    order = await unreadable(host)
    with pytest.raises(OSError, match="Input/output error"):
        host.supervisor.ensure_running(order)
    await until(lambda: (host.of(order).path / "told").exists())
    host.supervisor.ensure_running(order)
    assert (await host.reports.end(order.id)).reason == "stopped"
    await until(lambda: not host.supervisor.runs)


async def test_request_for_a_readable_run_is_served(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cleanup, "UNOWNED_GRACE_S", 3_600.0)
    order = await host.running()
    await host.drop()
    spec = host.of(order).path / "spec"
    content = _become_unreadable(spec)
    await host.start()
    _become_readable(spec, content)
    host.supervisor.ensure_running(order)
    run = host.supervisor.runs[order.id]
    assert run.placement is not None
    await until(lambda: run.state == "running")


async def test_run_that_was_not_started_is_prepared_again(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", 5.0)
    order = await laid_out(host)
    await host.drop()
    _become_unreadable(host.of(order).path / "spec")
    await host.start()
    assert not host.supervisor.runs
    host.supervisor.ensure_running(order)
    await host.reports.wait_for(order.id, "running")
    assert is_alive(host.pid_of(order))
