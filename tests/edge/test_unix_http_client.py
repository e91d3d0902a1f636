"""HTTP client for a Unix socket, with servers that are broken or slow, or that close connections."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pyservice.edge.forwarding import HttpForwarder
from pyservice.edge.http_application import create_app
from pyservice.edge.unix_http_client import NoResponse, Reply, UnixHttpClient
from pyservice.observability.metrics import RequestMetrics
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from pyservice.watch import LongPolls
from tests.support.forwarding_pair import BILLING, CLOUD, VALIDATE, SmallControl, until
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_service import HttpApi, HttpConnection, Response, code_of, open_http
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

NAME = b'{"display_name":"a"}'
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def broken(
    folder: Path, serve: Serve, upstreams: list[UnixHttpClient] | None = None
) -> AsyncIterator[HttpApi]:
    """Public server in front of a broken server. `upstreams` receives the client connections."""
    path = folder / "broken.sock"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_unix_server(handle, path)
    forwarder = HttpForwarder(path, LongPolls(), answer_timeout_ms=int(1_000 * PATIENCE_S))
    if upstreams is not None:
        upstreams.append(forwarder._upstream)
    forwarded = tuple(SmallControl().operations())
    app = create_app(
        {},
        TransportSettings(),
        RequestMetrics(),
        Limits(),
        forwarder=forwarder,
        forwarded=forwarded,
    )
    async with open_http(app) as api:
        yield api
    await forwarder.close()
    server.close()


async def say_to(api: HttpApi, method: str, path: str, body: bytes | None = None) -> Response:
    connection = await HttpConnection.open(api.address)
    try:
        return await connection.ask(method, path, body, CLOUD)
    finally:
        await connection.close()


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


async def test_read_is_retried_once_on_a_new_connection(tmp_path: Path) -> None:
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if len(heads) % 2 == 0:
            writer.write(OK)
            await writer.drain()

    async with broken(tmp_path, serve) as api:
        assert (await say_to(api, "GET", BILLING)).body == b"{}"
    assert len(heads) == 2
    assert heads[0] == heads[1]


async def test_read_is_not_retried_endlessly(tmp_path: Path) -> None:
    tries = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(await reader.readuntil(b"\r\n\r\n"))

    async with broken(tmp_path, serve) as api:
        response = await say_to(api, "GET", BILLING)
    assert (response.status, code_of(response)) == (503, "CONTROL_PLANE_UNAVAILABLE")
    assert "retry-after" in response.headers
    assert len(tries) == 2


async def test_change_is_sent_once_and_an_unknown_result_is_reported(tmp_path: Path) -> None:
    tries = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(await reader.readexactly(len(NAME)))

    async with broken(tmp_path, serve) as api:
        response = await say_to(api, "POST", VALIDATE, NAME)
    assert (response.status, code_of(response)) == (503, "CONTROL_PLANE_UNAVAILABLE")
    assert "Idempotency-Key" in response.json["detail"]
    assert len(tries) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
    ids=["no-http", "cut-off", "bad-length", "odd-status", "upgrade"],
)
async def test_invalid_response_is_not_forwarded(tmp_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with broken(tmp_path, serve) as api:
        assert code_of(await say_to(api, "GET", BILLING)) == "CONTROL_PLANE_UNAVAILABLE"


async def test_response_may_arrive_byte_by_byte_chunked_and_after_continue(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
        )
        for byte in text:
            writer.write(bytes((byte,)))
            await writer.drain()

    async with broken(tmp_path, serve) as api:
        response = await say_to(api, "GET", BILLING)
    assert (response.status, response.body) == (200, b"{}")
    assert response.headers["content-length"] == "2"
    assert "transfer-encoding" not in response.headers


async def test_second_response_to_one_request_is_discarded(tmp_path: Path) -> None:
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(OK + OK.replace(b"{}", b"no"))
                await writer.drain()

    async with broken(tmp_path, serve) as api:
        for _ in range(10):
            assert (await say_to(api, "GET", BILLING)).body == b"{}"
    assert len(requests) >= 10


async def test_closed_idle_connection_fails_no_request(tmp_path: Path) -> None:
    served = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await reader.readexactly(1))
        await reader.readuntil(NAME)
        writer.write(OK)
        await writer.drain()

    upstreams: list[UnixHttpClient] = []
    async with broken(tmp_path, serve, upstreams) as api:
        for _ in range(10):
            assert (await say_to(api, "POST", VALIDATE, NAME)).body == b"{}"
            await until(lambda: not upstreams[0]._all)
    assert len(served) == 10


async def test_connections_are_reused(tmp_path: Path) -> None:
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK)
                await writer.drain()

    async with broken(tmp_path, serve) as api:
        for _ in range(50):
            assert (await say_to(api, "GET", BILLING)).body == b"{}"
    assert len(connections) == 1


async def test_connection_close_response_ends_reuse(tmp_path: Path) -> None:
    connections, is_over = [], asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(NAME)
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        await writer.drain()
        # The server closes late, so a request on the connection would be lost.
        await is_over.wait()

    async with broken(tmp_path, serve) as api:
        for _ in range(3):
            assert (await say_to(api, "POST", VALIDATE, NAME)).body == b"{}"
        is_over.set()
    assert len(connections) == 3


async def test_disconnect_during_a_response_affects_no_other_request(tmp_path: Path) -> None:
    """When the client disconnects, its connection to the internal server is free already, and
    another request may use it.
    """
    path = tmp_path / "answers.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    served: list[socket.socket] = []

    def serve() -> None:
        one, _ = listener.accept()
        served.append(one)
        one.recv(4096)

    def answer() -> None:
        served[0].sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")

    upstream = UnixHttpClient(path, answer_timeout_ms=int(1_000 * PATIENCE_S))
    accepted = asyncio.create_task(asyncio.to_thread(serve))
    leaving = asyncio.create_task(upstream.ask(HEAD, b"", is_safe=True))
    await accepted
    gate = asyncio.Event()

    async def come_after() -> Reply:
        await gate.wait()
        return await upstream.ask(HEAD, b"", is_safe=True)

    staying = asyncio.create_task(come_after())
    await asyncio.sleep(0)

    def turn() -> None:
        # The response arrives before either task continues.
        answer()
        gate.set()
        leaving.cancel()

    asyncio.get_running_loop().call_soon(turn)
    with suppress(asyncio.CancelledError):
        await leaving
    serving = asyncio.create_task(asyncio.to_thread(_answer_next, listener, served))
    async with asyncio.timeout(PATIENCE_S):
        assert (await staying).body == b"hi"
        await serving
    upstream.close()
    for one in (*served, listener):
        one.close()


async def test_started_stream_is_forwarded_and_not_retried(tmp_path: Path) -> None:
    path = tmp_path / "parts.sock"
    heads: list[bytes] = []
    go_on = asyncio.Event()
    parts = [b"6\r\nfirst \r\n", b"6\r\nsecond\r\n"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + parts[0])
        await go_on.wait()
        go_on.clear()
        if len(heads) == 1:
            writer.write(parts[1] + b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    upstream = UnixHttpClient(path, answer_timeout_ms=int(1_000 * PATIENCE_S))
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    for is_whole in (True, False):
        asking = asyncio.create_task(upstream.ask(HEAD, b"", is_safe=True, take=chunks.put_nowait))
        assert await asyncio.wait_for(chunks.get(), PATIENCE_S) == b"first "
        assert not asking.done()
        go_on.set()
        if is_whole:
            reply = await asking
            assert (reply.status, reply.body) == (200, b"")
            assert await chunks.get() == b"second"
            continue
        with pytest.raises(NoResponse) as caught:
            await asking
        assert caught.value.was_begun
    assert len(heads) == 2
    upstream.close()
    server.close()


async def test_error_response_is_not_streamed(tmp_path: Path) -> None:
    path = tmp_path / "refused.sock"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    upstream = UnixHttpClient(path, answer_timeout_ms=int(1_000 * PATIENCE_S))
    chunks: list[bytes] = []
    reply = await upstream.ask(HEAD, b"", is_safe=True, take=chunks.append)
    assert (reply.status, reply.body, chunks) == (503, b"{}", [])
    upstream.close()
    server.close()


def _answer_next(listener: socket.socket, served: list[socket.socket]) -> None:
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(served[0], selectors.EVENT_READ)
        while True:
            for key, _ in ready.select(10):
                if key.fileobj is listener:
                    served.append(listener.accept()[0])
                if served[-1].recv(4096):
                    served[-1].sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
                    return
                ready.unregister(served[0])
