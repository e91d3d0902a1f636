"""Attempt to connect to an address over TCP."""

from __future__ import annotations

import asyncio
from typing import Final

_TIMEOUT_S: Final = 2.0


async def accepts_connections(address: str) -> bool:
    """Returns whether `host:port` accepts a connection within 2 s. Closes the connection at once."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    await writer.wait_closed()
    return True
