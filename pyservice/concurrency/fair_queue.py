"""Fair queue of concurrency permits. Tenants share the permits of each host.

Each host has a number of permits. Each tenant has a share of a host's permits and of all permits,
so that slow requests of one tenant delay no other tenant. A host is anything with limited
concurrency, such as a remote server or a thread. A tenant is any bytes. A queue belongs to one
event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


class QueueFull(Exception):
    pass


@dataclass(frozen=True, slots=True)
class FairQueueLimits:
    per_host: int
    per_tenant_at_host: int
    """Limit of a tenant's permits at one host. If it is less than `per_host`, the tenant cannot
    take the last permits.
    """
    per_tenant: int
    waiting_per_tenant: int
    """Limit of a tenant's running and waiting requests. A further request is refused."""


@dataclass(slots=True)
class _Tenant:
    present: int = 0
    running: int = 0
    waits_at: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Host:
    running: int = 0
    by_tenant: dict[bytes, int] = field(default_factory=dict)
    waiting: dict[bytes, deque[asyncio.Future[None]]] = field(default_factory=dict)
    """Waiting requests by tenant. The first tenant gets the next permit and then moves to the end.
    """


class FairQueue:
    """Grants permits. The tenants that wait for a host take turns. Each tenant's requests are in
    order of arrival.
    """

    def __init__(self, bounds: FairQueueLimits) -> None:
        self._bounds = bounds
        self._hosts: dict[str, _Host] = {}
        self._tenants: dict[bytes, _Tenant] = {}

    def __len__(self) -> int:
        return len(self._hosts) + len(self._tenants)

    @asynccontextmanager
    async def permit(self, tenant: bytes, host: str) -> AsyncIterator[None]:
        """Holds a permit of the host for the tenant. If the tenant's queue is full, raises
        QueueFull at once.
        """
        await self.acquire(tenant, host)
        try:
            yield
        finally:
            self.release(tenant, host)

    async def acquire(self, tenant: bytes, host: str) -> None:
        """Waits for a permit, which the caller must `release`. If the tenant's queue is full,
        raises QueueFull at once.
        """
        known = self._tenants.setdefault(tenant, _Tenant())
        if known.present >= self._bounds.waiting_per_tenant:
            raise QueueFull
        place = self._hosts.setdefault(host, _Host())
        known.present += 1
        try:
            if tenant in place.waiting or not self._is_free(tenant, place):
                await self._wait(tenant, host)
            else:
                self._take(tenant, place)
        except BaseException:
            self._gone(tenant, host)
            raise

    def release(self, tenant: bytes, host: str) -> None:
        self._leave(tenant, host)
        self._gone(tenant, host)

    def _gone(self, tenant: bytes, host: str) -> None:
        known = self._tenants[tenant]
        known.present -= 1
        if not known.present:
            del self._tenants[tenant]
        # A cancelled request may end after the last request of its host.
        place = self._hosts.get(host)
        if place is not None and not (place.running or place.waiting):
            del self._hosts[host]

    def _is_free(self, tenant: bytes, place: _Host) -> bool:
        bounds = self._bounds
        return (
            place.running < bounds.per_host
            and place.by_tenant.get(tenant, 0) < bounds.per_tenant_at_host
            and self._tenants[tenant].running < bounds.per_tenant
        )

    def _take(self, tenant: bytes, place: _Host) -> None:
        place.running += 1
        place.by_tenant[tenant] = place.by_tenant.get(tenant, 0) + 1
        self._tenants[tenant].running += 1

    def _leave(self, tenant: bytes, host: str) -> None:
        place, known = self._hosts[host], self._tenants[tenant]
        place.running -= 1
        known.running -= 1
        place.by_tenant[tenant] -= 1
        if not place.by_tenant[tenant]:
            del place.by_tenant[tenant]
        self._hand_out(host)
        # The tenant may wait for another host, because all its permits were in use.
        for other in tuple(known.waits_at):
            self._hand_out(other)

    async def _wait(self, tenant: bytes, host: str) -> None:
        place, known = self._hosts[host], self._tenants[tenant]
        turn = asyncio.get_running_loop().create_future()
        place.waiting.setdefault(tenant, deque()).append(turn)
        known.waits_at[host] = known.waits_at.get(host, 0) + 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(tenant, host)
            elif turn in place.waiting.get(tenant, ()):
                self._forget(tenant, host, turn)
            raise

    def _forget(self, tenant: bytes, host: str, turn: asyncio.Future[None]) -> None:
        place, known = self._hosts[host], self._tenants[tenant]
        queue = place.waiting[tenant]
        queue.remove(turn)
        if not queue:
            del place.waiting[tenant]
        known.waits_at[host] -= 1
        if not known.waits_at[host]:
            del known.waits_at[host]

    def _hand_out(self, host: str) -> None:
        place = self._hosts[host]
        while place.running < self._bounds.per_host:
            tenant = next((one for one in place.waiting if self._is_free(one, place)), None)
            if tenant is None:
                return
            turn = place.waiting[tenant][0]
            self._forget(tenant, host, turn)
            if tenant in place.waiting:
                place.waiting[tenant] = place.waiting.pop(tenant)
            if not turn.cancelled():
                self._take(tenant, place)
                turn.set_result(None)
