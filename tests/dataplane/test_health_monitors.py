"""Monitoring of the control plane."""

from __future__ import annotations

import asyncio
import json

import pytest

from pyservice.dataplane.health_monitors import ControlPlaneMonitor
from pyservice.pb.hosting.internal.v1 import control_pb2 as pb
from tests.support.captured_logs import logged
from tests.support.waiting import PATIENCE_S, cancel, until_met

pytestmark = pytest.mark.anyio

TEXT = b"# HELP hosting_control_x X.\n# TYPE hosting_control_x gauge\nhosting_control_x 1\n"


class Other:
    def __init__(self) -> None:
        self.is_there = True
        self.delay_s = 0.0
        self.requests = self.texts = 0
        self.database_problem = self.object_store_problem = self.cdn_problem = ""

    async def metrics(self, request: pb.MetricsRequest) -> pb.MetricsResponse:
        self.requests += 1
        self.texts += not request.is_without_text
        await asyncio.sleep(self.delay_s)
        if not self.is_there:
            raise ConnectionRefusedError
        return pb.MetricsResponse(
            text=b"" if request.is_without_text else TEXT,
            database_problem=self.database_problem,
            object_store_problem=self.object_store_problem,
            cdn_problem=self.cdn_problem,
        )


async def test_scrape_contains_control_plane_metrics() -> None:
    text = await ControlPlaneMonitor(Other().metrics, is_awaited=False).scrape()
    assert b"\nhosting_control_plane_up 1\n" in text
    assert text.endswith(TEXT)


async def test_scrape_without_control_plane_has_no_stale_metrics() -> None:
    other = Other()
    watch = ControlPlaneMonitor(other.metrics, is_awaited=False)
    await watch.scrape()
    other.is_there = False
    text = await watch.scrape()
    assert text.endswith(b"\nhosting_control_plane_up 0\n")


async def test_scrape_has_a_timeout() -> None:
    other = Other()
    other.delay_s = 3_600
    async with asyncio.timeout(PATIENCE_S):
        text = await ControlPlaneMonitor(other.metrics, is_awaited=False).scrape()
    assert text.endswith(b"\nhosting_control_plane_up 0\n")


async def test_control_plane_is_starting_until_its_first_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyservice.dataplane.health_monitors._POLL_INTERVAL_S", 0.001)
    other = Other()
    other.is_there = False
    watch = ControlPlaneMonitor(other.metrics, is_awaited=True)
    alone = ControlPlaneMonitor(other.metrics, is_awaited=False)
    assert (watch.is_starting, alone.is_starting) == (True, False)
    running = asyncio.create_task(watch.run())
    other.is_there = True
    await until_met(lambda: watch.is_up)
    other.is_there = False
    await until_met(lambda: not watch.is_up)
    assert not watch.is_starting
    await cancel(running)


@pytest.mark.parametrize("name", ["database_problem", "object_store_problem", "cdn_problem"])
async def test_problem_of_a_part_is_reported_while_up(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyservice.dataplane.health_monitors._POLL_INTERVAL_S", 0.001)
    other = Other()
    setattr(other, name, "does not answer")
    watch = ControlPlaneMonitor(other.metrics, is_awaited=False)
    running = asyncio.create_task(watch.run())
    await until_met(lambda: getattr(watch, name) == "does not answer")
    assert watch.is_up
    other.is_there = False
    await until_met(lambda: not watch.is_up)
    assert getattr(watch, name) == ""
    assert not other.texts, "only a scrape needs them"
    await cancel(running)


async def test_outage_is_logged_after_two_missed_polls() -> None:
    response = iter(["up", "miss", "up", "miss", "miss", "miss", "up"])
    missed = asyncio.Event()

    async def metrics(_: pb.MetricsRequest) -> pb.MetricsResponse:
        if (what := next(response, None)) is None:
            missed.set()
            await asyncio.Event().wait()
        if what == "miss":
            raise ConnectionRefusedError
        return pb.MetricsResponse(text=TEXT)

    with pytest.MonkeyPatch.context() as patch, logged() as stream:
        patch.setattr("pyservice.dataplane.health_monitors._POLL_INTERVAL_S", 0.001)
        running = asyncio.create_task(ControlPlaneMonitor(metrics, is_awaited=False).run())
        async with asyncio.timeout(PATIENCE_S):
            await missed.wait()
        await cancel(running)
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert [event.partition(":")[0] for event in events] == [
        "control plane is up",
        "control plane is down",
        "control plane is up",
    ]
