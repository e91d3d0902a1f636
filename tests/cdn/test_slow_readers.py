"""Clients that read slowly get the whole response, and the listener closes connections of clients
that read nothing.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pyservice.cdn import http_connection
from tests.cdn.example_site import key, make_site
from tests.cdn.slow_connections import WHOLE, slow_line
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]

READ_S = 0.2
LOOK_BYTES = 32 << 10
"""The server checks the client's progress after each piece of this size."""
PACKED = random.Random(4).randbytes(450_000).hex().encode()
"""The compressed file is half as large and is written in one piece."""
PIECES = random.Random(5).randbytes(600_000)
FILES = {"whole.bin": WHOLE, "packed.json": PACKED, "pieces.bin": PIECES}


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", READ_S)
    monkeypatch.setattr(http_connection, "READ_TIMEOUT_S", READ_S)
    async with running_listener(tmp_path / "objects") as listener:
        for path, content in FILES.items():
            await put_whole(listener.objects, key("site", path), content)
        listener.sites.by_name["arena", "prod"] = make_site(FILES)
        yield listener


async def read_slowly(line: socket.socket, look: Callable[[], None]) -> tuple[int, float]:
    loop = asyncio.get_running_loop()
    content, looked, began = b"", 0, loop.time()
    while True:
        head, is_whole, body = content.partition(b"\r\n\r\n")
        if is_whole:
            (length,) = (
                int(one.split(b":")[1])
                for one in head.lower().split(b"\r\n")
                if one.startswith(b"content-length")
            )
            if len(body) == length:
                return length, loop.time() - began
        await asyncio.sleep(0.01)
        piece = await loop.sock_recv(line, 2048)
        assert piece, f"cut off after {len(content)} bytes"
        content += piece
        if len(content) - looked >= LOOK_BYTES:
            looked = len(content)
            look()


@pytest.mark.parametrize("last", ["Connection: close", "Accept: */*"], ids=["last", "kept alive"])
@pytest.mark.parametrize(
    ("name", "accept"),
    [("whole.bin", "identity"), ("packed.json", "gzip"), ("pieces.bin", "identity")],
)
async def test_slow_reader_gets_the_whole_file(
    listener: Listener, name: str, accept: str, last: str
) -> None:
    request = (f"GET /arena/prod/{name} HTTP/1.1", f"Accept-Encoding: {accept}", last)
    async with slow_line(listener, *request) as line:
        length, took_s = await read_slowly(line, listener.server.check)
    assert length == len(FILES[name]) or accept == "gzip"
    assert took_s > 3 * READ_S


async def test_client_that_reads_nothing_is_disconnected(listener: Listener) -> None:
    request = "GET /arena/prod/packed.json HTTP/1.1", "Accept-Encoding: gzip"
    async with slow_line(listener, *request):
        async with asyncio.timeout(PATIENCE_S):
            while not listener.cdn.counts.bytes:
                await asyncio.sleep(0.01)
            while listener.server.connections:
                listener.server.check()
                await asyncio.sleep(0.01)


@pytest.mark.fast
async def test_shutdown_lets_a_slow_reader_finish(listener: Listener) -> None:
    async with slow_line(listener, "GET /arena/prod/whole.bin HTTP/1.1") as line:
        async with asyncio.timeout(PATIENCE_S):
            while not listener.cdn.counts.bytes:
                await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(listener.server.stop(grace_s=60))
        length, _ = await read_slowly(line, listener.server.check)
        assert length == len(WHOLE)
        await asyncio.wait_for(stopping, PATIENCE_S)
