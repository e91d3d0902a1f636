"""Wait for the ports of game servers in Pods, by TCP connections that are closed at once."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from pyservice.runtime.adapter_watch import WatchedRun
from pyservice.runtime.run_requests import Backend

_INTERVAL_S: Final = 0.25
_TIMEOUT_S: Final = 0.5
_CONNECTIONS_MAX: Final = 64
"""Connections that are opened at once."""


class PodPorts:
    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_CONNECTIONS_MAX)

    async def wait_listening(self, run: WatchedRun, port: str) -> None:
        """Waits until the port accepts a TCP connection at the address of the Pod."""
        while True:
            backend = run.backends.get(port)
            if backend is not None:
                async with self._free:
                    if await _is_listening(backend):
                        return
            await asyncio.sleep(_INTERVAL_S)


async def _is_listening(backend: Backend) -> bool:
    family = socket.AF_INET6 if ":" in backend[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(connection, backend)
        except OSError:
            return False
    return True
