"""Runs with folders that cannot be read when a service starts.

A link to `/proc/self/mem` stands for the unreadable file: reading its first page is an I/O error.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyservice.runtime import run_cleanup, run_lifecycle, run_supervisor
from pyservice.runtime.run_requests import RunRequest
from tests.runtime.node import Place, is_alive, until
from tests.runtime.test_hanging_starts import laid_out
from tests.support.captured_logs import logged

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


async def unreadable(place: Place) -> RunRequest:
    order = await place.running()
    await place.drop()
    _become_unreadable(place.of(order).path / "spec")
    await place.start()
    return order


async def test_unreadable_run_is_ended_and_others_continue(place: Place) -> None:
    other = await place.running()
    order = await unreadable(place)
    pid = place.pid_of(order)
    assert not place.supervisor.is_known(order.id), "whoever has its record tells that it is lost"
    await until(lambda: (place.of(order).path / "told").exists())
    assert not is_alive(pid)
    assert place.supervisor.runs.keys() == {other.id}
    assert is_alive(place.pid_of(other))


async def test_run_that_becomes_readable_continues(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_supervisor, "_READ_RETRY_DELAYS_S", (0.01,) * 1_000)
    order = await place.running()
    await place.drop()
    spec = place.of(order).path / "spec"
    content = _become_unreadable(spec)
    with logged() as log:
        starting = asyncio.create_task(place.start())
        await until(lambda: "a run folder could not be read" in log.getvalue())
        _become_readable(spec, content)
        await starting
    assert place.supervisor.run_ids("server") == [order.id]
    assert is_alive(place.pid_of(order))


async def test_request_for_an_unreadable_run_receives_its_end(place: Place) -> None:
    order = await unreadable(place)
    with pytest.raises(OSError, match="Input/output error"):
        place.supervisor.ensure_running(order)
    await until(lambda: (place.of(order).path / "told").exists())
    place.supervisor.ensure_running(order)
    assert (await place.ear.end(order.id)).reason == "stopped"
    await until(lambda: not place.supervisor.runs)


async def test_request_for_a_readable_run_is_served(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cleanup, "UNOWNED_GRACE_S", 3_600.0)
    order = await place.running()
    await place.drop()
    spec = place.of(order).path / "spec"
    content = _become_unreadable(spec)
    await place.start()
    _become_readable(spec, content)
    place.supervisor.ensure_running(order)
    run = place.supervisor.runs[order.id]
    assert run.placed is not None
    await until(lambda: run.state == "running")


async def test_run_that_was_not_started_is_prepared_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "START_TIMEOUT_S", 5.0)
    order = await laid_out(place)
    await place.drop()
    _become_unreadable(place.of(order).path / "spec")
    await place.start()
    assert not place.supervisor.runs
    place.supervisor.ensure_running(order)
    await place.ear.told(order.id, "running")
    assert is_alive(place.pid_of(order))
