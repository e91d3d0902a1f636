from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from pyservice.runtime.run_supervisor import BatchedThreads
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

THREADS = 3


@pytest.fixture
def workers() -> Iterator[BatchedThreads]:
    threads = BatchedThreads(THREADS, "test")
    yield threads
    threads.close()


async def test_concurrent_calls_each_get_their_result(workers: BatchedThreads) -> None:
    results = await asyncio.gather(*(workers.do(partial(pow, n, 2)) for n in range(500)))
    assert results == [n * n for n in range(500)]


async def test_calls_after_an_idle_time_run(workers: BatchedThreads) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for number in range(300):
            assert await workers.do(partial(int, number)) == number


async def test_exception_reaches_its_caller(workers: BatchedThreads) -> None:
    def fails() -> None:
        raise OSError("full")

    result = await asyncio.gather(
        workers.do(fails), workers.do(lambda: "done"), return_exceptions=True
    )
    assert isinstance(result[0], OSError)
    assert result[1] == "done"


async def test_hanging_call_blocks_no_other_while_a_thread_is_free(workers: BatchedThreads) -> None:
    released = threading.Event()
    hanging = [asyncio.create_task(workers.do(released.wait)) for _ in range(THREADS - 1)]
    try:
        async with asyncio.timeout(PATIENCE_S):
            others = await asyncio.gather(*(workers.do(lambda: True) for _ in range(50)))
        assert others == [True] * 50
        assert not any(task.done() for task in hanging)
    finally:
        released.set()
    assert await asyncio.gather(*hanging) == [True] * (THREADS - 1)


async def test_cancelled_call_is_not_started(workers: BatchedThreads) -> None:
    released, has_begun = threading.Event(), threading.Event()
    hanging = [asyncio.create_task(workers.do(released.wait)) for _ in range(THREADS)]
    given_up = asyncio.create_task(workers.do(has_begun.set))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    released.set()
    await asyncio.gather(*hanging)
    await workers.do(lambda: None)
    assert not has_begun.is_set()


async def test_ending_thread_takes_calls_that_arrive_meanwhile(workers: BatchedThreads) -> None:
    """Each wave of calls arrives when the threads are about to end."""
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(300):
            waves = await asyncio.gather(*(workers.do(threading.get_ident) for _ in range(2)))
            assert len(waves) == 2
