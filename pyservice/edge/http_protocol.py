"""HTTP/1.1 connections: limits, timeouts, pipelining, disconnects
(docs/reference/wire.md#size-limits).

The module has a uvicorn protocol that passes complete requests to `HttpApplication.open` and writes
the responses.
"""

from __future__ import annotations

import logging
from typing import Final

import httptools

from pyservice.edge.client_connection import (
    ClientConnection,
    ConnectionContext,
    ConnectionStage,
    HandedOver,
)
from pyservice.edge.http_messages import Request, target_of
from pyservice.errors import ServiceError
from pyservice.transport.request_headers import NO_HOST_DETAIL, TWO_HOSTS_DETAIL
from pyservice.transport.server_budgets import SMALL_BYTES

logger = logging.getLogger("pyservice.edge")

# Overhead of a chunked body beyond which the request is rejected.
_CHUNK_OVERHEAD: Final = 8
# Bound on the number of headers. Each costs memory and time, however short it is.
_FIELDS_LIMIT: Final = 128
_VERSIONS: Final = ("1.1", "1.0")
_FRAMING: Final = (b"transfer-encoding", b"content-length")
_NOT_HTTP: Final = "The request is not valid HTTP/1.1."
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpProtocol(ClientConnection):
    """One HTTP/1.1 connection of a client.

    A pipelined request is received while the request before it is answered. It then waits in
    `_pipelined`, and the connection reads no further data.
    """

    def __init__(self, context: ConnectionContext, handed_over: HandedOver | None = None) -> None:
        super().__init__(context, handed_over)
        self._headers_limit = self.app.settings.headers_limit_bytes
        self._url_limit = self.app.settings.url_limit_bytes
        self._chunk_bytes = 0
        self._received_bytes = 0
        self._url = b""
        self._fields: dict[bytes, bytes] = {}
        self._joined_fields = 0
        self._request: Request | None = None
        self._body_limit = 0
        self._unchecked_bytes = 0
        self._body: bytes | bytearray = b""
        self._checked_bytes = 0
        self._stalled_bytes = 0

    def _stop_receiving(self) -> None:
        super()._stop_receiving()
        self._body = b""

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._read_progress = None
        self._deadline = None
        if self._stage in (ConnectionStage.HEAD, ConnectionStage.BODY) and not self._pipelined:
            self._expect_within(self._receive_timeout_s)
        self._answer_pipelined()
        if (
            self._stage == ConnectionStage.CLOSING
            and self._current is None
            and self._deadline is None
        ):
            # The last response had filled the buffer.
            self._await_disconnect()

    def _on_deadline(self) -> None:
        if self._rest:
            # The server paused reading, so the client is not late.
            self._expect_within(self._receive_timeout_s)
        elif self._stage in (ConnectionStage.HEAD, ConnectionStage.BODY):
            self._refuse(ServiceError("REQUEST_TIMEOUT"))
        elif self._stage == ConnectionStage.CLOSING:
            self.transport.abort()
        else:
            self._close_when_read()

    def _receive(self, data: bytes) -> None:
        self._chunk_bytes = len(data)
        self._received_bytes += self._chunk_bytes
        self._begins_within_chunk = False
        self._feed(data)
        self._check_size()
        if self._deadline is not None:
            return
            # The server reads nothing behind waiting requests, so the client cannot finish.
        is_unfinished = (
            self._stage in (ConnectionStage.HEAD, ConnectionStage.BODY) and not self._pipelined
        )
        if is_unfinished or self._is_write_paused:
            self._expect_within(self._receive_timeout_s)

    def _missing_body_bytes(self) -> int:
        return int(self._fields.get(b"content-length", 0)) - len(self._body)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._stage == ConnectionStage.BODY:
                self._read_on_without_upgrade(data[upgrade.args[0] :])
            else:
                self._stage = ConnectionStage.CLOSING
        except httptools.HttpParserCallbackError as error:
            logger.error("reading a request failed", exc_info=error.__context__)
            self._refuse(ServiceError("INTERNAL"))
        except httptools.HttpParserError:
            self._refuse(ServiceError("HEADER_INVALID", _NOT_HTTP))

    def _read_on_without_upgrade(self, rest: bytes) -> None:
        fields = self._fields
        self.parser = httptools.HttpRequestParser(self)
        framing = next(name for name in _FRAMING if name in fields)
        self._feed(b"POST / HTTP/1.1\r\n%b: %b\r\n\r\n" % (framing, fields[framing]))
        self._feed(rest)

    def on_message_begin(self) -> None:
        if self._stage != ConnectionStage.IDLE:
            return
        self._stage = ConnectionStage.HEAD
        self._deadline = None
        # The offset of a message in the chunk is unknown unless it starts the chunk.
        self._received_bytes = 0 if self._begins_within_chunk else self._chunk_bytes
        self._url = b""
        self._fields = {}
        self._joined_fields = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._url_limit and self._stage == ConnectionStage.HEAD:
            self._url = self._url[: self._url_limit]
            self._refuse(ServiceError("URI_TOO_LONG"))

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers arrive here too, after the head, and are ignored.
        if self._stage != ConnectionStage.HEAD:
            return
        name = name.lower()
        fields = self._fields
        if name in fields:
            if name == b"host":
                self._refuse(ServiceError("HEADER_INVALID", TWO_HOSTS_DETAIL))
                return
            value = fields[name] + b", " + value
            self._joined_fields += 1
        fields[name] = value
        if len(fields) + self._joined_fields > _FIELDS_LIMIT:
            self._refuse(ServiceError("HEADERS_TOO_LARGE"))

    def on_headers_complete(self) -> None:
        if self._stage != ConnectionStage.HEAD:
            return
        fields = self._fields
        if self._received_bytes > self._headers_limit or self._begins_within_chunk:
            size = sum(len(name) + len(value) + 4 for name, value in fields.items())
            if size > self._headers_limit:
                self._refuse(ServiceError("HEADERS_TOO_LARGE"))
                return
        if self.parser.get_http_version() not in _VERSIONS:
            # The parser continues, but the response would have the wrong protocol.
            self._refuse(ServiceError("HEADER_INVALID", _NOT_HTTP))
            return
        if b"host" not in fields and self.parser.get_http_version() != "1.0":
            self._refuse(ServiceError("HEADER_INVALID", NO_HOST_DETAIL))
            return
        target = target_of(self._url)
        request = Request(self.parser.get_method(), target, fields, self._peer, self._source)
        request.is_fronted = self._is_fronted
        request.is_game_server = self._is_game_server
        self._request = request
        self._stage = ConnectionStage.BODY
        self._deadline = None
        self._received_bytes = 0
        self._body = b""
        self._body_limit = 0
        length = fields.get(b"content-length")
        if length is None and b"transfer-encoding" not in fields:
            return
        self._checked_bytes = 0
        # The rest of this chunk may contain a complete request.
        self._stalled_bytes = -self._chunk_bytes
        self._body_limit = limit = self.app.body_limit_bytes(request)
        self._unchecked_bytes = limit if limit < SMALL_BYTES else SMALL_BYTES
        if length is not None and int(length) > self._unchecked_bytes:
            try:
                self.app.check_size(request, 0, int(length), limit)
            except ServiceError as error:
                self._refuse(error)
                return
        if fields.get(b"expect", b"").lower() == b"100-continue" and self._current is None:
            self.transport.write(_CONTINUE)

    def _check_size(self) -> None:
        received = self._received_bytes
        in_head, in_body = self._stage == ConnectionStage.HEAD, self._stage == ConnectionStage.BODY
        if in_head and received > self._headers_limit + self._url_limit:
            self._refuse(ServiceError("HEADERS_TOO_LARGE"))
        elif in_body and received > _CHUNK_OVERHEAD * self._body_limit + self._headers_limit:
            self._refuse(ServiceError("BODY_TOO_LARGE"))
        elif in_body:
            self._check_unfinished(len(self._body))

    def _check_unfinished(self, size: int) -> None:
        if size == self._checked_bytes:
            # The parser buffers an endless trailer.
            self._stalled_bytes += self._chunk_bytes
            if self._stalled_bytes > self._headers_limit:
                self._refuse(ServiceError("BODY_TOO_LARGE"))
            return
        self._checked_bytes, self._stalled_bytes = size, 0
        request = self._request
        assert request is not None, "the stage is BODY"
        try:
            self._body_budget.grow(request, size)
        except ServiceError as error:
            self._refuse(error)

    def on_body(self, body: bytes) -> None:
        if self._stage != ConnectionStage.BODY:
            return
        size = len(self._body) + len(body)
        if size > self._unchecked_bytes and not self._may_hold(size):
            return
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body

    def _may_hold(self, size: int) -> bool:
        request = self._request
        assert request is not None, "the stage is BODY"
        try:
            self.app.check_size(request, len(self._body), size, self._body_limit)
            self._body_budget.grow(request, size)
        except ServiceError as error:
            self._refuse(error)
            return False
        return True

    def on_message_complete(self) -> None:
        request = self._request
        if self._stage != ConnectionStage.BODY or request is None:
            return
        fields = request.headers
        if b"upgrade" in fields and self.parser.should_upgrade() and self._body_limit:
            return
        self._request = None
        self._stage = ConnectionStage.IDLE
        self._deadline = None
        self._begins_within_chunk = True
        request.body, self._body = bytes(self._body), b""
        if self._body_budget.receiving is not None:
            self._body_budget.keep(request)
        self._decide_keep_alive(request)
        if not request.keep_alive:
            self._stage = ConnectionStage.CLOSING
        self._pipelined.append(request)
        self._answer_pipelined()

    def _decide_keep_alive(self, request: Request) -> None:
        fields, parser = request.headers, self.parser
        is_last = b"upgrade" in fields or request.method == b"CONNECT"
        if is_last or not self._keep_alive_timeout_s or not parser.should_keep_alive():
            request.keep_alive = False
        elif b"connection" in fields:
            # Keeping an HTTP/1.0 connection open would need a response header.
            request.keep_alive = parser.get_http_version() != "1.0"

    def _refuse(self, error: ServiceError) -> None:
        if self._stage == ConnectionStage.CLOSING:
            return
        self._stage = ConnectionStage.CLOSING
        self._deadline = None
        request, self._request = self._request, None
        if request is None:
            request = Request(b"", b"", self._fields, self._peer)
            # Release the received data while the client reads the error.
        self._body, self._fields = b"", {}
        self._body_budget.drop()
        self.parser = httptools.HttpRequestParser(self)
        request.failure = error
        request.keep_alive = False
        self._pipelined.append(request)
        self._answer_pipelined()
