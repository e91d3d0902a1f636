from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from uvicorn.config import Config
from uvicorn.server import ServerState

from pyservice.edge.client_connection import ConnectionContext, HandedOver
from pyservice.edge.http_application import HttpApplication
from pyservice.edge.http_protocol import HttpProtocol
from pyservice.transport.native import ConnectionBudget


class HttpServer:
    """Serves an HttpApplication on listening sockets.

    Call `start` and `stop` on the event loop that serves.
    """

    def __init__(self, app: HttpApplication, sockets: Sequence[socket.socket]) -> None:
        self._app = app
        self._sockets = tuple(sockets)
        self.budget = ConnectionBudget(app.settings.connections_max)
        self._servers: list[asyncio.Server] = []
        self._connections: set[HttpProtocol] = set()
        self._no_connections = asyncio.Event()

    async def start(self) -> None:
        config = Config(
            self._app,
            loop="none",
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        config.load()
        state = ServerState()
        state.connections = self._connections  # type: ignore[assignment]  # nothing else is put in
        loop = asyncio.get_running_loop()
        self._context = context = ConnectionContext(
            config, state, loop, self.budget, self._on_close
        )
        for listener in self._sockets:
            is_unix = listener.family == socket.AF_UNIX
            listen = loop.create_unix_server if is_unix else loop.create_server
            server = await listen(
                lambda: HttpProtocol(context), sock=listener, backlog=self._app.settings.backlog
            )
            self._servers.append(server)

    async def adopt(self, connection: socket.socket, handed_over: HandedOver) -> None:
        """Serves a connection that the front has accepted."""
        protocol = HttpProtocol(self._context, handed_over)
        await self._context.loop.connect_accepted_socket(lambda: protocol, connection)

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.shutdown()

    async def stop(self, grace_s: float) -> None:
        self.stop_accepting()
        if not await self._wait_until_closed(grace_s):
            for connection in list(self._connections):
                connection.refuse_current()
            if not await self._wait_until_closed(1.0):
                for connection in list(self._connections):
                    connection.transport.abort()
                await self._wait_until_closed(1.0)

    def _on_close(self) -> None:
        if not self._connections:
            self._no_connections.set()

    async def _wait_until_closed(self, seconds: float) -> bool:
        if not self._connections:
            return True
        self._no_connections.clear()
        try:
            await asyncio.wait_for(self._no_connections.wait(), seconds)
        except TimeoutError:
            return False
        return True


def listen_unix(path: Path, backlog: int = 2048) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {path}: {error.strerror or error}") from None
    finally:
        os.umask(mask)
    listener.setblocking(False)
    return listener


def make_server(app: HttpApplication, sockets: Sequence[socket.socket]) -> HttpServer:
    return HttpServer(app, sockets)
