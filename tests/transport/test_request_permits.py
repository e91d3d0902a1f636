"""Permits for forwarded requests: a share for each token and each address, and a queue."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from ipaddress import ip_address

import pytest

from pyservice.errors import ServiceError
from pyservice.transport.server_budgets import RequestPermits

pytestmark = pytest.mark.anyio


def permit(
    shares: RequestPermits, token: str | None, address: str = "192.0.2.1"
) -> AbstractAsyncContextManager[None]:
    return shares.permit(token if token is None else f"Bearer {token}", ip_address(address))


async def refusal(shares: RequestPermits, token: str | None, address: str = "192.0.2.1") -> str:
    with pytest.raises(ServiceError) as caught:
        async with permit(shares, token, address):
            pass
    assert caught.value.code == "OVERLOADED"
    return caught.value.detail


def short_queue(at_once: int) -> RequestPermits:
    return RequestPermits(at_once, wait_ms=10)


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


class TokenRequests:
    def __init__(self, shares: RequestPermits) -> None:
        self.shares = shares
        self.order: list[str] = []
        self.running: dict[str, list[asyncio.Event]] = {}

    async def _ask(self, token: str, address: str) -> None:
        async with permit(self.shares, token, address):
            done = asyncio.Event()
            self.order.append(token)
            self.running.setdefault(token, []).append(done)
            await done.wait()

    async def arrive(
        self, token: str, count: int = 1, address: str = "192.0.2.1"
    ) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._ask(token, address)) for _ in range(count)]
        await settled()
        return tasks

    async def finish_longest(self, token: str) -> None:
        self.running[token].pop(0).set()
        await settled()


async def test_token_has_a_quarter_and_others_continue() -> None:
    shares = short_queue(8)
    async with AsyncExitStack() as stack:
        for number in range(2):
            await stack.enter_async_context(permit(shares, "cloud_a", f"192.0.2.{number}"))
        assert "2 requests of this token are" in await refusal(shares, "cloud_a", "192.0.2.9")
        async with permit(shares, "cloud_b"):
            assert len(shares) == 3
    assert len(shares) == 0
    async with permit(shares, "cloud_a"):
        pass


@pytest.mark.parametrize(
    "header", ["Bearer cloud_a", "bearer cloud_a", "BEARER   cloud_a ", "bEaReR cloud_a  "]
)
async def test_differently_written_header_is_the_same_token(header: str) -> None:
    shares = short_queue(4)
    async with permit(shares, "cloud_a"):
        with pytest.raises(ServiceError):
            async with shares.permit(header, ip_address("192.0.2.2")):
                pass


async def test_address_has_half_with_any_number_of_tokens() -> None:
    shares = short_queue(8)
    async with AsyncExitStack() as stack:
        for number in range(4):
            await stack.enter_async_context(permit(shares, f"cloud_{number}"))
        assert "4 requests of this client address are" in await refusal(shares, "cloud_x")
        await stack.enter_async_context(permit(shares, "cloud_0", "192.0.2.2"))


@pytest.mark.parametrize("nothing", [None, "nonsense", "cloud_", ""])
async def test_request_without_a_token_counts_by_address(nothing: str | None) -> None:
    shares = short_queue(8)
    async with permit(shares, nothing), permit(shares, None):
        message = await refusal(shares, nothing)
        assert message.startswith(
            "2 requests without a token from your address are being worked on."
        )
        async with permit(shares, nothing, "192.0.2.2"), permit(shares, "cloud_a"):
            pass


async def test_addresses_of_one_ipv6_network_count_together() -> None:
    shares = short_queue(4)
    async with permit(shares, None, "2001:db8::1"):
        assert await refusal(shares, None, "2001:db8::ffff:1")


async def test_total_number_of_permits_is_limited() -> None:
    shares = short_queue(4)
    async with AsyncExitStack() as stack:
        for number in range(4):
            await stack.enter_async_context(permit(shares, f"cloud_{number}", f"192.0.2.{number}"))
        assert "4 requests of all clients are" in await refusal(shares, "cloud_9", "192.0.2.9")


async def test_failed_request_returns_its_permit() -> None:
    shares = short_queue(4)
    with pytest.raises(KeyError):
        async with permit(shares, "cloud_a"):
            raise KeyError
    assert len(shares) == 0


async def test_requests_over_the_share_queue_and_are_served() -> None:
    shares = RequestPermits(8, wait_ms=60_000)
    requests = TokenRequests(shares)
    tasks = await requests.arrive("cloud_a", 6)
    assert (len(shares), shares.waiting) == (2, 4)
    for waiting_count in (3, 2, 1, 0, 0, 0):
        await requests.finish_longest("cloud_a")
        assert shares.waiting == waiting_count
    await asyncio.gather(*tasks)
    assert (len(shares), shares.waiting) == (0, 0)


async def test_queue_of_twice_the_share_rejects_further_requests() -> None:
    shares = RequestPermits(8, wait_ms=60_000)
    requests = TokenRequests(shares)
    tasks = await requests.arrive("cloud_a", 6)
    assert "2 requests of this token are" in await refusal(shares, "cloud_a")
    for number in range(20):
        tasks += await requests.arrive(f"cloud_{number}", 3, "192.0.2.2")
    assert shares.waiting == 4 + 8
    assert sum(task.done() for task in tasks) == 60 - 4 - 8
    tasks += [
        task
        for number in range(9)
        for task in await requests.arrive("cloud_z", 2, f"10.0.0.{number}")
    ]
    assert shares.waiting <= 16
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (len(shares), shares.waiting) == (0, 0)


async def test_tokens_are_served_in_rotation() -> None:
    shares = RequestPermits(4, wait_ms=60_000)
    requests = TokenRequests(shares)
    tasks = [
        task
        for number in range(4)
        for task in await requests.arrive(f"cloud_x{number}", 1, f"10.0.0.{number}")
    ]
    tasks += await requests.arrive("cloud_a", 2) + await requests.arrive("cloud_b", 2)
    tasks += await requests.arrive("cloud_c", 1, "192.0.2.2")
    requests.order.clear()
    for number in range(3):
        await requests.finish_longest(f"cloud_x{number}")
    # The first two tokens share an address, which has half of all permits.
    assert requests.order == ["cloud_a", "cloud_b", "cloud_c"]
    await requests.finish_longest("cloud_x3")
    assert requests.order == ["cloud_a", "cloud_b", "cloud_c"]
    await requests.finish_longest("cloud_b")
    await requests.finish_longest("cloud_a")
    assert requests.order == ["cloud_a", "cloud_b", "cloud_c", "cloud_b", "cloud_a"]
    for token in ("cloud_a", "cloud_b", "cloud_c"):
        await requests.finish_longest(token)
    await asyncio.gather(*tasks)


async def test_queued_request_times_out() -> None:
    shares = short_queue(4)
    requests = TokenRequests(shares)
    [first, *others] = await requests.arrive("cloud_a", 3)
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert [getattr(answer, "code", "") for answer in answers] == ["OVERLOADED"] * 2
    assert (len(shares), shares.waiting) == (1, 0)
    await requests.finish_longest("cloud_a")
    await first


async def test_cancelled_request_leaves_the_queue() -> None:
    shares = RequestPermits(4, wait_ms=60_000)
    requests = TokenRequests(shares)
    [first, second, third] = await requests.arrive("cloud_a", 3)
    second.cancel()
    # The permit is free at the same moment, and the next request gets it.
    requests.running["cloud_a"].pop(0).set()
    await settled()
    assert (len(shares), shares.waiting, requests.order) == (1, 0, ["cloud_a"] * 2)
    await requests.finish_longest("cloud_a")
    await asyncio.gather(first, third)
    assert second.cancelled()


async def test_permit_for_a_cancelled_request_passes_to_the_next() -> None:
    shares = RequestPermits(4, wait_ms=60_000)
    requests = TokenRequests(shares)
    async with permit(shares, "cloud_a"):
        [cancelled, next_one] = await requests.arrive("cloud_a", 2)
    assert (len(shares), shares.waiting, requests.order) == (1, 1, [])
    cancelled.cancel()
    await settled()
    assert (len(shares), shares.waiting, requests.order) == (1, 0, ["cloud_a"])
    await requests.finish_longest("cloud_a")
    await next_one
    assert (cancelled.cancelled(), len(shares)) == (True, 0)


async def test_returned_permit_may_serve_a_token_and_an_address() -> None:
    shares = RequestPermits(8, wait_ms=60_000)
    requests = TokenRequests(shares)
    # Limit of two for each token and four for each address: both are reached.
    tasks = await requests.arrive("env_a", 2)
    tasks += await requests.arrive("env_b", 2)
    tasks += await requests.arrive("env_c")
    tasks += await requests.arrive("env_a", address="192.0.2.2")
    assert (len(shares), shares.waiting) == (4, 2)
    requests.running["env_a"].pop(0).set()
    await settled()
    assert (len(shares), shares.waiting) == (5, 0)
    for events in requests.running.values():
        for event in events:
            event.set()
    await asyncio.gather(*tasks)
