"""Supervision of no edge-guard: in a cluster, each node has its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class AbsentEdgeGuard:
    """Has the interface of `supervision.EdgeGuard` that the supervisor needs."""

    async def keep(
        self, stop: asyncio.Event, first_use: asyncio.Event, on_failure: Callable[[], None]
    ) -> None:
        await stop.wait()

    async def leave(self, forced: asyncio.Event) -> bool:
        return True

    def reload(self) -> None:
        pass
