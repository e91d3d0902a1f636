"""What is wanted at the same time, done at once: one look at the records, one call for many messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_ONCE: Final = 64


class Batches(Generic[Item, Result]):
    """Collects what comes while a batch is under way; it goes with the next one, so nobody waits for company."""

    def __init__(self, work: Callable[[list[Item]], Awaitable[Sequence[Result]]]) -> None:
        """`work` gives one result per item, in their order."""
        self._work = work
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._working: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Result:
        """The result of one, by work that begins after this call. Raises what the work raises."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._working is None:
            self._working = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
            try:
                results = await self._work([item for item, _ in batch])
            except Exception as error:  # noqa: BLE001 — it is told to everybody who waits for it
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        self._working = None
