"""Concurrent reads that share one result."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from pyservice.control.batching import SingleFlight

pytestmark = pytest.mark.anyio


class Reader:
    def __init__(self) -> None:
        self.number = 0
        self.reads: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def read(self, key: str) -> list[int]:
        self.reads.append(key)
        number = self.number
        await self.go_on.wait()
        if key == "bad":
            raise ValueError(number)
        return [number]


async def test_concurrent_callers_share_one_result() -> None:
    reader, shared = Reader(), SingleFlight[str, list[int]]()
    keys = ["a", "b", "a", "a", "b"]
    results = await asyncio.gather(*(shared.get(key, partial(reader.read, key)) for key in keys))
    assert reader.reads == ["a", "b"]
    assert results == [[0]] * 5
    assert results[0] is results[2] is results[3]
    assert results[0] is not results[1]


async def test_caller_during_a_read_gets_a_new_read() -> None:
    reader, shared = Reader(), SingleFlight[str, list[int]]()
    reader.go_on.clear()
    first = asyncio.create_task(shared.get("a", lambda: reader.read("a")))
    while not reader.reads:
        await asyncio.sleep(0)
    reader.number = 1
    second = asyncio.create_task(shared.get("a", lambda: reader.read("a")))
    await asyncio.sleep(0)
    reader.go_on.set()
    assert (await first, await second) == ([0], [1])


async def test_cancelled_caller_does_not_affect_others() -> None:
    reader, shared = Reader(), SingleFlight[str, list[int]]()
    reader.go_on.clear()
    several = [asyncio.create_task(shared.get("a", lambda: reader.read("a"))) for _ in range(3)]
    while not reader.reads:
        await asyncio.sleep(0)
    several[0].cancel()
    reader.go_on.set()
    results = await asyncio.gather(*several, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [[0], [0]]
    assert reader.reads == ["a"]


async def test_failure_is_raised_for_all_and_not_stored() -> None:
    reader, shared = Reader(), SingleFlight[str, list[int]]()
    several = [shared.get("bad", lambda: reader.read("bad")) for _ in range(2)]
    results = await asyncio.gather(*several, return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError]
    assert await shared.get("good", lambda: reader.read("good")) == [0]
