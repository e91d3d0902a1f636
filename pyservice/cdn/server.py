from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from pyservice.cdn.http_connection import CdnClients, CdnConnection, connections_most
from pyservice.cdn.uploads import UploadReceiver
from pyservice.transport.client_address import Network, TrustedProxies

_CHECK_S: Final = 5.0
_ABORT_TIMEOUT_S: Final = 1.0


class CdnServer:
    def __init__(
        self,
        app: Any,
        listeners: Sequence[socket.socket],
        uploads: UploadReceiver | None,
        trusted_proxies: Iterable[str | Network] = (),
        backlog: int = 2048,
    ) -> None:
        self._config = Config(
            app,
            loop="none",
            http=CdnConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._listeners = tuple(listeners)
        self._backlog = backlog
        self._uploads = uploads
        proxies = TrustedProxies([str(network) for network in trusted_proxies])
        self._clients = CdnClients(proxies, connections_most())
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    @property
    def clients(self) -> int:
        return len(self._clients)

    async def start(self) -> None:
        self._config.load()
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            is_unix = listener.family == socket.AF_UNIX
            listen = loop.create_unix_server if is_unix else loop.create_server
            self._servers.append(
                await listen(self._connection, sock=listener, backlog=self._backlog)
            )
        self._timer = loop.call_later(_CHECK_S, self.check)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Closes the listeners, and waits up to `grace_s` seconds for running responses and
        uploads.

        Then aborts the remaining connections.
        """
        for server in self._servers:
            server.close()
        if self._timer is not None:
            self._timer.cancel()
        self._clients.are_leaving = True
        for connection in list(self._state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + grace_s
        if self._uploads is not None:
            await self._uploads.stop(grace_s)
        await self._clients.wait_until_closed(max(ends_s - loop.time(), 0.0))
        self._clients.abort_all()
        await self._clients.wait_until_closed(_ABORT_TIMEOUT_S)
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=_ABORT_TIMEOUT_S)

    def check(self) -> None:
        for connection in list(self._state.connections):
            if isinstance(connection, CdnConnection):
                connection.check()
        if self._uploads is not None:
            self._uploads.drop_slow()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self.check)

    def _connection(self) -> CdnConnection:
        loop = asyncio.get_running_loop()
        return CdnConnection(
            self._config, self._state, loop, self._clients, self._uploads, self._connection
        )
