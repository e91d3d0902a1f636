"""Messages of namespaces that are wanted at the same time, made from one look at the records."""

from __future__ import annotations

import asyncio
from typing import Final

from pyservice.control.feeding import Composer, Wish
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.storage.database import Database

_AT_ONCE: Final = 64

_Waiting = tuple[Wish, "asyncio.Future[pb.NamespaceConfiguration | None]"]


class Composing:
    """Collects wishes while the records are asked for those before them."""

    def __init__(self, database: Database, composer: Composer) -> None:
        self._database = database
        self._composer = composer
        self._waiting: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None

    async def compose(self, wish: Wish) -> pb.NamespaceConfiguration | None:
        """The message, from a state of the records not older than the call. Raises what the database raises."""
        future: asyncio.Future[pb.NamespaceConfiguration | None]
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((wish, future))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
            try:
                async with self._database.read() as tx:
                    made = await self._composer.compose_all(tx, [wish for wish, _ in batch])
            except Exception as error:  # noqa: BLE001 — it is told to everybody who waits for it
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), message in zip(batch, made, strict=True):
                if not future.done():
                    future.set_result(message)
        self._working = None
