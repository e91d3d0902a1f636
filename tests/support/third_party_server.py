"""A local HTTP server that records requests and returns configured responses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from multidict import CIMultiDictProxy

from tests.support.waiting import PATIENCE_S

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ReceivedRequest:
    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass
class ThirdPartyServer:
    reply: Reply
    port: int = 0
    scheme: str = "http"
    requests: list[ReceivedRequest] = field(default_factory=list)
    now: int = 0
    most: int = 0
    disconnect_count: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str = "/ask", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def answers(self, status: int, body: bytes = b"{}") -> None:

        async def reply(_: web.Request) -> web.StreamResponse:
            return web.Response(status=status, body=body)

        self.reply = reply

    def redirects(self, status: int) -> None:
        async def reply(_: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": self.url("/elsewhere")})

        self.reply = reply

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            body = await request.read()
            self.requests.append(
                ReceivedRequest(request.method, request.path_qs, request.headers, body)
            )
            self.arrived.set()
            return await self.reply(request)
        except asyncio.CancelledError:
            self.disconnect_count += 1
            raise
        finally:
            self.now -= 1


def hold_responses(server: ThirdPartyServer) -> asyncio.Event:
    go = asyncio.Event()

    async def reply(_: web.Request) -> web.StreamResponse:
        await go.wait()
        return web.Response()

    server.reply = reply
    return go


async def wait_requested(server: ThirdPartyServer) -> None:
    await asyncio.wait_for(server.arrived.wait(), PATIENCE_S)


async def _fine(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"{}")


@asynccontextmanager
async def third_party_server(
    host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[ThirdPartyServer]:
    server = ThirdPartyServer(_fine, scheme="http" if tls is None else "https")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, 0, ssl_context=tls)
        await site.start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_server(reply: bytes, *, then_close: bool) -> AsyncIterator[int]:

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1 << 16)
            writer.write(reply)
            await writer.drain()
            if not then_close:
                await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
