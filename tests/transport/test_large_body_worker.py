from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from pyservice.errors import ServiceError
from pyservice.transport.large_body_worker import LargeBodyWorker

pytestmark = pytest.mark.anyio


async def test_loop_continues_while_a_large_request_is_parsed() -> None:
    go_on = threading.Event()
    reading = asyncio.create_task(LargeBodyWorker().run(b"a", lambda: go_on.wait(20)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, go_on.set)
    assert await reading is True


async def test_exception_in_the_thread_reaches_the_caller() -> None:
    def refuse() -> None:
        raise ServiceError("BODY_INVALID")

    with pytest.raises(ServiceError, match="BODY_INVALID"):
        await LargeBodyWorker().run(b"a", refuse)


async def test_sender_of_many_requests_delays_another_by_one_at_most() -> None:
    apart, order, go_on = LargeBodyWorker(), list[str](), threading.Event()

    def work(name: str) -> Callable[[], None]:
        def read() -> None:
            go_on.wait(20)
            order.append(name)

        return read

    tasks = [asyncio.create_task(apart.run(b"many", work(f"many {n}"))) for n in range(5)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(apart.run(b"one", work("one"))))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*tasks)
    assert order == ["many 0", "many 1", "one", "many 2", "many 3", "many 4"]


async def test_requests_over_the_limit_of_one_sender_are_rejected() -> None:
    apart, go_on = LargeBodyWorker(), threading.Event()
    tasks = [asyncio.create_task(apart.run(b"many", lambda: go_on.wait(20))) for _ in range(33)]
    await asyncio.sleep(0)
    with pytest.raises(ServiceError, match="OVERLOADED"):
        await tasks[-1]
    other = asyncio.create_task(apart.run(b"other", lambda: "read"))
    go_on.set()
    assert await other == "read"
    await asyncio.gather(*tasks[:-1])


async def test_cancelled_request_keeps_the_thread_until_it_is_done() -> None:
    apart, go_on, read = LargeBodyWorker(), threading.Event(), list[str]()
    first = asyncio.create_task(apart.run(b"gone", lambda: go_on.wait(20)))
    await asyncio.sleep(0)
    waiting_task = asyncio.create_task(apart.run(b"gone", lambda: read.append("gone")))
    other = asyncio.create_task(apart.run(b"other", lambda: read.append("other")))
    await asyncio.sleep(0)
    for _ in range(2):
        for task in (first, waiting_task):
            task.cancel()
            await asyncio.sleep(0)
    # The cancelled request left the queue, and no request follows while the thread is busy.
    assert (waiting_task.cancelled(), first.done(), other.done()) == (True, False, False)
    assert apart._thread._work_queue.qsize() == 0
    go_on.set()
    await asyncio.gather(first, other, return_exceptions=True)
    assert first.cancelled()
    assert read == ["other"]
    assert len(apart._turns) == 0


async def test_exception_after_cancellation_is_ignored() -> None:
    apart, go_on = LargeBodyWorker(), threading.Event()

    def refuse() -> None:
        go_on.wait(20)
        raise ServiceError("BODY_INVALID")

    reading = asyncio.create_task(apart.run(b"a", refuse))
    await asyncio.sleep(0)
    reading.cancel()
    asyncio.get_running_loop().call_later(0.01, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await apart.run(b"a", lambda: "read") == "read"
