"""Game server that answers the queries of Quake 3."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast


def status(players: int) -> bytes:
    return b"\xff\xff\xff\xffstatusResponse\n\\mapname\\q3dm17\n" + b'7 40 "Anna"\n' * players


class QuakeServer(asyncio.DatagramProtocol):
    """Game server with three players, which changes its answers."""

    def __init__(self) -> None:
        self.answers: Callable[[], list[bytes]] = lambda: [status(3)]
        self.queries = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        self.queries += 1
        for answer in self.answers():
            self.transport.sendto(answer, address)

    def error_received(self, error: Exception) -> None:
        """Ignores that the socket of an earlier query is closed."""
