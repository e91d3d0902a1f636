"""HTTP/1.1 client for a unix socket of another process of the service. Connections are reused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, cast

import httptools

from pyservice.edge.http_messages import STATUS_LINES, Headers

_IDLE_MAX: Final = 128
# Shorter than the keep-alive time of the server. A request on a connection that closes has an unknown outcome.
_IDLE_MAX_S: Final = 20.0
_ANSWER_MAX_BYTES: Final = 64 * 1024 * 1024


Take = Callable[[bytes], None]
"""Receives the body of a 200 response in pieces. Must not raise."""


class Reply(NamedTuple):
    """A complete response. Header names are lower-case."""

    status: int
    fields: dict[bytes, bytes]
    body: bytes

    def headers_except(self, without: frozenset[bytes]) -> Headers:
        return [field for field in self.fields.items() if field[0] not in without]


class NoResponse(Exception):
    """The request got no complete response.

    `was_sent` means that the server may have executed the request. `was_begun` means that a part of
    the response was already passed to the caller.
    """

    def __init__(self, reason: str, *, was_sent: bool, was_begun: bool = False) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        self.was_begun = was_begun


class _Connection(asyncio.Protocol):
    """One connection to the server, which carries one request at a time."""

    def __init__(self, upstream: UnixHttpClient) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpResponseParser(self)
        self._fields: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._length_bytes = 0
        self._response: asyncio.Future[Reply] | None = None
        self._take: Take | None = None
        self._has_passed_body = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self.idle_since = 0.0

    @property
    def is_usable(self) -> bool:
        return not self._transport.is_closing()

    def ask(
        self, head: bytes, body: bytes, until_s: float, take: Take | None
    ) -> asyncio.Future[Reply]:
        loop = asyncio.get_running_loop()
        self._response = loop.create_future()
        self._take = take
        self._has_passed_body = False
        # A bare timer costs a tenth of asyncio.timeout.
        self._timer = loop.call_at(until_s, self._on_timer)
        if body:
            # Two writes, so that a large body is not copied.
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        return self._response

    def abort(self, response: asyncio.Future[Reply]) -> None:
        if self._response is response:
            self._settle()
            self._transport.abort()

    def _settle(self) -> asyncio.Future[Reply] | None:
        response, self._response = self._response, None
        self._take = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return response

    def _on_timer(self) -> None:
        self._end(TimeoutError())

    def close(self) -> None:
        self._transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being subclasses.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"not a valid HTTP response: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was closed before an answer")
        self._upstream.forget(self)

    def _fail(self, reason: str) -> None:
        self._end(NoResponse(reason, was_sent=True, was_begun=self._has_passed_body))

    def _end(self, error: Exception) -> None:
        response = self._settle()
        if response is not None and not response.done():
            response.set_exception(error)
        self._transport.abort()

    # httptools

    def on_message_begin(self) -> None:
        self._fields = {}
        self._body = []
        self._length_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        fields = self._fields
        fields[name] = fields[name] + b", " + value if name in fields else value

    def on_body(self, body: bytes) -> None:
        self._length_bytes += len(body)
        if self._length_bytes > _ANSWER_MAX_BYTES:
            self._fail("the answer is too long")
        elif self._take is not None and self._parser.get_status_code() == 200:
            self._has_passed_body = True
            self._take(body)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        response = self._response
        if response is None or status not in STATUS_LINES:
            self._fail(f"an unrequested response, or one with status {status}")
            return
        self._settle()
        pieces = self._body
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._body = []
        is_kept = self._parser.should_keep_alive()
        if not response.done():
            response.set_result(Reply(status, self._fields, body))
        if is_kept:
            self._upstream.keep(self)
        else:
            self._transport.close()


class UnixHttpClient:
    """HTTP client for one unix socket. Connects at the first request."""

    def __init__(self, path: Path, answer_timeout_ms: int = 60_000) -> None:
        self._path = str(path)
        self._answer_timeout_s = answer_timeout_ms / 1000
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def ask(
        self, head: bytes, body: bytes, *, is_safe: bool, take: Take | None = None
    ) -> Reply:
        until_s = asyncio.get_running_loop().time() + self._answer_timeout_s
        try:
            connection = self._take_idle() or await self._connect(until_s)
            return await self._ask(connection, head, body, until_s, take)
        except NoResponse as failure:
            if (failure.was_sent and not is_safe) or failure.was_begun:
                raise
        return await self._ask(await self._connect(until_s), head, body, until_s, take)

    async def _ask(
        self, connection: _Connection, head: bytes, body: bytes, until_s: float, take: Take | None
    ) -> Reply:
        response = connection.ask(head, body, until_s, take)
        try:
            return await response
        except asyncio.CancelledError:
            connection.abort(response)
            raise

    async def _connect(self, until_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until_s):
                _, connection = await loop.create_unix_connection(
                    lambda: _Connection(self), path=self._path
                )
        except TimeoutError:
            # A subclass of OSError with another meaning than an absent server.
            raise
        except OSError as error:
            raise NoResponse(f"cannot connect: {error}", was_sent=False) from None
        self._all.add(connection)
        return connection

    def _take_idle(self) -> _Connection | None:
        if not self._idle:
            return None
        oldest_s = asyncio.get_running_loop().time() - _IDLE_MAX_S
        connection = self._idle.pop()
        if connection.idle_since >= oldest_s and connection.is_usable:
            return connection
        connection.close()
        for older in self._idle:
            older.close()
        self._idle.clear()
        return None

    def keep(self, connection: _Connection) -> None:
        if len(self._idle) >= _IDLE_MAX:
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in tuple(self._all):
            connection.close()
