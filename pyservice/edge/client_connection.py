"""One client connection: its peer address, its deadlines, and the order of its responses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pyservice.edge.http_application import HttpApplication, OpenExchange
from pyservice.edge.http_messages import HttpResponse, Request, part_to_bytes
from pyservice.edge.parked_requests import ParkedRequest
from pyservice.edge.woken_batch_endpoint import WokenBatchExchange
from pyservice.errors import ServiceError
from pyservice.transport import client_address
from pyservice.transport.native import ConnectionBudget
from pyservice.transport.server_budgets import SMALL_BYTES, BodyReservation
from pyservice.transport.slow_readers import ReadProgress, unread_bytes

# Seconds for a rejected client to send the rest of its request. Closing at once would discard the response.
_LINGER_S: Final = 2.0
# Bytes of a slice: about a hundred of the shortest requests.
_SLICE_BYTES: Final = 2048
_TURN_BYTES: Final = 65_536
SLOWED_DOWN_S: Final = 0.1
"""Pause of a connection after a 429, so that a client that ignores `Retry-After` takes no time from others."""
_TOO_MANY_REQUESTS: Final = 429


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """Objects that all connections of one server share."""

    config: Config
    state: ServerState
    loop: asyncio.AbstractEventLoop
    budget: ConnectionBudget
    on_close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """State of a connection that the front gives to the server."""

    unread: bytes = b""
    """Bytes that the front has read and not answered."""
    client: bytes | None = None
    """Client that already counts for the connection in the budget. None if nothing is counted."""


class ConnectionStage:
    """State of a connection while it receives a request."""

    IDLE: Final = 0
    HEAD: Final = 1
    BODY: Final = 2
    CLOSING: Final = 3


class ConnectionBodyBudget:
    """Counts the request bodies of one connection against the memory budget of the server.

    A small body counts only while it arrives. A large body counts until its request is answered.
    """

    __slots__ = ("_app", "answering", "receiving")

    def __init__(self, app: HttpApplication) -> None:
        self._app: Final = app
        self.receiving: BodyReservation | None = None
        self.answering: dict[Request, BodyReservation] = {}

    def grow(self, request: Request, size_bytes: int) -> None:
        if self.receiving is None:
            self.receiving = self._app.reserve_body(request)
        self.receiving.grow_to(size_bytes)

    def keep(self, request: Request) -> None:
        reservation, self.receiving = self.receiving, None
        if reservation is None:
            return
        if len(request.body) > SMALL_BYTES:
            self.answering[request] = reservation
        else:
            reservation.give_back()

    def drop(self) -> None:
        reservation, self.receiving = self.receiving, None
        if reservation is not None:
            reservation.give_back()

    def end(self, request: Request) -> None:
        reservation = self.answering.pop(request, None)
        if reservation is not None:
            reservation.give_back()

    def end_all(self) -> None:
        self.drop()
        for request in tuple(self.answering):
            self.end(request)


class ClientConnection(HttpToolsProtocol):
    """One connection of a client, with the deadline for the client's next action.

    `_deadline` is None while the client waits for the server. A timer that fires too early starts
    again for the remaining time, so a later deadline needs no new timer.
    """

    app: HttpApplication

    def __init__(self, context: ConnectionContext, handed_over: HandedOver | None = None) -> None:
        super().__init__(context.config, context.state, {}, context.loop)
        handed_over = handed_over or HandedOver()
        self._unread = handed_over.unread
        self._is_counted = handed_over.client is not None
        self._counted_client = handed_over.client
        self._on_close = context.on_close
        self._budget = context.budget
        self._receive_timeout_s = self.app.settings.receive_timeout_ms / 1000
        self._keep_alive_timeout_s = self.app.settings.keep_alive_timeout_ms / 1000
        self._peer: client_address.Address = client_address.LOCAL
        self._source = client_address.packed_client(self._peer)
        self._awaits_proxy_header = False
        self._is_edge_guard = False
        self._is_fronted = False
        self._is_game_server = False
        self._proxy_bytes = b""
        self._is_write_paused = False
        self._read_progress: ReadProgress | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stage = ConnectionStage.IDLE
        self._begins_within_chunk = False
        self._pipelined: deque[Request] = deque()
        self._rest = b""
        self._rest_begin = 0
        self._will_read_on = False
        self._is_reading_paused = False
        self._body_budget = ConnectionBodyBudget(self.app)
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._parked: ParkedRequest | None = None
        self._has_backlog = False
        self._is_slowed_down = False
        self._is_stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.connections.add(self)
        self.transport = transport
        if client_address.is_reset(transport):
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        # Only edge-guard can open the public server's unix socket.
        self._is_edge_guard = not isinstance(peer, tuple) and not self.app.settings.is_internal
        if isinstance(peer, tuple):
            self._set_peer(client_address.parse_address(peer[0]))
        is_proxy = self.app.proxies.trusts(self._peer)
        if is_proxy and isinstance(peer, tuple):
            self._is_game_server = self._belongs_to_game_server(peer[1])
        is_trusted = self._is_edge_guard or (is_proxy and not self._is_game_server)
        if not self._is_counted:
            self._counted_client = None if is_trusted else self._source
            self._is_counted = self._budget.enter(self._counted_client)
            if not self._is_counted:
                transport.abort()
                return
        self._awaits_proxy_header = self._is_edge_guard or (
            self.app.settings.proxy_protocol and is_trusted
        )
        self._expect_within(self._receive_timeout_s)
        if self._unread:
            # The transport starts to read after this call, so it cannot be paused yet.
            self.loop.call_soon(self._receive_unread)

    def _receive_unread(self) -> None:
        if self._unread and not self.transport.is_closing():
            self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        if self._task is not None:
            # Cancelling releases the hold of a request that waits for a lobby.
            self._task.cancel()
        if self._parked is not None:
            self._parked.abandon()
            self._parked = None
        self.connections.discard(self)
        if self._is_counted:
            self._budget.leave(self._counted_client)
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

    def _belongs_to_game_server(self, peer_port: int) -> bool:
        host, port = self.transport.get_extra_info("sockname")[:2]
        local = client_address.parse_address(host) or client_address.LOCAL
        return self.app.game_servers.contain((self._peer, peer_port), (local, port))

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
        if not is_trusted:
            if not self._budget.introduce(self._source):
                self.transport.abort()
                return b""
            self._counted_client = self._source
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
        elif self._is_write_paused or (self._read_progress and unread_bytes(self.transport)):
            self._check_reader()
        else:
            self._on_deadline()

    def _check_reader(self) -> None:
        progress = self._read_progress
        if progress is not None and progress.has_advanced(self.loop.time()):
            self._expect_within(self._receive_timeout_s)
        else:
            self.transport.abort()

    def _on_deadline(self) -> None:
        raise NotImplementedError

    def _close_after_response(self, *, is_refused: bool) -> None:
        if not is_refused or not self.transport.can_write_eof():
            self._close_when_read()
            return
        self.transport.write_eof()
        self._await_disconnect()

    def _close_when_read(self) -> None:
        self.transport.close()
        if unread_bytes(self.transport):
            self._await_disconnect()

    def _await_disconnect(self) -> None:
        is_closing = self.transport.is_closing()
        self._read_progress = ReadProgress(self.transport, self.loop.time())
        self._expect_within(self._receive_timeout_s if is_closing else _LINGER_S)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._read_progress = ReadProgress(self.transport, self.loop.time())
        self._expect_within(self._receive_timeout_s)

    # Reading in slices

    def _receive(self, data: bytes) -> None:
        raise NotImplementedError

    def _missing_body_bytes(self) -> int:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        if self._unread:
            data, self._unread = self._unread + data, b""
        if self._awaits_proxy_header:
            data = self._read_proxy_header(data)
            if not data:
                return
        if self._stage == ConnectionStage.CLOSING:
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
        left_bytes = _TURN_BYTES
        while self._rest and left_bytes > 0 and not self._pipelined:
            if self._stage == ConnectionStage.CLOSING or self.transport.is_closing():
                self._drop_rest()
                break
            piece = self._next_slice()
            left_bytes -= len(piece)
            self._receive(piece)
            if self._begins_within_chunk:
                break
        if self._stage == ConnectionStage.CLOSING:
            self._drop_rest()
        self._will_read_on = False
        self._pace()

    def _next_slice(self) -> bytes:
        size = _SLICE_BYTES
        if self._stage == ConnectionStage.BODY:
            # Only body bytes follow, so parse them in one piece. Unparsed bytes would be in no budget.
            size = max(size, self._missing_body_bytes())
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
        if self._rest and not self._pipelined and not self._will_read_on:
            self._will_read_on = True
            self.loop.call_soon(self._read_on)
        has_backlog = bool(self._pipelined or self._rest)
        if has_backlog == self._is_reading_paused:
            return
        self._is_reading_paused = has_backlog
        if has_backlog:
            self.transport.pause_reading()
            return
        self.transport.resume_reading()
        if self._deadline is None and self._stage in (ConnectionStage.HEAD, ConnectionStage.BODY):
            # The client could not send the rest while reading was paused.
            self._expect_within(self._receive_timeout_s)

    # Ordered responses

    def shutdown(self) -> None:
        self._receive_unread()
        self._is_stopping = True
        if self._is_slowed_down:
            self._end_slow_down()
        if self._current is None:
            self.transport.close()
        elif self._parked is not None:
            self._parked.answer_now()

    def refuse_current(self) -> None:
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
        elif self._parked is not None:
            self._on_parked_answer(self._parked.refuse(ServiceError("SHUTTING_DOWN")))

    def _stop_receiving(self) -> None:
        self._stage = ConnectionStage.CLOSING
        self._pipelined.clear()
        self._drop_rest()
        self._body_budget.end_all()

    def _answer_pipelined(self) -> None:
        waiting = self._pipelined
        while (
            waiting
            and self._current is None
            and not self._is_write_paused
            and not self._is_slowed_down
        ):
            self._answer(waiting.popleft())
        if bool(waiting) != self._has_backlog:
            self._has_backlog = bool(waiting)
            self._pace()
            if waiting and self._parked is not None:
                # The disconnect of its client would go unnoticed now.
                self._parked.answer_now()
        if (
            self._current is None
            and self._stage == ConnectionStage.IDLE
            and not self._is_write_paused
        ):
            self._expect_within(self._keep_alive_timeout_s)

    def _answer(self, request: Request) -> None:
        self._current = request
        exchange = self.app.open(request)
        if isinstance(exchange, HttpResponse):
            self._write(request, exchange)
        elif isinstance(exchange, WokenBatchExchange):
            self._task = self.loop.create_task(self._run_in_parts(request, exchange))
        else:
            self._task = self.loop.create_task(self._run(request, exchange))

    async def _run(self, request: Request, exchange: OpenExchange) -> None:
        try:
            response = await exchange.finish()
        except asyncio.CancelledError:
            if self.transport.is_closing():
                exchange.abandon()
                raise
            response = exchange.refuse(ServiceError("SHUTTING_DOWN"))
        self._task = None
        if self.transport.is_closing():
            if isinstance(response, ParkedRequest):
                response.abandon()
        elif isinstance(response, HttpResponse):
            self._write(request, response)
            self._answer_pipelined()
        else:
            self._park(response)

    async def _run_in_parts(self, request: Request, exchange: WokenBatchExchange) -> None:
        is_begun = False
        try:
            async with aclosing(exchange.parts()) as parts:
                async for part in parts:
                    self.transport.write(part_to_bytes(part, is_first=not is_begun))
                    is_begun = True
        except asyncio.CancelledError:
            if self.transport.is_closing():
                exchange.abandon()
                raise
            self._task = None
            refusal = exchange.refuse(ServiceError("SHUTTING_DOWN"))
            if is_begun:
                # Closing shows the other side that the rest will not follow.
                self.transport.abort()
            else:
                self._write(request, refusal)
                self._answer_pipelined()
            return
        self._task = None
        if self.transport.is_closing():
            return
        self.transport.write(part_to_bytes(b"", is_first=not is_begun))
        self._after_response(request, keep_alive=request.keep_alive and not self._is_stopping)
        self._answer_pipelined()

    def _park(self, request: ParkedRequest) -> None:
        self._parked = request
        if self._body_budget.answering and self._current is not None:
            self._body_budget.end(self._current)
        request.begin(self._on_parked_answer)
        if self._is_stopping or self._pipelined:
            request.answer_now()

    def _on_parked_answer(self, response: HttpResponse) -> None:
        self._parked = None
        request = self._current
        if request is not None and not self.transport.is_closing():
            self._write(request, response)
            self._answer_pipelined()

    def _write(self, request: Request, response: HttpResponse) -> None:
        keep_alive = request.keep_alive and not self._is_stopping
        self.transport.write(
            response.to_bytes(keep_alive=keep_alive, with_body=request.method != b"HEAD")
        )
        if response.status == _TOO_MANY_REQUESTS and self._has_one_client():
            self._is_slowed_down = True
            self.loop.call_later(SLOWED_DOWN_S, self._end_slow_down)
        self._after_response(request, keep_alive=keep_alive)

    def _has_one_client(self) -> bool:
        is_shared = self._is_fronted or self.app.proxies.trusts(self._peer)
        return not is_shared and not self.app.settings.is_internal

    def _end_slow_down(self) -> None:
        self._is_slowed_down = False
        if not self.transport.is_closing():
            self._answer_pipelined()

    def _after_response(self, request: Request, *, keep_alive: bool) -> None:
        self._current = None
        if self._body_budget.answering:
            self._body_budget.end(request)
        if not keep_alive:
            # This was the last response.
            self._stop_receiving()
            self._close_after_response(is_refused=request.failure is not None)
