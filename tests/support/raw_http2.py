"""gRPC calls over hand-written HTTP/2 frames, for clients that never finish a message."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self

from tests.support.waiting import PATIENCE_S

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_FRAME_MAX: Final = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0)


def _field(name: str, value: str) -> bytes:
    coded = b"\0"
    for text in (name.encode(), value.encode()):
        assert len(text) < 127
        coded += bytes([len(text)]) + text
    return coded


class RawCalls:
    """One HTTP/2 connection. Its streams have the numbers 1, 3, 5 and so on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._initial = 65_535
        self._window = 65_535
        self._windows: dict[int, int] = {}
        self._changed = asyncio.Event()
        self.ended: set[int] = set()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, host: str, port: int, client: str = "127.0.0.1") -> Self:
        streams = await asyncio.open_connection(host, port, local_addr=(client, 0))
        streams[1].write(PREFACE)
        return cls(*streams)

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()

    def begin(self, stream: int, path: str, metadata: Mapping[str, str] | None = None) -> None:
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
            **(metadata or {}),
        }
        head = b"".join(_field(*field) for field in fields.items())
        self._windows[stream] = self._initial
        self._writer.write(_frame(_HEADERS, _END_HEADERS, stream, head))

    def reset(self, stream: int) -> None:
        self._writer.write(_frame(_RESET, 0, stream, (8).to_bytes(4, "big")))

    async def send(self, stream: int, data: bytes, *, is_last: bool = False) -> int:
        """Sends data until all is sent or the server ends the call. Returns the number of bytes
        sent.
        """
        sent_bytes = 0
        while sent_bytes < len(data) and stream not in self.ended:
            size = min(len(data) - sent_bytes, _FRAME_MAX, self._window, self._windows[stream])
            if size <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            self._window -= size
            self._windows[stream] -= size
            self._writer.write(_frame(_DATA, 0, stream, data[sent_bytes : sent_bytes + size]))
            sent_bytes += size
            await self._writer.drain()
        if is_last:
            self._writer.write(_frame(_DATA, _END_STREAM, stream))
        return sent_bytes

    async def wait_ended(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.ended) < number:
                self._changed.clear()
                await self._changed.wait()

    async def wait_gone(self) -> None:
        await asyncio.wait({self._listening})
        assert isinstance(
            self._listening.exception(), (asyncio.IncompleteReadError, ConnectionError)
        )

    async def _listen(self) -> None:
        while True:
            head = await self._reader.readexactly(9)
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            if kind == _SETTINGS and not flags & _ACK:
                self._take_settings(payload)
            elif kind == _WINDOW:
                more = int.from_bytes(payload, "big")
                if stream:
                    self._windows[stream] += more
                else:
                    self._window += more
            elif kind == _PING and not flags & _ACK:
                self._writer.write(_frame(_PING, _ACK, 0, payload))
            elif kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                self.ended.add(stream)
            self._changed.set()

    def _take_settings(self, payload: bytes) -> None:
        for start in range(0, len(payload), 6):
            name, value = struct.unpack(">HI", payload[start : start + 6])
            if name == 4:
                more, self._initial = value - self._initial, value
                for stream in self._windows:
                    self._windows[stream] += more
        self._writer.write(_frame(_SETTINGS, _ACK, 0))


def message_of(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big") + b"x" * size
