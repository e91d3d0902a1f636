"""Whether a client reads what is written to it: one rule for every listener that speaks HTTP.

Who asks looks at intervals of its own and cuts off whoever is stuck. What counts is what the other side's kernel has
acknowledged: our own buffers empty in leaps of a third of a socket's buffer, which may be far apart.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

LEAST_BYTES_A_SECOND: Final = 1024
"""Whoever reads less than this is stuck."""

_BYTES_ACKED: Final = struct.Struct("=120xQ")
"""Where `struct tcp_info` of Linux has them."""


class Reading:
    """What a client has read when it was last looked at."""

    __slots__ = ("_looked_s", "_seen", "_transport")

    def __init__(self, transport: asyncio.Transport, now_s: float) -> None:
        self._transport = transport
        self._looked_s = now_s
        self._seen = _read_bytes(transport)

    def goes_on(self, now_s: float) -> bool:
        """Whether it has read enough since the last look; looks."""
        seen, looked_s = self._seen, self._looked_s
        self._seen, self._looked_s = _read_bytes(self._transport), now_s
        return self._seen - seen >= max(LEAST_BYTES_A_SECOND * (now_s - looked_s), 1)


def unread_bytes(transport: asyncio.Transport) -> int:
    """What is written to it and has not even come to the kernel."""
    return transport.get_write_buffer_size()


def _read_bytes(transport: asyncio.Transport) -> int:
    """How many bytes the other side has taken since it connected. Of what is no TCP, a number that goes up when our
    buffer goes down.
    """
    connection = transport.get_extra_info("socket")
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
        (acked,) = _BYTES_ACKED.unpack(info)
    except (OSError, AttributeError, struct.error):
        return -transport.get_write_buffer_size()
    return int(acked)
