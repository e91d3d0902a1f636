from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_ONCE: Final = 64
BYTES_AT_ONCE: Final = 1024 * 1024
"""Bounds the time that an item waits for the batch before it."""


class _WaitingItem(NamedTuple, Generic[Item, Result]):
    item: Item
    group: str
    size: int
    future: asyncio.Future[Result]


class Batcher(Generic[Item, Result]):
    """Processes concurrent items in batches. New items collect while a batch is processed.

    A batch has at most 64 items and 1 MiB. A larger item is processed alone. Groups of items take
    turns, with one item in each turn.
    """

    def __init__(
        self,
        work: Callable[[list[Item]], Awaitable[Sequence[Result]]],
        *,
        at_once: int = _AT_ONCE,
        size_of: Callable[[Item], int] = lambda item: 0,
        is_of_one: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        """`work` processes a batch and returns one result for each item, in order.

        `is_of_one` returns True for an error that a single item can cause. After such an error,
        each item is processed alone.
        """
        self._work = work
        self._at_once = at_once
        self._size_of = size_of
        self._is_of_one = is_of_one
        self._waiting: list[_WaitingItem[Item, Result]] = []
        self._working: asyncio.Task[None] | None = None

    async def add(self, item: Item, group: str = "") -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingItem(item, group, self._size_of(item), future))
        if self._working is None:
            self._working = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while batch := self._next():
            error = await self._do(batch)
            if error is None:
                continue
            if len(batch) > 1 and self._is_of_one(error):
                for waiting in batch:
                    error = await self._do([waiting])
                    if error is not None:
                        _fail([waiting], error)
            else:
                _fail(batch, error)
        self._working = None

    def _next(self) -> list[_WaitingItem[Item, Result]]:
        self._waiting = _in_turns(waiting for waiting in self._waiting if not waiting.future.done())
        count, size = 0, 0
        for waiting in self._waiting[: self._at_once]:
            size += waiting.size
            if count and size > BYTES_AT_ONCE:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _do(self, batch: Sequence[_WaitingItem[Item, Result]]) -> Exception | None:
        try:
            results = await self._work([waiting.item for waiting in batch])
        except Exception as error:  # noqa: BLE001 — passed to the callers
            return error
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.future.done():
                waiting.future.set_result(result)
        return None


def _in_turns(
    several: Iterable[_WaitingItem[Item, Result]],
) -> list[_WaitingItem[Item, Result]]:
    turns: Counter[str] = Counter()

    def turn(waiting: _WaitingItem[Item, Result]) -> int:
        turns[waiting.group] += 1
        return turns[waiting.group]

    return sorted(several, key=turn)


def _fail(batch: Sequence[_WaitingItem[Item, Result]], error: Exception) -> None:
    for waiting in batch:
        if not waiting.future.done():
            waiting.future.set_exception(error)
