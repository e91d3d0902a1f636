from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from pyservice.concurrency.single_flight import SingleFlight

pytestmark = pytest.mark.anyio


class Work:
    def __init__(self, flights: SingleFlight[str, list[int]]) -> None:
        self.flights = flights
        self.number = 0
        self.started: list[str] = []
        self.ended: list[str] = []
        self.go_on = asyncio.Event()

    async def _work(self, key: str) -> list[int]:
        self.started.append(key)
        number = self.number
        try:
            await self.go_on.wait()
            if key == "bad":
                raise ValueError(number)
            return [number]
        finally:
            self.ended.append(key)

    async def call(self, *keys: str) -> list[asyncio.Task[list[int]]]:
        tasks = [
            asyncio.create_task(self.flights.run(key, lambda key=key: self._work(key)))  # type: ignore[misc]
            for key in keys
        ]
        await settled()
        return tasks


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await settled()


@pytest.fixture(params=[False, True], ids=["joins running", "fresh"])
def shared(request: pytest.FixtureRequest) -> Work:
    return Work(SingleFlight(is_fresh=request.param))


async def test_concurrent_callers_share_one_result(shared: Work) -> None:
    tasks = await shared.call("a", "b", "a", "a", "b")
    shared.go_on.set()
    results = await asyncio.gather(*tasks)
    assert (shared.started, results) == (["a", "b"], [[0]] * 5)
    assert results[0] is results[2] is results[3]
    assert results[0] is not results[1]
    await settled()
    assert len(shared.flights) == 0
    shared.number = 1
    assert await (await shared.call("a"))[0] == [1]


async def test_failure_is_raised_for_all_callers_and_not_stored(shared: Work) -> None:
    shared.go_on.set()
    results = await asyncio.gather(*await shared.call("bad", "bad"), return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError]
    assert shared.started == ["bad"]
    assert await (await shared.call("good"))[0] == [0]


async def test_cancelled_caller_does_not_affect_others(shared: Work) -> None:
    [cancelled, *others] = await shared.call("a", "a", "a")
    await cancel(cancelled)
    shared.go_on.set()
    assert await asyncio.gather(*others) == [[0], [0]]
    assert shared.started == ["a"]


@pytest.mark.parametrize(("is_fresh", "expected"), [(False, [[0], [0]]), (True, [[0], [1]])])
async def test_only_a_caller_that_accepts_old_results_joins_a_started_run(
    is_fresh: bool, expected: list[list[int]]
) -> None:
    work = Work(SingleFlight(is_fresh=is_fresh))
    tasks = await work.call("a")
    work.number = 1
    tasks += await work.call("a")
    work.go_on.set()
    assert await asyncio.gather(*tasks) == expected


async def test_run_ends_with_its_last_caller() -> None:
    work = Work(SingleFlight())
    first, second = await work.call("a", "a")
    await cancel(first)
    assert work.ended == []
    second.cancel()
    await asyncio.sleep(0)
    # A caller beside the cancelled run starts a new one.
    [third] = await work.call("a")
    assert (work.started, work.ended) == (["a", "a"], ["a"])
    work.go_on.set()
    assert await third == [0]
    await settled()
    assert len(work.flights) == 0


@pytest.mark.parametrize("is_kept_later", [False, True])
async def test_kept_run_continues_without_callers(
    is_kept_later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(SingleFlight(is_kept=not is_kept_later))
    tasks = await work.call("a", "bad")
    if is_kept_later:
        work.flights.keep("a")
        work.flights.keep("bad")
    await cancel(*tasks)
    assert ("a" in work.flights, work.ended) == (True, [])
    [joined] = await work.call("a")
    assert work.started == ["a", "bad"]
    work.go_on.set()
    assert await joined == [0]
    await settled()
    gc.collect()
    # The error of a run without callers is not reported as unretrieved.
    assert (len(work.flights), caplog.messages) == (0, [])


async def test_stop_cancels_kept_runs_and_waits_for_their_end() -> None:
    work = Work(SingleFlight(is_kept=True))
    [caller] = await work.call("a")
    await work.flights.stop()
    assert work.ended == ["a"]
    with pytest.raises(asyncio.CancelledError):
        await caller
