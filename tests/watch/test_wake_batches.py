"""Watches that wake together: a few in each loop iteration, each once, none forgotten."""

from __future__ import annotations

import asyncio

import pytest

from pyservice.calls import WaitForChange
from pyservice.watch import WAKE_UPS_PER_TURN, Change, Changes, LongPolls, WaitingRequest
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

COUNT = 3 * WAKE_UPS_PER_TURN + 1
NEWS = Changes("r", 2, (Change("a", 2),), is_complete=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Request(WaitingRequest):
    def __init__(self, woken: list[tuple[Request, bool]]) -> None:
        super().__init__()
        self._woken = woken

    def resume(self, *, is_over: bool) -> None:
        self._woken.append((self, is_over))


class ParkedRequests:
    def __init__(self, waiters: LongPolls) -> None:
        self.woken: list[tuple[Request, bool]] = []
        self.requests = [Request(self.woken) for _ in range(COUNT)]
        for request in self.requests:
            waiters.add(request, WaitForChange(("a",), 1, "r"))

    async def all_woken(self) -> list[int]:
        """Returns the number of woken requests after each loop iteration, until the number stays."""
        counts = [len(self.woken)]
        while True:
            await asyncio.sleep(0)
            if len(self.woken) == counts[-1]:
                return counts
            counts.append(len(self.woken))


async def test_requests_wake_in_small_batches_in_order() -> None:
    waiters = LongPolls()
    parked = ParkedRequests(waiters)
    waiters.take("r", NEWS)
    counts = await parked.all_woken()
    assert counts == [WAKE_UPS_PER_TURN, 2 * WAKE_UPS_PER_TURN, 3 * WAKE_UPS_PER_TURN, COUNT]
    assert parked.woken == [(request, False) for request in parked.requests]
    assert len(waiters) == 0


async def test_expired_requests_wake_in_small_batches() -> None:
    waiters = LongPolls(wait_ms=50)
    parked = ParkedRequests(waiters)
    before = 0
    async with asyncio.timeout(PATIENCE_S):
        while len(waiters):
            await asyncio.sleep(0)
            assert len(parked.woken) - before <= WAKE_UPS_PER_TURN
            before = len(parked.woken)
    assert sorted(map(id, parked.requests)) == sorted(id(request) for request, _ in parked.woken)
    assert all(is_over for _, is_over in parked.woken)


async def test_dropped_request_is_not_woken() -> None:
    waiters = LongPolls()
    parked = ParkedRequests(waiters)
    waiters.take("r", NEWS)
    for request in parked.requests[WAKE_UPS_PER_TURN:]:
        waiters.drop(request)
    await parked.all_woken()
    assert len(parked.woken) == WAKE_UPS_PER_TURN
    assert len(waiters) == 0


async def test_further_change_wakes_no_request_twice() -> None:
    waiters = LongPolls()
    parked = ParkedRequests(waiters)
    waiters.take("r", NEWS)
    waiters.take("r", Changes("r", 3, (Change("a", 3),), is_complete=True))
    await parked.all_woken()
    assert len(parked.woken) == COUNT


async def test_request_parked_again_waits_for_the_next_change() -> None:
    waiters = LongPolls()
    parked = ParkedRequests(waiters)
    waiters.take("r", NEWS)
    again = parked.woken[0][0]
    waiters.add(again, WaitForChange(("a",), 2, "r"))
    await parked.all_woken()
    assert len(parked.woken) == COUNT
    assert len(waiters) == 1
    waiters.take("r", Changes("r", 3, (Change("a", 3),), is_complete=True))
    assert parked.woken[-1] == (again, False)


async def test_new_run_wakes_the_rest_once() -> None:
    waiters = LongPolls()
    parked = ParkedRequests(waiters)
    waiters.take("r", NEWS)
    late = Request(parked.woken)
    other = WaitForChange(("a",), 7, "other")
    waiters.add(late, other)
    assert parked.woken.pop() == (late, False)
    waiters.add(late, other)
    await parked.all_woken()
    assert len(parked.woken) == COUNT
    assert len(waiters) == 1
