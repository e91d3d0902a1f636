from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from pyservice.app.data_plane import DataPlane
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.process.stop_signals import StopSignals
from pyservice.rpc import InternalServer
from pyservice.settings import Settings, load
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]


def _settings(data_dir: Path) -> Settings:
    free = dict.fromkeys(("http", "grpc", "cdn", "metrics"), "127.0.0.1:0")
    return load({"data_dir": data_dir, **free}, environ={})


async def _metrics(_: control_pb2.MetricsRequest) -> control_pb2.MetricsResponse:
    return control_pb2.MetricsResponse(
        text=b"# TYPE hosting_control_x gauge\nhosting_control_x 1\n"
    )


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_first_start_waits_for_the_control_plane(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    settings.control_socket.parent.mkdir()
    plane = DataPlane(settings, is_supervised=True)
    signals = StopSignals()
    assert await plane.recover(signals)
    addresses = await plane.start()
    control = InternalServer(
        {"hosting.internal.v1.Control.Metrics": _metrics}, settings.control_socket
    )
    async with httpx.AsyncClient(
        base_url=f"http://{addresses['metrics']}", timeout=PATIENCE_S
    ) as client:

        async def readiness() -> tuple[int, str]:
            answer = await client.get("/readyz?verbose")
            return answer.status_code, answer.text

        status, text = await readiness()
        assert status == 503
        assert "control: starting, and no namespace is known yet" in text
        await control.start()

        async def is_up() -> bool:
            return "control: ok" in (await readiness())[1]

        async def is_down() -> bool:
            return "control: down" in (await readiness())[1]

        async def is_scraped() -> bool:
            # The control plane's metrics are missing from the page if they arrive too late.
            scrape = (await client.get("/metrics")).text
            is_in_time = "\nhosting_control_plane_up 1\n" in scrape
            return is_in_time and scrape.endswith("hosting_control_x 1\n")

        await _until(is_up)
        assert (await readiness())[0] == 200
        await _until(is_scraped)
        await control.stop(0.0)
        await _until(is_down)
        assert (await readiness())[0] == 200
    await plane.stop(signals)


async def test_data_plane_alone_does_not_wait(tmp_path: Path) -> None:
    plane = DataPlane(_settings(tmp_path))
    signals = StopSignals()
    assert await plane.recover(signals)
    addresses = await plane.start()
    async with httpx.AsyncClient(
        base_url=f"http://{addresses['metrics']}", timeout=PATIENCE_S
    ) as client:
        assert (await client.get("/readyz")).status_code == 200
    await plane.stop(signals)
