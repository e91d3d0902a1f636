from __future__ import annotations

import asyncio
import random

import pytest

from pyservice.concurrency.fair_queue import FairQueue, QueueFull
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


class TenantRequests:
    """Requests that hold or await a permit, at most 12 for each tenant.

    The limits are those of a host, of a tenant at a host, and of a tenant.
    """

    def __init__(self, *limits: int) -> None:
        self.queue = FairQueue(*limits or (4, 3, 5), present_max=12)
        self.order: list[tuple[bytes, str]] = []
        self.running: dict[asyncio.Event, tuple[bytes, str]] = {}

    async def _ask(self, tenant: bytes, host: str) -> None:
        async with self.queue.permit(host, (host, tenant), tenant):
            done = asyncio.Event()
            self.order.append((tenant, host))
            self.running[done] = (tenant, host)
            try:
                await done.wait()
            finally:
                del self.running[done]

    async def arrive(self, tenant: bytes, host: str, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._ask(tenant, host)) for _ in range(count)]
        await settled()
        return tasks

    async def finish_longest(self, tenant: bytes) -> None:
        next(done for done, (name, _) in self.running.items() if name == tenant).set()
        await settled()

    def count(self, tenant: bytes, host: str | None = None) -> int:
        return sum(
            name == tenant and host in (None, permit_host)
            for name, permit_host in self.running.values()
        )


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_one_tenant_never_takes_the_last_permits_of_a_host() -> None:
    requests = TenantRequests()
    slow = await requests.arrive(b"slow", "host", 10)
    assert requests.count(b"slow") == 3
    good = await requests.arrive(b"good", "host")
    assert requests.count(b"good") == 1
    await cancel(slow + good)


async def test_tenant_limit_applies_across_hosts() -> None:
    requests = TenantRequests()
    tasks = [task for host in "abcd" for task in await requests.arrive(b"slow", host, 2)]
    assert requests.count(b"slow") == 5
    assert requests.count(b"slow", "c") == 1
    tasks += await requests.arrive(b"good", "d", 3)
    assert requests.count(b"good", "d") == 3
    # A released permit at one host lets the tenant start a request at another host.
    await requests.finish_longest(b"slow")
    assert requests.count(b"slow", "a") == 1
    assert requests.count(b"slow", "c") == 2
    await cancel(tasks)


async def test_waiting_tenants_are_served_in_rotation() -> None:
    requests = TenantRequests(1, 1, 9)
    tasks = await requests.arrive(b"many", "host", 4)
    tasks += await requests.arrive(b"few", "host", 2)
    tasks += await requests.arrive(b"one", "host", 1)
    for _ in range(7):
        await requests.finish_longest(requests.order[-1][0])
    names = [tenant for tenant, _ in requests.order]
    assert names == [b"many", b"many", b"few", b"one", b"many", b"few", b"many"]
    assert [task.exception() for task in tasks] == [None] * 7
    assert len(requests.queue) == 0


async def test_requests_over_the_queue_limit_of_a_tenant_are_rejected() -> None:
    requests = TenantRequests()
    tasks = await requests.arrive(b"slow", "host", 14)
    refused = [task for task in tasks if task.done()]
    assert [type(task.exception()) for task in refused] == [QueueFull, QueueFull]
    tasks += await requests.arrive(b"good", "host", 5)
    assert len([task for task in tasks if task.done()]) == 2
    await cancel(tasks)


async def test_cancelled_request_takes_no_permit() -> None:
    requests = TenantRequests(1, 1, 1)
    tasks = await requests.arrive(b"a", "host", 3)
    # The first request passes its permit to the second while the second is cancelled.
    next(iter(requests.running)).set()
    await asyncio.sleep(0)
    tasks[1].cancel()
    await settled()
    assert requests.count(b"a") == 1
    await cancel(tasks)
    assert len(requests.queue) == 0


@pytest.mark.parametrize("seed", range(20))
async def test_limits_and_fairness_hold_in_any_order_of_events(seed: int) -> None:
    chance = random.Random(seed)
    requests = TenantRequests()
    tasks: list[asyncio.Task[None]] = []
    for _ in range(300):
        match chance.randrange(5):
            case 0 | 1:
                tenant, host = chance.choice([b"a", b"b", b"c"]), chance.choice("xyz")
                tasks.append(asyncio.create_task(requests._ask(tenant, host)))
            case 2 | 3 if requests.running:
                chance.choice(list(requests.running)).set()
            case _ if tasks:
                chance.choice(tasks).cancel()
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        permits = list(requests.running.values())
        for host in "xyz":
            assert sum(permit_host == host for _, permit_host in permits) <= 4
            assert all(requests.count(tenant, host) <= 3 for tenant in (b"a", b"b", b"c"))
        assert all(requests.count(tenant) <= 5 for tenant in (b"a", b"b", b"c"))
    async with asyncio.timeout(PATIENCE_S):
        while not all(task.done() for task in tasks):
            for done in tuple(requests.running):
                done.set()
            await asyncio.sleep(0)
    await settled()
    assert {
        type(error) for task in tasks if not task.cancelled() and (error := task.exception())
    } <= {QueueFull}
    assert len(requests.queue) == 0


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
