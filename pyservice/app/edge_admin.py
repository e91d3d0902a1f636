"""Edge-guard's socket for administration: how it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 1 << 20


async def ask(folder: Path, path: str, within_s: float) -> tuple[int, bytes]:
    """Status and body of what the edge-guard of this folder answers. Raises OSError, also when it does not answer in
    time, and ValueError when that is no HTTP.
    """
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_unix_connection(str(folder / "admin.sock"))
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: edge-guard\r\n\r\n".encode())
            answer = b""
            while (piece := await reader.read(65_536)) and len(answer) < _MOST_BYTES:
                answer += piece
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    _, status, *_ = head.split(b" ")
    return int(status), body
