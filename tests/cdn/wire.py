"""What a client says byte by byte, where a polite library would not let it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S


class Wire:
    """One raw connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str, client: str = "127.0.0.1") -> Wire:
        """From this address."""
        where = urlsplit(url)
        local = (client, 0)
        return cls(*await asyncio.open_connection(where.hostname, where.port, local_addr=local))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def put_head(self, url: str, *lines: str) -> None:
        where = urlsplit(url)
        head = [f"PUT {where.path}?{where.query} HTTP/1.1", "Host: x", *lines, "", ""]
        await self.send("\r\n".join(head).encode())

    async def answer(self, timeout_s: float = PATIENCE_S) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        async with asyncio.timeout(timeout_s):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body

    async def is_closed(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether the other side ends the connection in time, without another word."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._reader.read() == b""
        except ConnectionError:
            return True

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


Connect = Callable[..., Awaitable[Wire]]
"""To a URL, from an address as in `Wire.open`."""
