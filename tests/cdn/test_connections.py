from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.cdn import http_connection, server
from pyservice.observability import health
from tests.cdn.raw_http import Connect, Wire
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

MOST = 8
HERE = "127.0.6.1"
ELSEWHERE = "127.9.6.2"
PROXY = "127.0.6.9"
NOTHING = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    monkeypatch.setattr(server, "connections_most", lambda: MOST)
    async with running_listener(tmp_path / "objects", trusted_proxies=(f"{PROXY}/32",)) as listener:
        yield listener


async def is_served(wire: Wire) -> bool:
    try:
        await wire.send(NOTHING)
        return (await wire.answer())[0] == 404
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def fill(listener: Listener, connect: Connect, client: str, count: int) -> list[Wire]:
    wires = [await connect(listener.url, client) for _ in range(count)]
    for wire in wires:
        assert await is_served(wire)
    return wires


async def test_one_address_has_at_most_half_of_the_connections(
    listener: Listener, connect: Connect
) -> None:
    mine = await fill(listener, connect, HERE, MOST // 2)
    assert await (await connect(listener.url, HERE)).is_closed()
    await fill(listener, connect, ELSEWHERE, MOST // 2)
    assert await (await connect(listener.url, "127.8.6.3")).is_closed()
    assert [await is_served(wire) for wire in mine] == [True] * len(mine)
    await mine.pop().close()
    await until_free(listener, MOST - 1)
    await fill(listener, connect, HERE, 1)


async def until_free(listener: Listener, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while listener.server.connections > count:
            await asyncio.sleep(0.01)


async def test_trusted_proxy_may_exceed_the_share_of_an_address(
    listener: Listener, connect: Connect
) -> None:
    await fill(listener, connect, PROXY, MOST)
    assert await (await connect(listener.url, PROXY)).is_closed()


async def test_connection_counts_until_it_is_closed(listener: Listener, connect: Connect) -> None:
    """Other code serves the connection during an upload and after an error response."""
    for number in range(MOST // 2):
        wire = await connect(listener.url, HERE)
        url = await listener.objects.presign_put(f"up/a{number}", 2, 60)
        await wire.put_head(url, "Content-Length: 2", "Expect: 100-continue")
        assert (await wire.answer())[0] == 100
        if number == 0:
            await wire.send(b"ab")
            assert (await wire.answer())[0] == 200
            assert await is_served(wire)
        elif number == 1:
            url = url.replace("signature=", "signature=x")
            await wire.send(b"ab")
            assert (await wire.answer())[0] == 200
            await wire.put_head(url, "Content-Length: 2")
            assert (await wire.answer())[0] == 403
        elif number == 2:
            await wire.send(b"ab")
            assert (await wire.answer())[0] == 200
    assert await (await connect(listener.url, HERE)).is_closed()


async def test_closed_connection_no_longer_counts(listener: Listener, connect: Connect) -> None:
    for number in range(3 * MOST):
        wire = await connect(listener.url, HERE)
        url = await listener.objects.presign_put(f"up/a{number}", 2, 60)
        if number % 3 == 0:
            url = url.replace("signature=", "signature=x")
        await wire.put_head(url, "Content-Length: 2", "Expect: 100-continue")
        status, _, _ = await wire.answer()
        assert status == (100 if number % 3 else 403)
        if number % 3 == 1:
            await wire.send(b"ab")
            assert (await wire.answer())[0] == 200
        wire.abort()
        async with asyncio.timeout(PATIENCE_S):
            while listener.server.clients:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("files", "most"), [(256, 96), (1024, 384), (2048, 768), (4096, 1536), (1 << 20, 8192)]
)
def test_connections_leave_descriptors_for_the_service(
    monkeypatch: pytest.MonkeyPatch, files: int, most: int
) -> None:
    monkeypatch.setattr(health, "descriptor_limit", lambda: files)
    assert http_connection.connections_most() == most
