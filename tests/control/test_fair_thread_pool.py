"""Thread pool with a fair share for each tenant."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from pyservice.control.fair_thread_pool import FairThreadPool

pytestmark = pytest.mark.anyio

WAIT_S = 20.0


class BlockingStep:
    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self._open = threading.Event()

    def step(self) -> str:
        self.has_begun.set()
        assert self._open.wait(WAIT_S)
        return "done"

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.has_begun.wait, WAIT_S)


@pytest.fixture
async def threads() -> AsyncIterator[FairThreadPool]:
    threads = FairThreadPool(threads=2)
    yield threads
    await asyncio.to_thread(threads.close)


async def test_tenant_uses_one_thread(threads: FairThreadPool) -> None:
    first, second = BlockingStep(), BlockingStep()
    several = [asyncio.ensure_future(threads.run("a", blocker.step)) for blocker in (first, second)]
    await first.reached()
    for number in range(20):
        assert await asyncio.wait_for(threads.run(f"b{number % 2}", lambda: "b"), WAIT_S) == "b"
    assert not second.has_begun.is_set()
    first.open()
    await second.reached()
    second.open()
    assert await asyncio.gather(*several) == ["done", "done"]


async def test_tenants_take_turns() -> None:
    threads, order, blocker = FairThreadPool(threads=1), list[str](), BlockingStep()

    def noting(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    holder = asyncio.ensure_future(threads.run("holder", blocker.step))
    await blocker.reached()
    much = [asyncio.ensure_future(threads.run("a", noting("a"))) for _ in range(5)]
    little = [asyncio.ensure_future(threads.run(name, noting(name))) for name in ("b", "c")]
    for _ in range(3):
        await asyncio.sleep(0)
    blocker.open()
    await asyncio.gather(holder, *much, *little)
    assert order == ["a", "b", "c", "a", "a", "a", "a"]
    await asyncio.to_thread(threads.close)


async def test_cancelled_caller_keeps_its_slot_until_the_step_ends(threads: FairThreadPool) -> None:
    blocker, later = BlockingStep(), BlockingStep()
    given_up = asyncio.ensure_future(threads.run("a", blocker.step))
    await blocker.reached()
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    next_one = asyncio.ensure_future(threads.run("a", later.step))
    never = asyncio.ensure_future(threads.run("a", later.step))
    assert await threads.run("b", lambda: 1) == 1
    assert not later.has_begun.is_set()
    never.cancel()
    blocker.open()
    later.open()
    assert await asyncio.wait_for(next_one, WAIT_S) == "done"
    assert await threads.run("a", lambda: 2) == 2
    assert len(threads.queue) == 0


async def test_step_error_is_raised_and_the_slot_is_freed(threads: FairThreadPool) -> None:
    def fail() -> None:
        raise LookupError("no")

    for _ in range(3):
        with pytest.raises(LookupError):
            await threads.run("a", fail)
    assert await threads.run("a", lambda: 1) == 1
