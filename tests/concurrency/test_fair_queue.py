from __future__ import annotations

import asyncio
import random

import pytest

from pyservice.concurrency.fair_queue import FairQueue, FairQueueLimits, QueueFull
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

BOUNDS = FairQueueLimits(per_host=4, per_tenant_at_host=3, per_tenant=5, waiting_per_tenant=12)


class Crowd:
    def __init__(self, bounds: FairQueueLimits = BOUNDS) -> None:
        self.turns = FairQueue(bounds)
        self.order: list[tuple[bytes, str]] = []
        self.running: dict[asyncio.Event, tuple[bytes, str]] = {}

    async def _ask(self, tenant: bytes, host: str) -> None:
        async with self.turns.permit(tenant, host):
            done = asyncio.Event()
            self.order.append((tenant, host))
            self.running[done] = (tenant, host)
            try:
                await done.wait()
            finally:
                del self.running[done]

    async def come(self, tenant: bytes, host: str, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._ask(tenant, host)) for _ in range(count)]
        await settled()
        return tasks

    async def go(self, tenant: bytes) -> None:
        next(done for done, (who, _) in self.running.items() if who == tenant).set()
        await settled()

    def count(self, tenant: bytes, host: str | None = None) -> int:
        return sum(who == tenant and host in (None, where) for who, where in self.running.values())


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_one_tenant_never_takes_the_last_permits_of_a_host() -> None:
    crowd = Crowd()
    slow = await crowd.come(b"slow", "host", 10)
    assert crowd.count(b"slow") == 3
    good = await crowd.come(b"good", "host")
    assert crowd.count(b"good") == 1
    await cancel(slow + good)


async def test_tenant_limit_applies_across_hosts() -> None:
    crowd = Crowd()
    tasks = [task for host in "abcd" for task in await crowd.come(b"slow", host, 2)]
    assert crowd.count(b"slow") == 5
    assert crowd.count(b"slow", "c") == 1
    tasks += await crowd.come(b"good", "d", 3)
    assert crowd.count(b"good", "d") == 3
    # A released permit at one host lets the tenant start a request at another host.
    await crowd.go(b"slow")
    assert crowd.count(b"slow", "a") == 1
    assert crowd.count(b"slow", "c") == 2
    await cancel(tasks)


async def test_waiting_tenants_are_served_in_rotation() -> None:
    crowd = Crowd(
        FairQueueLimits(per_host=1, per_tenant_at_host=1, per_tenant=9, waiting_per_tenant=99)
    )
    tasks = await crowd.come(b"many", "host", 4)
    tasks += await crowd.come(b"few", "host", 2)
    tasks += await crowd.come(b"one", "host", 1)
    for _ in range(7):
        await crowd.go(crowd.order[-1][0])
    names = [tenant for tenant, _ in crowd.order]
    assert names == [b"many", b"many", b"few", b"one", b"many", b"few", b"many"]
    assert all(task.done() and task.exception() is None for task in tasks)
    assert len(crowd.turns) == 0


async def test_requests_over_the_queue_limit_of_a_tenant_are_rejected() -> None:
    crowd = Crowd()
    tasks = await crowd.come(b"slow", "host", 14)
    refused = [task for task in tasks if task.done()]
    assert [type(task.exception()) for task in refused] == [QueueFull, QueueFull]
    tasks += await crowd.come(b"good", "host", 5)
    assert len([task for task in tasks if task.done()]) == 2
    await cancel(tasks)


async def test_cancelled_request_takes_no_permit() -> None:
    crowd = Crowd(
        FairQueueLimits(per_host=1, per_tenant_at_host=1, per_tenant=1, waiting_per_tenant=99)
    )
    tasks = await crowd.come(b"a", "host", 3)
    # The first request passes its permit to the second while the second is cancelled.
    next(iter(crowd.running)).set()
    await asyncio.sleep(0)
    tasks[1].cancel()
    await settled()
    assert crowd.count(b"a") == 1
    await cancel(tasks)
    assert len(crowd.turns) == 0


@pytest.mark.parametrize("seed", range(20))
async def test_limits_and_fairness_hold_in_any_order_of_events(seed: int) -> None:
    chance = random.Random(seed)
    crowd = Crowd()
    tasks: list[asyncio.Task[None]] = []
    for _ in range(300):
        match chance.randrange(5):
            case 0 | 1:
                tenant, host = chance.choice([b"a", b"b", b"c"]), chance.choice("xyz")
                tasks.append(asyncio.create_task(crowd._ask(tenant, host)))
            case 2 | 3 if crowd.running:
                chance.choice(list(crowd.running)).set()
            case _ if tasks:
                chance.choice(tasks).cancel()
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        places = list(crowd.running.values())
        for host in "xyz":
            assert sum(where == host for _, where in places) <= 4
            assert all(crowd.count(tenant, host) <= 3 for tenant in (b"a", b"b", b"c"))
        assert all(crowd.count(tenant) <= 5 for tenant in (b"a", b"b", b"c"))
    async with asyncio.timeout(PATIENCE_S):
        while not all(task.done() for task in tasks):
            for done in tuple(crowd.running):
                done.set()
            await asyncio.sleep(0)
    await settled()
    assert {
        type(error) for task in tasks if not task.cancelled() and (error := task.exception())
    } <= {QueueFull}
    assert len(crowd.turns) == 0


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
