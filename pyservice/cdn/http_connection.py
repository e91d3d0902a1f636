"""HTTP/1.1 connection of a CDN client, with limits for each client address."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pyservice.cdn import slow_readers
from pyservice.cdn.responses import RAY_ID, Response, error_page, error_response, trace_of
from pyservice.cdn.signed_objects import CORS
from pyservice.cdn.slow_readers import LingeringClose, ReadProgress, unread_bytes
from pyservice.cdn.uploads import Reception, UploadReceiver
from pyservice.errors import ServiceError
from pyservice.observability import health
from pyservice.observability.logging import get_logger
from pyservice.observability.rays import Trace
from pyservice.storage.signed_urls import PREFIX
from pyservice.transport import client_address
from pyservice.transport.client_address import Address, TrustedProxies
from pyservice.transport.native import ConnectionAdmission, ConnectionBudget

CONNECTIONS_MAX: Final = 8192
_TWO_HOSTS_DETAIL: Final = "Send one Host header: a request with several is ambiguous."
_NO_HOST_DETAIL: Final = "Send a Host header: HTTP/1.1 requires one."
_FILES_EACH: Final = 2
"""The socket, and the file that it sends or receives."""


def connections_most() -> int:
    return min(CONNECTIONS_MAX, health.connections_max(_FILES_EACH))


class CdnClients:
    """Open connections of all clients.

    One client may have half of the allowed connections, and a trusted proxy all of them.
    """

    def __init__(self, proxies: TrustedProxies, most: int) -> None:
        self._proxies = proxies
        self._budget = ConnectionBudget(most)
        self._transports: dict[asyncio.Transport, ConnectionAdmission] = {}
        self._no_transports = asyncio.Event()
        self.are_leaving = False

    def __len__(self) -> int:
        return len(self._transports)

    def enter(self, transport: asyncio.Transport) -> bool:
        if transport in self._transports:
            return True
        if self.are_leaving or client_address.is_reset(transport):
            return False
        peername = transport.get_extra_info("peername")
        peer = _peer(peername)
        is_trusted = not isinstance(peername, tuple) or self._proxies.trusts(peer)
        client = None if is_trusted else client_address.packed_client(peer)
        admission = self._budget.admit(client)
        if admission is None:
            return False
        self._transports[transport] = admission
        return True

    def leave(self, transport: asyncio.Transport) -> None:
        self._transports.pop(transport, None)
        if not self._transports:
            self._no_transports.set()

    def abort_all(self) -> None:
        for transport in list(self._transports):
            transport.abort()

    async def wait_until_closed(self, timeout_s: float) -> None:
        if self._transports:
            self._no_transports.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._no_transports.wait()

    def source(
        self, peername: tuple[str, int] | None, headers: Iterable[tuple[bytes, bytes]]
    ) -> bytes:
        return client_of(self._proxies, peername, headers)


def client_of(
    proxies: TrustedProxies,
    peername: tuple[str, int] | None,
    headers: Iterable[tuple[bytes, bytes]],
) -> bytes:
    peer = _peer(peername)
    if not peername:
        # A connection by unix socket is from edge-guard. It replaces the client's header by one
        # address.
        forwarded_for = next((value for name, value in headers if name == b"x-forwarded-for"), b"")
        return client_address.packed_client(
            client_address.parse_address(forwarded_for.decode("latin-1")) or peer
        )
    if proxies.trusts(peer):
        lines = [value for name, value in headers if name == b"x-forwarded-for"]
        peer = proxies.client(peer, lines)
    return client_address.packed_client(peer)


def _peer(peername: tuple[str, int] | None) -> Address:
    return (client_address.parse_address(peername[0]) if peername else None) or client_address.LOCAL


HEAD_MAX_BYTES: Final = 40 << 10

HEAD_TIMEOUT_S: Final = 15.0
READ_TIMEOUT_S: Final = 30.0
_PREFIX: Final = PREFIX.encode()
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

log = get_logger("pyservice.cdn")


class CdnConnection(HttpToolsProtocol):
    """HTTP/1.1 connection of a CDN client.

    An upload takes over the transport. After the upload, `renew` creates a CdnConnection for the
    next requests.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        loop: asyncio.AbstractEventLoop,
        clients: CdnClients,
        uploads: UploadReceiver | None,
        renew: Callable[[], CdnConnection],
    ) -> None:
        super().__init__(config, state, {}, loop)
        self._clients = clients
        self._uploads = uploads
        self._renew = renew
        self._reception: Reception | None = None
        self._is_kept_alive = True
        self._is_overrun = False
        self._is_done_reading = False
        self._is_in_head = True
        self._head_bytes = 0
        self._last_received_s = loop.time()
        self._read_progress: ReadProgress | None = None
        self._next_check_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._clients.enter(transport):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.leave(self.transport)
        super().connection_lost(exc)

    def check(self) -> None:
        now_s = self.loop.time()
        if unread_bytes(self.transport):
            # A response may be complete long before the client has read it.
            self._last_received_s = now_s
            self._check_reading(now_s)
            return
        self._read_progress = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._last_received_s = now_s
        elif now_s - self._last_received_s >= HEAD_TIMEOUT_S:
            self.transport.abort()

    def _check_reading(self, now_s: float) -> None:
        if self._read_progress is None:
            self._read_progress, self._next_check_s = (
                ReadProgress(self.transport, now_s),
                now_s + READ_TIMEOUT_S,
            )
        elif now_s >= self._next_check_s:
            self._next_check_s = now_s + READ_TIMEOUT_S
            if not self._read_progress.has_advanced(now_s):
                self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_done_reading:
            return
        self._last_received_s = self.loop.time()
        if self._is_in_head:
            self._head_bytes += len(data)
        self._parse(data)
        if self._reception is not None:
            self._hand_over(self._reception)
        elif self._is_in_head and self._head_bytes > HEAD_MAX_BYTES:
            self._refuse(ServiceError("HEADERS_TOO_LARGE"))

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # An upgrade (h2c) is refused. The parser treats the following body as the other
            # protocol.
            rest = data[upgrade.args[0] :]
            if self._reception is not None and rest:
                length = self._reception.length
                self._reception.feed(rest[:length])
                self._is_overrun = len(rest) > length
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_message_begin(self) -> None:
        if self._reception is not None:
            self._is_overrun = True
            return
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._reception is None:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head and self._reception is None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._is_done_reading or self._reception is not None:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEAD_MAX_BYTES:
            self._refuse(ServiceError("HEADERS_TOO_LARGE"))
        elif (hosts := sum(name == b"host" for name, _ in self.headers)) > 1:
            self._refuse(ServiceError("HEADER_INVALID", _TWO_HOSTS_DETAIL))
        elif not hosts and self.parser.get_http_version() != "1.0":
            self._refuse(ServiceError("HEADER_INVALID", _NO_HOST_DETAIL))
        elif self._is_upload():
            self._begin_or_refuse(self._trace())
        # uvicorn would report an invalid URL as an internal error.
        elif _has_path(self.url):
            super().on_headers_complete()
        else:
            self.send_400_response("Invalid URL received.")

    def on_body(self, body: bytes) -> None:
        if self._reception is not None:
            if not self._is_overrun:
                self._reception.feed(body)
        elif not self._is_done_reading:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._reception is None and not self._is_done_reading:
            super().on_message_complete()

    def _is_upload(self) -> bool:
        if not self.url.startswith(_PREFIX) or self.parser.get_method() != b"PUT":
            return False
        host = next((value for name, value in self.headers if name == b"host"), b"")
        return self._uploads is None or self._uploads.accepts(host.decode("latin-1"))

    def _begin_or_refuse(self, trace: Trace) -> None:
        try:
            self._reception = self._begin(self._uploads, trace)
            return
        except ServiceError as refusal:
            error = refusal
        except Exception:
            # The cause is the disk or memory, not the client.
            log.exception("upload not started", ray_id=trace.ray_id)
            error = ServiceError("INTERNAL")
        self._refuse(error, trace)
        if self._uploads is not None:
            self._uploads.counts.count_failure(error.code)
            self._uploads.end_trace(trace, error.code)

    def _begin(self, uploads: UploadReceiver | None, trace: Trace) -> Reception:
        if self.cycle is not None and not self.cycle.response_complete:
            raise ServiceError("OVERLOADED", "Wait for an answer before the next request.")
        if uploads is None:
            raise ServiceError("METHOD_NOT_ALLOWED", headers={"allow": "GET, HEAD"})
        self._unset_keepalive_if_required()
        url = urlsplit(self.url.decode("latin-1"))
        fields = dict(reversed(self.headers))
        digits = fields.get(b"content-length", b"")
        length = int(digits) if digits.isdigit() else None
        is_old = self.parser.get_http_version() == "1.0"
        self._is_kept_alive = self.parser.should_keep_alive() and not is_old
        query = url.query.encode("latin-1")
        client = self._clients.source(self.client, self.headers)
        reception = uploads.begin(url.path, query, length, client, trace)
        if fields.get(b"expect", b"").lower() == b"100-continue" and not is_old:
            self.transport.write(_CONTINUE)
        return reception

    def _hand_over(self, reception: Reception) -> None:
        self.connections.discard(self)
        self._is_done_reading = True
        transport = self.transport
        reception.take_over(transport, self._after_response, lambda: self._clients.leave(transport))

    def _after_response(self, response: Response) -> None:
        if self.transport.is_closing():
            return
        is_kept = self._is_kept_alive and not self._clients.are_leaving
        is_last = self._is_overrun or not is_kept or response.status >= 400
        self.transport.write(response.to_bytes(is_last=is_last))
        if is_last:
            self._linger()
            return
        next_connection = self._renew()
        self.transport.set_protocol(next_connection)
        next_connection.connection_made(self.transport)
        self.transport.resume_reading()

    def _refuse(self, error: ServiceError, trace: Trace | None = None) -> None:
        response = error_response(error, (trace or self._trace()).ray_id)
        response.headers |= CORS
        self._end_with(response)

    def _fail(self, error: BaseException | None) -> None:
        reception = self._reception
        trace = self._trace() if reception is None else reception.trace
        log.error("reading a request failed", ray_id=trace.ray_id, exc_info=error)
        if reception is None:
            self._refuse(ServiceError("INTERNAL"), trace)
        else:
            reception.refuse(ServiceError("INTERNAL"))

    # Overridden, because uvicorn's response has no ray id.
    def send_400_response(self, msg: str) -> None:
        """Sends the error response to a request that is not valid HTTP."""
        if self._reception is not None:
            self._is_overrun = True
        elif not self._is_done_reading:
            self._end_with(
                error_page(
                    400, {RAY_ID: self._trace().ray_id}, detail="the request is not valid HTTP/1.1"
                )
            )

    def _trace(self) -> Trace:
        return trace_of(dict(reversed(self.headers or [])))

    def _end_with(self, response: Response) -> None:
        self._is_done_reading = True
        if self.cycle is not None and not self.cycle.response_complete:
            # This is a pipelined request. Earlier requests get responses, later ones do not.
            self.cycle.keep_alive = False
            return
        self.connections.discard(self)
        self._unset_keepalive_if_required()
        self.transport.write(response.to_bytes(is_last=True))
        self._linger()

    def _linger(self) -> None:
        self.transport.set_protocol(_LingeringConnection(self.transport, self.loop, self._clients))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()


class _LingeringConnection(asyncio.Protocol):
    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, clients: CdnClients
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._clients = clients
        self._lingering = LingeringClose(transport, loop.time(), READ_TIMEOUT_S)
        self._timer = loop.call_later(slow_readers.LINGER_POLL_INTERVAL_S, self._poll)

    def data_received(self, data: bytes) -> None:
        self._lingering.on_data()

    def eof_received(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._clients.leave(self._transport)

    def _poll(self) -> None:
        if self._lingering.should_linger(self._loop.time()):
            self._timer = self._loop.call_later(slow_readers.LINGER_POLL_INTERVAL_S, self._poll)
        else:
            self._transport.abort()


def _has_path(url: bytes) -> bool:
    """Returns whether the URL is valid and its path is ASCII."""
    try:
        path = httptools.parse_url(url).path
    except httptools.HttpParserInvalidURLError:
        return False
    return path is not None and path.isascii()
