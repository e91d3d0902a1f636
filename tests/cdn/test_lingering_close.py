"""Clients that still send after an error response: they can read it, and the connection closes in
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from pyservice.cdn import slow_readers
from tests.cdn.example_site import key, make_site
from tests.cdn.raw_http import Connect, Wire
from tests.cdn.slow_connections import WHOLE, slow_line
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

POLL_INTERVAL_S = 0.1


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    monkeypatch.setattr(slow_readers, "LINGER_POLL_INTERVAL_S", POLL_INTERVAL_S)
    async with running_listener(tmp_path / "objects") as listener:
        yield listener


async def refused(listener: Listener, connect: Connect) -> Wire:
    wire = await connect(listener.url)
    url = await listener.objects.presign_put("up/a", 10, 60)
    await wire.put_head(url, "Content-Length: 900000000")
    return wire


async def until_gone(listener: Listener) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while listener.server.clients:
            await asyncio.sleep(0.01)


async def test_slow_sender_reads_its_error_response(listener: Listener, connect: Connect) -> None:
    wire = await refused(listener, connect)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 8 * POLL_INTERVAL_S
    while loop.time() < until_s:
        await wire.send(b"x" * 1000)
        await asyncio.sleep(POLL_INTERVAL_S / 4)
    status, _, body = await wire.answer()
    assert (status, orjson.loads(body)["code"]) == (400, "UPLOAD_LENGTH_MISMATCH")
    assert await wire.is_closed()
    await wire.close()
    await until_gone(listener)


async def test_endless_sender_is_disconnected(
    listener: Listener, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_readers, "LINGER_MAX_S", 5 * POLL_INTERVAL_S)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    wire = await refused(listener, connect)

    async def go_on() -> None:
        while True:
            await wire.send(b"x" * 1000)
            await asyncio.sleep(POLL_INTERVAL_S / 4)

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(go_on(), PATIENCE_S)
    assert loop.time() - began_s >= 5 * POLL_INTERVAL_S
    await until_gone(listener)


async def test_idle_client_after_an_error_is_disconnected(
    listener: Listener, connect: Connect
) -> None:
    wire = await refused(listener, connect)
    assert (await wire.answer())[0] == 400
    await until_gone(listener)


async def test_slow_reader_gets_the_response_before_the_error(
    listener: Listener,
) -> None:
    """The slow reader gets a large response and then an error. The response takes many times as
    long as the closing timeout.
    """
    await put_whole(listener.objects, key("site", "whole.bin"), WHOLE)
    listener.sites.by_name["arena", "prod"] = make_site({"whole.bin": WHOLE})
    loop = asyncio.get_running_loop()
    async with slow_line(listener, "GET /arena/prod/whole.bin HTTP/1.1") as line:
        async with asyncio.timeout(PATIENCE_S):
            while not listener.cdn.counts.bytes:
                await asyncio.sleep(0.01)
        await loop.sock_sendall(line, b"no http\r\n\r\n")
        content, began_s = b"", loop.time()
        while piece := await asyncio.wait_for(loop.sock_recv(line, 2048), PATIENCE_S):
            content += piece
            await asyncio.sleep(0.01)
    _, _, rest = content.partition(b"\r\n\r\n")
    assert rest.startswith(WHOLE), f"cut off after {len(content)} bytes"
    assert rest.removeprefix(WHOLE).startswith(b"HTTP/1.1 400 ")
    assert loop.time() - began_s > 8 * POLL_INTERVAL_S
