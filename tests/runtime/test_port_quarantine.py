"""Quarantine of ports after a run, so that players of the ended run do not reach another one."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.network.port_ranges import PROCESS_PORTS
from pyservice.runtime import node_allocation
from pyservice.runtime.node_allocation import PORT_QUARANTINE_S, PlacementAllocator
from pyservice.runtime.run_layout import StoredRun
from pyservice.runtime.run_requests import PortRequest, Resources, RunEnd, RunRequest
from tests.support.runtime_host import RuntimeHost, until

pytestmark = pytest.mark.anyio

GAME: Final = {"game": PortRequest("udp")}
FEW: Final = 8


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def few(host: RuntimeHost) -> range:
    """Returns all ports of the node. No process binds them. Each test process has ports of its
    own.
    """
    first = PROCESS_PORTS.start + os.getpid() % 900 * FEW
    numbers = range(first, first + FEW)
    host.node = replace(host.node, process_ports=numbers)
    await host.anew()
    return numbers


def with_clock(host: RuntimeHost) -> Clock:
    clock, numbers = Clock(), host.node.process_ports
    host.supervisor.placements = PlacementAllocator(
        has_users=False, numbers=numbers, monotonic_s=clock
    )
    return clock


async def number_of(host: RuntimeHost, order: RunRequest) -> int:
    [(_, number)] = (await host.reports.wait_for(order.id, "placed")).values()
    return int(number)


async def running_on_ports(host: RuntimeHost, count: int) -> dict[int, RunRequest]:
    orders = [await host.running(ports=GAME) for _ in range(count)]
    numbers = {await number_of(host, order): order for order in orders}
    assert len(numbers) == count
    return numbers


async def ended(host: RuntimeHost, order: RunRequest) -> None:
    host.supervisor.end(order.id, 0)
    await host.reports.end(order.id)
    await until(lambda: order.id not in host.supervisor.runs)


async def refused(host: RuntimeHost) -> RunEnd:
    return await host.reports.end(host.want(ports=GAME).id)


async def test_port_is_quarantined_after_its_run_and_then_reused(
    host: RuntimeHost, few: range
) -> None:
    clock = with_clock(host)
    running = await running_on_ports(host, FEW)
    assert set(running) == set(few)
    number, order = running.popitem()
    await ended(host, order)
    for passed_s in (0.0, PORT_QUARANTINE_S - 1):
        clock.now_s += passed_s
        assert await refused(host) == RunEnd("no_ports", message="no port of this node is free")
    clock.now_s += 1
    again = await host.running(ports=GAME)
    assert await number_of(host, again) == number
    assert (await refused(host)).reason == "no_ports"


async def test_run_gets_a_free_port_and_never_a_quarantined_one(
    host: RuntimeHost, few: range
) -> None:
    with_clock(host)
    resting = set()
    for _ in range(FEW - 2):
        [(number, order)] = (await running_on_ports(host, 1)).items()
        assert number not in resting
        resting.add(number)
        await ended(host, order)
    last = await running_on_ports(host, 2)
    assert set(last) == set(few) - resting


async def test_quarantine_survives_a_service_restart(host: RuntimeHost, few: range) -> None:
    running = await running_on_ports(host, FEW)
    orders = list(running.items())
    goes_on, (lately, one), (long_ago, other), (ahead, third) = orders[0], *orders[1:4]
    for order in (one, other, third):
        await ended(host, order)
    await host.drop()
    now_s = time.time()
    # The last end time comes from a clock that was set back later.
    for order, reported_s in (
        (one, -PORT_QUARANTINE_S / 2),
        (other, -PORT_QUARANTINE_S),
        (third, 365 * 86_400),
    ):
        os.utime(host.of(order).path / "told", (now_s + reported_s, now_s + reported_s))
    await host.start()
    again = await host.running(ports=GAME)
    assert await number_of(host, again) == long_ago
    for _ in range(2):
        assert (await refused(host)).reason == "no_ports", (lately, ahead)
    assert goes_on[1].id in host.supervisor.runs


async def test_restart_keeps_the_rest_of_the_quarantine(host: RuntimeHost, few: range) -> None:
    [(number, order)] = (await running_on_ports(host, 1)).items()
    await ended(host, order)
    run = StoredRun(host.of(order).path)
    for passed_s, left_s in (
        (0.0, PORT_QUARANTINE_S),
        (PORT_QUARANTINE_S - 20, 20.0),
        (-86_400.0, PORT_QUARANTINE_S),
    ):
        clock = Clock()
        placements = PlacementAllocator(has_users=False, numbers=few, monotonic_s=clock)
        then_s = time.time() - passed_s
        os.utime(run.folder.path / "told", (then_s, then_s))
        placements.quarantine_ports_of(run)
        others = RunRequest("x", "server", "g", "b", order.resources, ports=_all_but_one())
        assert number not in {port.number for port in placements.allocate(others).ports.values()}
        one = RunRequest("y", "server", "g", "b", order.resources, ports=GAME)
        clock.now_s += left_s - 5
        with pytest.raises(node_allocation.NoFreePort):
            placements.allocate(one)
        clock.now_s += 5
        assert placements.allocate(one).ports["game"].number == number
    assert number in few


def _all_but_one() -> dict[str, PortRequest]:
    return {f"port-{n}": PortRequest("udp") for n in range(FEW - 1)}


def test_folder_of_a_long_ended_run_is_not_read(tmp_path: Path) -> None:
    """A node may have a hundred thousand such folders."""

    class Unread(StoredRun):
        def placement(self) -> None:
            raise AssertionError("the file was read")

    (tmp_path / "told").touch()
    then_s = time.time() - PORT_QUARANTINE_S - 1
    os.utime(tmp_path / "told", (then_s, then_s))
    PlacementAllocator(has_users=False).quarantine_ports_of(Unread(tmp_path))


MANY: Final = range(40_000, 40_256)


def order_of(build_id: str, count: int) -> RunRequest:
    ports = {f"port-{n}": PortRequest("udp") for n in range(count)}
    return RunRequest("x", "server", "g", build_id, Resources(10, 64), ports=ports)


@pytest.fixture
def no_foreign_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_allocation, "_can_bind", lambda number, protocol: True)


@pytest.mark.usefixtures("no_foreign_programs")
def test_build_with_quarantined_ports_leaves_half_to_others() -> None:
    clock = Clock()
    placements = PlacementAllocator(has_users=False, numbers=MANY, monotonic_s=clock)
    for _ in range(16):
        placements.release(placements.allocate(order_of("ends at once", 8)))
    with pytest.raises(node_allocation.NoFreePort):
        placements.allocate(order_of("ends at once", 1))
    goes_on = [placements.allocate(order_of("other", 8)) for _ in range(16)]
    assert len({port.number for one in goes_on for port in one.ports.values()}) == 128
    with pytest.raises(node_allocation.NoFreePort):
        placements.allocate(order_of("other", 1))
    placements.release(goes_on.pop())
    clock.now_s += PORT_QUARANTINE_S
    assert placements.allocate(order_of("ends at once", 8)).ports


@pytest.mark.usefixtures("no_foreign_programs")
def test_build_with_many_running_servers_may_use_all_ports() -> None:
    placements = PlacementAllocator(has_users=False, numbers=MANY, monotonic_s=Clock())
    placed = [placements.allocate(order_of("one game", 8)) for _ in range(len(MANY) // 8)]
    assert len({port.number for one in placed for port in one.ports.values()}) == len(MANY)
