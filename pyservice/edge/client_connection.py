"""One client connection: its peer, its deadline, and how it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pyservice.edge.edge_app import Edge
from pyservice.transport import client_address
from pyservice.transport.server_budgets import ConnectionBudget
from pyservice.transport.slow_readers import ReadProgress, unread_bytes

# Seconds for a rejected client to send the rest of its request. Closing at once would discard the response.
_LINGER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """Shared by all connections of one server."""

    config: Config
    state: ServerState
    loop: asyncio.AbstractEventLoop
    places: ConnectionBudget
    on_close: Callable[[], None]


class ConnectionStage:
    """States of the receiving side of a connection."""

    IDLE: Final = 0
    HEAD: Final = 1
    BODY: Final = 2
    DEAF: Final = 3


class Connection(HttpToolsProtocol):
    """A transport with a peer and a deadline.

    `_deadline` is the time by which the client must act. It is None while the server must act. A timer
    runs ahead of the deadline and reads it again when it fires, so moving a deadline needs no new timer.
    """

    app: Edge

    def __init__(self, serving: ConnectionContext) -> None:
        super().__init__(serving.config, serving.state, {}, serving.loop)
        self._on_close = serving.on_close
        self._places = serving.places
        self._receive_timeout_s = self.app.door.receive_timeout_ms / 1000
        self._keep_alive_timeout_s = self.app.door.keep_alive_timeout_ms / 1000
        self._peer: client_address.Address = client_address.LOCAL
        self._source = client_address.packed_client(self._peer)
        self._awaits_proxy_header = False
        self._is_edge_guard = False
        self._is_fronted = False
        self._proxy_bytes = b""
        self._is_write_paused = False
        self._reading: ReadProgress | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.connections.add(self)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        # Only edge-guard can open the public server's unix socket.
        self._is_edge_guard = not isinstance(peer, tuple) and not self.app.door.is_internal
        if isinstance(peer, tuple):
            self._set_peer(client_address.parse_address(peer[0]))
        is_trusted = self._is_edge_guard or self.app.proxies.trusts(self._peer)
        if not self._places.enter(self, None if is_trusted else self._source):
            transport.abort()
            return
        self._awaits_proxy_header = self._is_edge_guard or (
            self.app.door.proxy_protocol and is_trusted
        )
        self._expect_within(self._receive_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._places.leave(self)
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.transport.close()
        self.parser = None  # type: ignore[assignment]
        self._on_close()

    # Peer

    def _set_peer(self, peer: client_address.Address | None) -> None:
        self._peer = peer or self._peer
        self._source = client_address.packed_client(self._peer)

    def _read_proxy_header(self, data: bytes) -> bytes:
        self._proxy_bytes += data
        try:
            header = client_address.read_proxy_header(self._proxy_bytes)
        except ValueError:
            self.transport.close()
            return b""
        if header is None:
            return b""
        rest, self._proxy_bytes = self._proxy_bytes[header.length_bytes :], b""
        self._set_peer(header.source)
        self._awaits_proxy_header = False
        self._is_fronted = self._is_edge_guard and self.app.front_proxies.trusts(self._peer)
        is_trusted = self._is_fronted or self.app.proxies.trusts(self._peer)
        if not is_trusted and not self._places.introduce(self, self._source):
            self.transport.abort()
            return b""
        return rest

    # Deadlines

    def _expect_within(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._on_timer)
        elif self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = self.loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        left_s = self._deadline - self.loop.time()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._on_timer)
        elif self._is_write_paused or (self._reading and unread_bytes(self.transport)):
            self._look_at_reading()
        else:
            self._on_deadline()

    def _look_at_reading(self) -> None:
        reading = self._reading
        if reading is not None and reading.goes_on(self.loop.time()):
            self._expect_within(self._receive_timeout_s)
        else:
            self.transport.abort()

    def _on_deadline(self) -> None:
        raise NotImplementedError

    def _let_go(self, *, is_refused: bool) -> None:
        if not is_refused or not self.transport.can_write_eof():
            self._close_when_read()
            return
        self.transport.write_eof()
        self._expect_leaving()

    def _close_when_read(self) -> None:
        self.transport.close()
        if unread_bytes(self.transport):
            self._expect_leaving()

    def _expect_leaving(self) -> None:
        is_closing = self.transport.is_closing()
        self._reading = ReadProgress(self.transport, self.loop.time())
        self._expect_within(self._receive_timeout_s if is_closing else _LINGER_S)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._reading = ReadProgress(self.transport, self.loop.time())
        self._expect_within(self._receive_timeout_s)
