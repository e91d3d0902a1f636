"""HTTP server for an ASGI application, with the protocol of uvicorn.

It has no defence against hostile clients, because the front serves the public.

The class `Server` of uvicorn installs signal handlers, and polls every 100 ms whether to stop. A plane has several
servers and handles signals for all of them, so it uses only the protocol of uvicorn.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

KEEP_ALIVE_S: Final = 75
"""Longer than the front keeps an idle connection. A request on a connection that closes has an
unknown outcome."""
_ABORT_S: Final = 1.0
_BACKLOG: Final = 128
"""Also the number of connections that one turn of the event loop accepts. Their clients may have
left, and a stopped loop accepts none. The front waits if the backlog is full.
"""


class HttpServer:
    """Serves an ASGI application on listening sockets.

    Call `start` and `stop` once each, on the event loop that serves.
    """

    def __init__(self, application: Any, sockets: Sequence[socket.socket]) -> None:
        self._config = Config(
            application,
            loop="none",
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=_BACKLOG,
        )
        self._sockets = tuple(sockets)
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        self._config.load()
        loop = asyncio.get_running_loop()
        for listener in self._sockets:
            is_unix = listener.family == socket.AF_UNIX
            listen = loop.create_unix_server if is_unix else loop.create_server
            self._servers.append(
                await listen(
                    lambda: HttpToolsProtocol(self._config, self._state, {}, loop),
                    sock=listener,
                    backlog=self._config.backlog,
                )
            )

    async def stop(self, grace_s: float) -> None:
        """Closes the listeners and the idle connections. Waits up to `grace_s` seconds for running
        requests, and then aborts their connections.
        """
        for server in self._servers:
            server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=grace_s)
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=_ABORT_S)


def listen_unix(path: Path) -> socket.socket:
    """Opens a listening unix socket with mode 0600. Raises OSError with the path in its message."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen()
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {path}: {error.strerror or error}") from None
    finally:
        os.umask(mask)
    listener.setblocking(False)
    return listener
