from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyservice.edge.http_server import HttpServer, listen_unix
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_service import HttpConnection, is_closed, listener
from tests.support.waiting import PATIENCE_S, until_met

pytestmark = pytest.mark.anyio


class SlowApplication:
    """Answers with the path when `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.running = 0
        self.disconnected = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.running += 1
        await receive()
        disconnect = asyncio.ensure_future(receive())
        may_end = asyncio.ensure_future(self.may_end.wait())
        await asyncio.wait({disconnect, may_end}, return_when=asyncio.FIRST_COMPLETED)
        if not self.may_end.is_set():
            self.disconnected += 1
            may_end.cancel()
            return
        disconnect.cancel()
        body = scope["raw_path"]
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def app() -> SlowApplication:
    return SlowApplication()


class BusyServer(NamedTuple):
    """A server that answers one request."""

    server: HttpServer
    address: Any
    connection: HttpConnection


@pytest.fixture
async def busy(app: SlowApplication) -> AsyncIterator[BusyServer]:
    bound = listener()
    server = HttpServer(app, [bound])
    await server.start()
    connection = await HttpConnection.open(bound.getsockname())
    connection.say("GET", "/")
    await until_met(lambda: app.running == 1)
    yield BusyServer(server, bound.getsockname(), connection)
    await connection.close()


async def test_tcp_and_unix_sockets_are_served(app: SlowApplication, tmp_path: Path) -> None:
    app.may_end.set()
    path, bound = tmp_path / "http.sock", listener()
    server = HttpServer(app, [bound, listen_unix(path)])
    await server.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    over_tcp = await HttpConnection.open(bound.getsockname())
    over_unix = HttpConnection(*await asyncio.open_unix_connection(path))
    for connection in (over_tcp, over_unix):
        for _ in range(2):
            assert (await connection.ask("GET", "/a%20b")).body == b"/a%20b"
        await connection.close()
    await server.stop(0.0)


async def test_stop_waits_for_running_requests(app: SlowApplication, busy: BusyServer) -> None:
    idle = await HttpConnection.open(busy.address)
    stopping = asyncio.create_task(busy.server.stop(PATIENCE_S))
    assert await is_closed(idle)
    assert not stopping.done()
    app.may_end.set()
    response = await busy.connection.read()
    assert (response.status, response.headers["connection"]) == (200, "close")
    await stopping
    await idle.close()


async def test_stop_aborts_requests_after_the_grace(app: SlowApplication, busy: BusyServer) -> None:
    await busy.server.stop(0.0)
    assert app.disconnected == 1
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await busy.connection.read()


async def test_second_stop_ends_the_wait_of_the_first(busy: BusyServer) -> None:
    first = asyncio.create_task(busy.server.stop(10 * PATIENCE_S))
    await asyncio.sleep(0)
    await busy.server.stop(0.0)
    await asyncio.wait_for(first, PATIENCE_S)


def test_folder_without_permission_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot listen on .*/missing/http\.sock"):
        listen_unix(tmp_path / "missing" / "http.sock")
