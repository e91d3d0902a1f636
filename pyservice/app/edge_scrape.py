"""Edge-guard's metrics for the service's own page: it has them on a unix socket alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 0.2
_MOST_BYTES: Final = 1 << 20
_REQUEST: Final = b"GET /metrics HTTP/1.0\r\nHost: edge-guard\r\n\r\n"
_UP: Final = (
    "# HELP hosting_edge_up Whether edge-guard answers.\n"
    "# TYPE hosting_edge_up gauge\n"
    "hosting_edge_up {}\n"
)


class EdgeScrape:
    """Asks the edge-guard of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._socket = data_dir / "edge" / "admin.sock"

    async def scrape(self) -> bytes:
        """Its metrics behind `hosting_edge_up`; the 0 alone when it does not answer within 200 ms. Does not raise."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                told = await self._ask()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            told = None
        return _UP.format(int(told is not None)).encode() + (told or b"")

    async def _ask(self) -> bytes | None:
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        try:
            writer.write(_REQUEST)
            answer = b""
            while (piece := await reader.read(65_536)) and len(answer) < _MOST_BYTES:
                answer += piece
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return body if head.split(b" ")[1:2] == [b"200"] else None
