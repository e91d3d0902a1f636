"""Limit on the bytes of one connection that are parsed in one turn of the loop.

Without it, a client that pipelines requests delays all others.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pyservice.edge.client_connection import Connection, ConnectionContext, ConnectionStage
from pyservice.edge.http_messages import Request

# Bytes of a slice: about a hundred of the shortest requests.
_SLICE_BYTES: Final = 2048
_TURN_BYTES: Final = 65_536


class PacedReadingConnection(Connection):
    """A connection that parses in slices.

    Bytes behind a slice stay unparsed in `_rest` while earlier requests wait, and until the next turn of
    the loop if the slice had complete requests. Reading pauses meanwhile.
    """

    def __init__(self, serving: ConnectionContext) -> None:
        super().__init__(serving)
        self._stage = ConnectionStage.IDLE
        self._begins_within_chunk = False
        self._waiting: deque[Request] = deque()
        self._rest = b""
        self._rest_begin = 0
        self._will_read_on = False
        self._is_reading_paused = False

    def _receive(self, data: bytes) -> None:
        raise NotImplementedError

    def _body_to_come_bytes(self) -> int:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        if self._awaits_proxy_header:
            data = self._read_proxy_header(data)
            if not data:
                return
        if self._stage == ConnectionStage.DEAF:
            return
        if len(data) <= _SLICE_BYTES and not self._rest:
            self._receive(data)
            return
        self._rest = self._rest[self._rest_begin :] + data
        self._rest_begin = 0
        if not self._will_read_on:
            self._read_on()

    def _read_on(self) -> None:
        self._will_read_on = True
        left = _TURN_BYTES
        while self._rest and left > 0 and not self._waiting:
            if self._stage == ConnectionStage.DEAF or self.transport.is_closing():
                self._drop_rest()
                break
            piece = self._next_slice()
            left -= len(piece)
            self._receive(piece)
            if self._begins_within_chunk:
                break
        if self._stage == ConnectionStage.DEAF:
            self._drop_rest()
        self._will_read_on = False
        self._pace()

    def _next_slice(self) -> bytes:
        size = _SLICE_BYTES
        if self._stage == ConnectionStage.BODY:
            # Only body bytes follow, so parse them in one piece. Unparsed bytes would be in no budget.
            size = max(size, self._body_to_come_bytes())
        begin = self._rest_begin
        end = self._rest_begin = begin + size
        piece = self._rest[begin:end]
        if end >= len(self._rest):
            self._drop_rest()
        return piece

    def _drop_rest(self) -> None:
        self._rest = b""
        self._rest_begin = 0

    def _pace(self) -> None:
        if self.transport.is_closing():
            return
        if self._rest and not self._waiting and not self._will_read_on:
            self._will_read_on = True
            self.loop.call_soon(self._read_on)
        is_behind = bool(self._waiting or self._rest)
        if is_behind == self._is_reading_paused:
            return
        self._is_reading_paused = is_behind
        if is_behind:
            self.transport.pause_reading()
            return
        self.transport.resume_reading()
        if self._deadline is None and self._stage in (ConnectionStage.HEAD, ConnectionStage.BODY):
            # The client could not send the rest while reading was paused.
            self._expect_within(self._receive_timeout_s)
