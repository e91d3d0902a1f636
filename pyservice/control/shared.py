"""Reads of the records that many ask for at the same time, as those do who watch what has just changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")


class Shared(Generic[Key, Result]):
    """A read that all who ask for the same in one turn of the loop have in common. Whoever comes later has it anew:
    nobody is told what was read before they asked.
    """

    def __init__(self) -> None:
        self._wanted: dict[Key, list[asyncio.Future[Result]]] = {}
        self._reading: set[asyncio.Task[None]] = set()

    async def get(self, key: Key, read: Callable[[], Awaitable[Result]]) -> Result:
        """The result of a read that begins after this call; nobody may change it. Raises what the read raises."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        waiting = self._wanted.get(key)
        if waiting is None:
            self._wanted[key] = [future]
            # A task of its own: it goes on for the others when the first of them goes away.
            task = asyncio.create_task(self._read(key, read))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        else:
            waiting.append(future)
        return await future

    async def _read(self, key: Key, read: Callable[[], Awaitable[Result]]) -> None:
        waiting = self._wanted.pop(key)
        try:
            result = await read()
        except Exception as error:  # noqa: BLE001 — it is told to everybody who waits for it
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for future in waiting:
                if not future.done():
                    future.set_result(result)
