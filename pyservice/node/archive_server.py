"""HTTPS server from which the Pods of a node fetch archives of builds, by digest.

Only a caller that knows the digest gets an archive, and the digest proves the content. So callers
need no certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any, BinaryIO, Final, NoReturn

from aiohttp import web

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.durable_files import is_disk_full
from pyservice.errors import ServiceError, Unreachable
from pyservice.node.archive_cache import ArchiveCache, ArchiveDamaged
from pyservice.observability.logging import get_logger
from pyservice.rpc.node_certificates import NodeCertificates

PATH: Final = "/archives/"

_BLOCK_BYTES: Final = 256 << 10
SEND_TIMEOUT_S: Final = 60.0
"""Time in which a client must take a block."""
MISSES_MAX: Final = 20
"""Unknown digests that one address may ask for in a minute. Each one costs the service a query."""
CONNECTIONS_MAX: Final = 1_024
"""Limit of open connections. Each costs a descriptor and the buffers of TLS."""
ADDRESS_CONNECTIONS_MAX: Final = 4
"""Limit of one address. A Pod needs one, so the Pods of one group cannot lock out all others."""
IDLE_TIMEOUT_S: Final = 10.0
"""Time for a handshake, and then for a request."""
_ACCEPT_PAUSE_S: Final = 0.5
_MISSES_S: Final = 60.0
_STOP_GRACE_S: Final = 2.0

_log = get_logger("node")


class ArchiveServer:
    def __init__(
        self, cache: ArchiveCache, certificates: NodeCertificates, listener: socket.socket
    ) -> None:
        self._cache = cache
        self._listener = listener
        self._tls = _ServedCertificates(certificates)
        self._misses: dict[str, int] = {}
        self._misses_since_s = 0.0
        self._opening: dict[asyncio.Task[None], str] = {}
        """Connections that begin, with their addresses."""
        self._accepting: asyncio.Task[NoReturn] | None = None
        application = web.Application()
        application.router.add_get(PATH + "{sha256:[0-9a-f]{64}}", self._serve)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_STOP_GRACE_S,
            keepalive_timeout=IDLE_TIMEOUT_S,
        )

    async def start(self) -> None:
        await self._runner.setup()
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self) -> None:
        for task in (self._accepting, *self._opening):
            if task is not None:
                await cancel_and_wait(task)
        self._listener.close()
        await self._runner.cleanup()

    async def _accept(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(self._listener)
            except OSError as error:
                _log.warning("connection not accepted", problem=error.strerror)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if self._is_full(address):
                # The client tries again after a pause.
                connection.close()
                continue
            task = asyncio.create_task(self._open(connection))
            self._opening[task] = address
            task.add_done_callback(self._opening.pop)

    def _is_full(self, address: str) -> bool:
        server = self._runner.server
        assert server is not None
        addresses = [*self._opening.values(), *map(_address_of, server.connections)]
        return (
            len(addresses) >= CONNECTIONS_MAX or addresses.count(address) >= ADDRESS_CONNECTIONS_MAX
        )

    async def _open(self, connection: socket.socket) -> None:
        assert self._runner.server is not None
        # A client that fails its handshake gets no answer.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._runner.server,
                connection,
                ssl=self._tls.context,
                ssl_handshake_timeout=IDLE_TIMEOUT_S,
            )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        sha256 = request.match_info["sha256"]
        address = request.remote or ""
        if self._has_too_many_misses(address):
            return _problem(429, "Unknown digests: ask again in a minute.")
        try:
            file = await self._cache.open(sha256)
        except ServiceError as error:
            if error.code == "BUILD_NOT_FOUND":
                self._misses[address] = self._misses.get(address, 0) + 1
                return _problem(404, "The service has no archive with this digest.")
            return _failed(sha256, error)
        except (ArchiveDamaged, Unreachable, TimeoutError, OSError) as error:
            return _failed(sha256, error)
        with file:
            return await _send(request, file)

    def _has_too_many_misses(self, address: str) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._misses_since_s >= _MISSES_S:
            self._misses_since_s = now_s
            self._misses.clear()
        return self._misses.get(address, 0) >= MISSES_MAX


def _address_of(handler: web.RequestHandler) -> str:
    peer = None if handler.transport is None else handler.transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


async def _send(request: web.Request, file: BinaryIO) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = "application/octet-stream"
    response.content_length = file.seek(0, 2)
    file.seek(0)
    await response.prepare(request)
    try:
        while request.method != "HEAD" and (
            block := await asyncio.to_thread(file.read, _BLOCK_BYTES)
        ):
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await response.write(block)
        await response.write_eof()
    except (TimeoutError, ConnectionError):
        # The client has gone, or takes nothing. The announced length shows that content is missing.
        if request.transport is not None:
            request.transport.abort()
    return response


def _failed(sha256: str, error: Exception) -> web.Response:
    _log.error("archive not served", sha256=sha256, problem=str(error) or type(error).__name__)
    if isinstance(error, OSError) and is_disk_full(error):
        return _problem(507, "The disk of the node has no space for this archive.")
    return _problem(503, "The service did not give this archive to the node: try again.")


def _problem(status: int, sentence: str) -> web.Response:
    return web.Response(status=status, text=f"{sentence}\n")


class _ServedCertificates:
    """TLS settings of a server. Each new connection has the newest certificate."""

    def __init__(self, certificates: NodeCertificates) -> None:
        self._certificates = certificates
        self._served = certificates.pem
        self._newest = self._load()
        self.context = self._newest
        # It runs in each handshake, before the certificate is sent.
        self.context.sni_callback = self._use_newest

    def _use_newest(self, stream: Any, server_name: str | None, context: ssl.SSLContext) -> None:
        self._certificates.refresh()
        if self._certificates.pem != self._served:
            try:
                self._newest = self._load()
            except (OSError, ssl.SSLError) as error:
                # The files have changed again. The next connection reads them.
                _log.warning("certificate not replaced", problem=str(error))
                return
            self._served = self._certificates.pem
        stream.context = self._newest

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._certificates.chain_files)
        return context
