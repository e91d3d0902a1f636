"""Shutdown of the CDN listener: running requests finish in time, then all connections close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.cdn import slow_readers
from tests.cdn.raw_http import Connect, Wire
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

EVER_S = 10_000.0
CLOCK_STEP_S = 0.001
"""Resolution of the clock of the event loop."""
NOTHING = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    async with running_listener(tmp_path / "objects") as listener:
        yield listener


async def begin_upload(listener: Listener, connect: Connect, key: str = "up/a") -> Wire:
    wire = await connect(listener.url)
    url = await listener.objects.presign_put(key, 4, 60)
    await wire.put_head(url, "Content-Length: 4", "Expect: 100-continue")
    assert (await wire.answer())[0] == 100
    return wire


def is_nothing_left(listener: Listener) -> bool:
    counts = listener.server.clients, listener.server.connections, listener.uploads.open_count
    return counts == (0, 0, 0) and listener.left_behind() == []


async def test_running_upload_gets_its_response_and_the_connection_closes(
    listener: Listener, connect: Connect
) -> None:
    idle = await connect(listener.url)
    await idle.send(NOTHING)
    assert (await idle.answer())[0] == 404
    wire = await begin_upload(listener, connect)
    stopping = asyncio.ensure_future(listener.server.stop(EVER_S))
    assert await idle.is_closed()
    await wire.send(b"abcd")
    status, headers, _ = await wire.answer()
    assert (status, headers.get("connection")) == (200, "close")
    await wire.send(NOTHING)
    assert await wire.is_closed()
    await wire.close()
    await asyncio.wait_for(stopping, PATIENCE_S)
    assert is_nothing_left(listener)
    assert await listener.blobs.names("pending") == ["pending/up/a.0"]


async def test_idle_client_does_not_delay_the_shutdown(
    listener: Listener, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_readers, "LINGER_POLL_INTERVAL_S", 0.1)
    wire = await begin_upload(listener, connect)
    stopping = asyncio.ensure_future(listener.server.stop(EVER_S))
    await wire.send(b"abcd")
    assert (await wire.answer())[0] == 200
    await asyncio.wait_for(stopping, PATIENCE_S)
    assert is_nothing_left(listener)
    assert await wire.is_closed()


async def test_unfinished_upload_is_cut_at_the_deadline(
    listener: Listener, connect: Connect
) -> None:
    wire = await begin_upload(listener, connect)
    await wire.send(b"ab")
    began_s = asyncio.get_running_loop().time()
    await asyncio.wait_for(listener.server.stop(grace_s=0.2), PATIENCE_S)
    took_s = asyncio.get_running_loop().time() - began_s
    assert took_s >= 0.2 - CLOCK_STEP_S
    assert is_nothing_left(listener)
    assert await wire.is_closed()
    assert await listener.blobs.names("pending") == []


async def test_rejected_client_that_still_sends_is_cut_at_the_deadline(
    listener: Listener, connect: Connect
) -> None:
    wire = await connect(listener.url)
    url = await listener.objects.presign_put("up/a", 4, 60)
    await wire.put_head(url, "Content-Length: 5000000")
    assert (await wire.answer())[0] == 400
    assert listener.server.clients == 1
    await asyncio.wait_for(listener.server.stop(grace_s=0.0), PATIENCE_S)
    assert is_nothing_left(listener)


async def test_shutdown_without_connections_is_immediate(listener: Listener) -> None:
    await asyncio.wait_for(listener.server.stop(EVER_S), PATIENCE_S)
    assert is_nothing_left(listener)
