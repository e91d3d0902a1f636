"""Raw HTTP client that sends invalid requests byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str, client: str = "127.0.0.1") -> Wire:
        parts = urlsplit(url)
        local = (client, 0)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, local_addr=local))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def put_head(self, url: str, *lines: str) -> None:
        parts = urlsplit(url)
        head = [f"PUT {parts.path}?{parts.query} HTTP/1.1", "Host: x", *lines, "", ""]
        await self.send("\r\n".join(head).encode())

    async def answer(self, timeout_s: float = PATIENCE_S) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(timeout_s):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body

    async def is_closed(self, timeout_s: float = PATIENCE_S) -> bool:
        """Returns whether the server closes the connection in time without more data."""
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
