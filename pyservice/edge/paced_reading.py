"""How much of what a client sent is read in one turn of the loop, so that nobody waits for one that pipelines.

What is read is parsed and answered by `http_protocol`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pyservice.edge.client_connection import Connection, ConnectionContext, ConnectionStage
from pyservice.edge.http_messages import Request

# Room for about a hundred of the shortest requests: what a chunk of this size holds is parsed, and
# answered or queued, at once.
_SLICE_BYTES: Final = 2048
_TURN_BYTES: Final = 65_536


class PacedReadingConnection(Connection):
    """A connection that parses in slices.

    What is behind a slice stays raw (`_rest`) while requests wait for the one before them, and
    until the next turn of the loop where the slice had whole requests. Reading is paused so long.
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
        """Parse; sets `_begins_within_chunk` when a request ended in it."""
        raise NotImplementedError

    def _body_to_come_bytes(self) -> int:
        """What is still to come of the body of the stage BODY; 0 when it was not announced."""
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
        """The part of one turn."""
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
            # Nothing but the body can be in it: it is one piece for the parser, and what is kept raw would be
            # in no budget.
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
        """Read from the client only when all that it sent is parsed and nothing of it waits."""
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
            # It could not send the rest of it while it was not read from.
            self._expect_within(self._receive_timeout_s)
