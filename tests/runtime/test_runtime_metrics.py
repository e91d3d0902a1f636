"""Metrics of the runtime with game servers that run, wait and fail to start."""

from __future__ import annotations

import re

import pytest

from pyservice.control.resource_usage import UsedResources
from pyservice.control.runtime_metrics import render_runtime_metrics
from pyservice.runtime.run_requests import LobbyProgress, PortRequest, Resources
from tests.support.runtime_host import RuntimeHost, until

pytestmark = pytest.mark.anyio

USED = UsedResources(0.25, 5 << 20)


def values(host: RuntimeHost, used: UsedResources = USED) -> dict[str, float]:
    text = render_runtime_metrics(host.supervisor, used).decode()
    samples = re.findall(r"^hosting_runtime_(\S+) (\S+)$", text, re.M)
    return {name: float(value) for name, value in samples}


async def test_running_server_asks_for_its_tier_and_leases_a_port(host: RuntimeHost) -> None:
    before = values(host)
    assert before["processor_requested_cores"] == before["memory_requested_bytes"] == 0
    size = Resources(500, 64)
    order = await host.running(resources=size, ports={"game": PortRequest("udp")})
    running = values(host)
    total = host.supervisor.capacity.total
    assert running["processor_cores"] == total.cpu_millicores / 1000
    assert running["memory_bytes"] == total.memory_mb << 20
    assert running["processor_requested_cores"] == 0.5
    assert running["memory_requested_bytes"] == 64 << 20
    assert (running["processor_used_cores"], running["memory_used_bytes"]) == (0.25, 5 << 20)
    assert running['ports{state="leased"}'] == 1
    host.supervisor.end(order.id, 0)
    await until(lambda: not host.supervisor.runs)
    ended = values(host)
    assert ended["memory_requested_bytes"] == 0
    states = ("leased", "resting", "free")
    assert [ended[f'ports{{state="{state}"}}'] for state in states] == [
        *(0, 1),
        before['ports{state="free"}'] - 1,
    ]


async def test_use_without_control_groups_has_no_value(host: RuntimeHost) -> None:
    unknown = values(host, UsedResources(None, None))
    assert {name for name in unknown if "used" in name} == set()
    assert "processor_cores" in unknown


async def test_lobby_that_ends_before_it_is_ready_is_counted(host: RuntimeHost) -> None:
    order = host.order("exit 3", owner="lobby")
    host.reports.progress[order.id] = LobbyProgress(is_ready=False)
    host.supervisor.ensure_running(order)
    await host.reports.end(order.id)
    assert values(host)['failed_starts_total{reason="exited"}'] == 1
    assert values(host)['failed_starts_total{reason="start_timeout"}'] == 0
