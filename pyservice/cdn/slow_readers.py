"""Detection of clients that read too slowly, and the lingering close of HTTP connections."""

from __future__ import annotations

import asyncio
from typing import Final

from pyservice.transport.native import acked_bytes

MIN_BYTES_PER_SECOND: Final = 1024
"""Minimum read rate. A client that reads fewer bytes per second is closed."""
LINGER_POLL_INTERVAL_S: Final = 2.5
LINGER_MAX_S: Final = 30.0
"""Time that a client may continue to send after the last byte of the response was written."""

_SILENT_POLLS: Final = 2
"""Number of silent polls in a row that end a connection. A single one may be a delay of the server.
"""


class ReadProgress:
    """Progress of a client that reads a response, measured by TCP acknowledgements.

    The server's own buffers shrink in large steps with long pauses, so they do not show progress.
    """

    __slots__ = ("_polled_s", "_read_bytes", "_transport")

    def __init__(self, transport: asyncio.Transport, now_s: float) -> None:
        self._transport = transport
        self._polled_s = now_s
        self._read_bytes = _acked_bytes(transport)

    def has_advanced(self, now_s: float) -> bool:
        before, polled_s = self._read_bytes, self._polled_s
        self._read_bytes, self._polled_s = _acked_bytes(self._transport), now_s
        return self._read_bytes - before >= max(MIN_BYTES_PER_SECOND * (now_s - polled_s), 1)


def unread_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the server has not yet passed to the kernel."""
    return transport.get_write_buffer_size()


def _acked_bytes(transport: asyncio.Transport) -> int:
    """Returns the number of bytes that the client acknowledged.

    Without TCP information, returns a number that grows as the write buffer empties.
    """
    connection = transport.get_extra_info("socket")
    acked = None if connection is None else acked_bytes(connection.fileno())
    return -transport.get_write_buffer_size() if acked is None else acked


class LingeringClose:
    """Lingering close of a connection after its last response.

    An immediate close would reset the connection, and many clients would lose the response. So
    incoming bytes are read and dropped for a limited time.
    """

    def __init__(self, transport: asyncio.Transport, now_s: float, read_timeout_s: float) -> None:
        self._transport = transport
        self._read_progress = ReadProgress(transport, now_s)
        self._read_timeout_s = read_timeout_s
        self._next_read_check_s = now_s + read_timeout_s
        self._ends_s = now_s + LINGER_MAX_S
        self._silent_polls = 0

    def on_data(self) -> None:
        self._silent_polls = 0

    def should_linger(self, now_s: float) -> bool:
        """Returns whether to keep the connection open. Call it every LINGER_POLL_INTERVAL_S."""
        if unread_bytes(self._transport):
            self._silent_polls, self._ends_s = 0, now_s + LINGER_MAX_S
            return self._is_reading(now_s)
        self._silent_polls += 1
        return self._silent_polls < _SILENT_POLLS and now_s < self._ends_s

    def _is_reading(self, now_s: float) -> bool:
        if now_s < self._next_read_check_s:
            return True
        self._next_read_check_s = now_s + self._read_timeout_s
        return self._read_progress.has_advanced(now_s)
