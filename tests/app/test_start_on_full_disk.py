"""Start on a full disk: the data plane retries until space is free, and can be stopped."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyservice.app import data_plane
from pyservice.dataplane import engine
from pyservice.process.listening_sockets import bound_address
from pyservice.process.stop_signals import StopSignals
from pyservice.settings import load
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@pytest.fixture
async def plane(tmp_path: Path) -> data_plane.DataPlane:
    free = dict.fromkeys(("http", "grpc", "metrics"), "127.0.0.1:0")
    return data_plane.DataPlane(load({"data_dir": tmp_path, **free}, environ={}))


def _full(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine.open_engine
    failures_left = times

    def open_engine(*arguments: Any) -> engine.Engine:
        nonlocal failures_left
        if failures_left:
            failures_left -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(engine, "open_engine", open_engine)
    monkeypatch.setattr(data_plane, "_RETRY_MS", 10)


async def test_recovery_is_retried_until_space_is_free(
    plane: data_plane.DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    _full(3, monkeypatch)
    signals = StopSignals()
    assert await plane.recover(signals)
    addresses = await plane.start()
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        ready = await client.get(f"http://{addresses['metrics']}/readyz")
    assert ready.status_code == 200
    await plane.stop(signals)


async def test_waiting_start_is_live_not_ready_and_stoppable(
    plane: data_plane.DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    _full(1_000_000, monkeypatch)
    signals = StopSignals()
    recovering = asyncio.create_task(plane.recover(signals))
    base = f"http://{bound_address(plane._probes_socket)}"
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        assert (await client.get(f"{base}/livez")).status_code == 200
        ready = await client.get(f"{base}/readyz")
        assert (ready.status_code, "recovering" in ready.text) == (503, True)
        assert (await client.get(f"{base}/metrics")).status_code == 200
    signals.stop.set()
    assert not await asyncio.wait_for(recovering, PATIENCE_S)
    plane._http_socket.close()
    await plane._client.close()
