"""Connections to the CDN listener with small TCP buffers."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.cdn_listener import Listener

WHOLE = random.Random(3).randbytes(256 << 10)


@asynccontextmanager
async def slow_line(listener: Listener, *lines: str) -> AsyncIterator[socket.socket]:
    loop = asyncio.get_running_loop()
    with socket.socket() as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        line.setblocking(False)
        await loop.sock_connect(line, ("127.0.0.1", listener.port))
        await loop.sock_sendall(line, "\r\n".join([*lines, "Host: x", "", ""]).encode())
        yield line
