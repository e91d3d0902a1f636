"""Grouping of concurrent items by `Batcher`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pyservice.control.batching import BYTES_AT_ONCE, Batcher

pytestmark = pytest.mark.anyio


class Poisoned(Exception):
    pass


class Work:
    """Work function that doubles numbers. A negative number fails its whole batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, items: list[int]) -> Sequence[int]:
        await self.go_on.wait()
        self.batches.append(items)
        if min(items) < 0:
            raise Poisoned(str(items))
        return [2 * item for item in items]


async def test_batch_keeps_order_up_to_a_count() -> None:
    work = Work()
    batches = Batcher(work)
    results = await asyncio.gather(*(batches.add(number) for number in range(150)))
    assert results == [2 * number for number in range(150)]
    assert work.batches == [list(range(64)), list(range(64, 128)), list(range(128, 150))]


async def test_groups_take_turns() -> None:
    work = Work()
    work.go_on.clear()
    batches = Batcher(work, at_once=4)
    groups = {"a": range(10), "b": range(10, 13)}
    adding = [
        asyncio.create_task(batches.add(number, group))
        for group, numbers in groups.items()
        for number in numbers
    ]
    await asyncio.sleep(0)
    adding.append(asyncio.create_task(batches.add(20, "c")))
    await asyncio.sleep(0)
    work.go_on.set()
    await asyncio.gather(*adding)
    assert work.batches == [[0, 10, 1, 11], [2, 12, 20, 3], [4, 5, 6, 7], [8, 9]]


async def test_batch_ends_at_the_byte_limit() -> None:
    work = Work()
    work.go_on.clear()
    batches = Batcher(work, size_of=lambda item: item)
    half = BYTES_AT_ONCE // 2
    sizes = [1, half, half, half + 1, 9 * BYTES_AT_ONCE, half, half, 1]
    adding = asyncio.gather(*(batches.add(size) for size in sizes))
    await asyncio.sleep(0)
    work.go_on.set()
    assert await adding == [2 * size for size in sizes]
    assert work.batches == [[1, half], [half], [half + 1], [9 * BYTES_AT_ONCE], [half, half], [1]]


@pytest.mark.parametrize("is_of_one", [True, False])
async def test_failure_fails_the_batch_or_only_its_item(is_of_one: bool) -> None:
    work = Work()
    batches = Batcher(work, is_of_one=lambda error: is_of_one and isinstance(error, Poisoned))
    adding = (batches.add(number) for number in (1, -1, 2))
    results = await asyncio.gather(*adding, return_exceptions=True)
    assert isinstance(results[1], Poisoned)
    if is_of_one:
        assert (results[0], results[2]) == (2, 4)
        assert work.batches == [[1, -1, 2], [1], [-1], [2]]
    else:
        assert {type(one) for one in results} == {Poisoned}
        assert work.batches == [[1, -1, 2]]


async def test_cancelled_items_are_not_processed() -> None:
    work = Work()
    work.go_on.clear()
    batches = Batcher(work)
    adding = [asyncio.create_task(batches.add(number)) for number in range(4)]
    await asyncio.sleep(0)
    late = [asyncio.create_task(batches.add(number)) for number in range(4, 7)]
    await asyncio.sleep(0)
    for task in (adding[0], late[0], late[2]):
        task.cancel()
    await asyncio.sleep(0)
    work.go_on.set()
    assert await asyncio.gather(*adding[1:], late[1]) == [2, 4, 6, 10]
    assert work.batches == [[0, 1, 2, 3], [5]]
