"""Uploads that close their connection, and uploads with head and body in one packet."""

from __future__ import annotations

import asyncio
import hashlib
import random
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.storage.objects import Part, PendingObject
from tests.cdn.raw_http import Connect
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    async with running_listener(tmp_path / "objects") as listener:
        yield listener


CONTENT_AT_ONCE = random.Random(5).randbytes(70_000)


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("1.1", "Connection: close"),
        ("1.0", "Connection: close"),
        ("1.0", "Accept: */*"),
        ("1.0", "Connection: keep-alive"),
        ("1.1", "Connection: Upgrade\r\nUpgrade: h2c"),
    ],
)
@pytest.mark.parametrize("length", [0, 5, 70_000])
async def test_body_sent_with_the_last_head_is_accepted(
    listener: Listener, version: str, line: str, length: int, connect: Connect
) -> None:
    wire = await connect(listener.url)
    target = (await listener.objects.presign_put("up/a", length, 60)).removeprefix(listener.url)
    lines = (f"PUT {target} HTTP/{version}", "Host: x", f"Content-Length: {length}", line, "", "")
    content = CONTENT_AT_ONCE[:length]
    await wire.send("\r\n".join(lines).encode() + content)
    status, headers, body = await wire.answer()
    assert (status, body) == (200, b"")
    if "Upgrade" not in line:
        assert headers["connection"] == "close"
        assert await wire.is_closed()
    await listener.objects.complete([PendingObject("up/a", [Part(0, length)])])
    assert b"".join([block async for block in listener.objects.read("up/a")]) == content
    assert listener.left_behind() == []


@pytest.mark.parametrize("length", [0, 5, 2 << 20])
async def test_client_without_keep_alive_can_upload(listener: Listener, length: int) -> None:
    content = random.Random(length).randbytes(length)
    url = await listener.objects.presign_put("up/a", length, 60)
    request = urllib.request.Request(url, content, method="PUT")

    def put() -> int:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return int(answer.status)

    assert await asyncio.to_thread(put) == 200
    await listener.objects.complete([PendingObject("up/a", [Part(0, length)])])
    digest = await listener.objects.digest("up/a", asyncio.to_thread)
    assert digest == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("line", ["Connection: close", "Accept: */*"])
@pytest.mark.parametrize("behind", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00 no http\r\n\r\n"])
async def test_data_after_a_whole_body_does_not_lose_the_response(
    listener: Listener, line: str, behind: bytes, connect: Connect
) -> None:
    wire = await connect(listener.url)
    target = (await listener.objects.presign_put("up/a", 3, 60)).removeprefix(listener.url)
    head = f"PUT {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n{line}\r\n\r\n"
    await wire.send(head.encode() + b"abc" + behind)
    status, headers, _ = await wire.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await wire.is_closed()
    await listener.objects.complete([PendingObject("up/a", [Part(0, 3)])])
    assert b"".join([block async for block in listener.objects.read("up/a")]) == b"abc"


async def test_pipelined_upload_does_not_break_the_previous_response(
    listener: Listener, connect: Connect
) -> None:
    content = random.Random(6).randbytes(8 << 20)
    await put_whole(listener.objects, "up/a", content)
    read = listener.objects.presign_get("up/a", 60).removeprefix(listener.url)
    write = (await listener.objects.presign_put("up/b", 3, 60)).removeprefix(listener.url)
    wire = await connect(listener.url)
    await wire.send(
        f"GET {read} HTTP/1.1\r\nHost: x\r\n\r\n"
        f"PUT {write} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc".encode()
    )
    status, _, body = await wire.answer()
    assert (status, body) == (200, content)
    assert await wire.is_closed()
    assert await listener.blobs.names("pending") == []
