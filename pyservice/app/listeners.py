"""Sockets that listen before anybody accepts, and a plain server of an ASGI application on one of
them, for what is not a door. The doors have servers of their own.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pyservice.settings import ListenAddress


def listen(address: ListenAddress, backlog: int) -> socket.socket:
    """A listening socket: clients wait in its queue. Raises OSError that says where."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(backlog)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def bound(listener: socket.socket) -> str:
    """Where it listens, as host:port."""
    host, port = listener.getsockname()[:2]
    return str(ListenAddress(host, port))


class AsgiServer:
    """Serves an application on a listening socket. `start` once, `stop` once."""

    def __init__(self, application: Any, listener: socket.socket) -> None:
        self._config = Config(
            application,
            loop="none",
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        self._listener = listener
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Accepts from now on."""
        self._config.load()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpToolsProtocol(self._config, self._state, {}, loop), sock=self._listener
        )

    async def stop(self) -> None:
        """Closes listener and connections; what is being answered is answered."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=1.0)
