"""Wait for the ports of game servers on this machine, by the table of sockets."""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from pyservice.runtime.adapter_watch import WatchedRun
from pyservice.runtime.listeners import (
    bound_ports,
    find_listeners,
    missing_protocols,
    reached_listeners,
)

_INTERVAL_S: Final = 0.25


class ListeningPorts:
    """Reads the table once for all runs that wait, and opens no connection."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[WatchedRun, str, asyncio.Event]] = {}

    async def wait_listening(self, run: WatchedRun, port: str) -> None:
        """Waits until the sockets of all protocols of the port are in the table."""
        found = asyncio.Event()
        self._waiting[run.id] = run, port, found
        try:
            await found.wait()
        finally:
            del self._waiting[run.id]

    async def run(self) -> NoReturn:
        while True:
            if self._waiting:
                await self._find()
            await asyncio.sleep(_INTERVAL_S)

    async def _find(self) -> None:
        waiting = [
            (run.backends[port][1], run.port_protocols.get(port), found)
            for run, port, found in self._waiting.values()
            if port in run.backends
        ]
        numbers = {number for number, _, _ in waiting}
        listeners = await asyncio.to_thread(lambda: reached_listeners(find_listeners(), numbers))
        bound = bound_ports(listeners)
        for number, protocol, found in waiting:
            if not missing_protocols(number, protocol, bound):
                found.set()
