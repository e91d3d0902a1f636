"""Limits for concurrent uploads: one for each URL, and a share for each upload id and each
address.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pyservice.cdn import uploads
from tests.cdn.raw_http import Connect, Wire
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

HALF = 32
SHARE = 8
HERE = "127.0.4.1"
ELSEWHERE = "127.0.4.2"
PROXY = "127.0.4.9"


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    async with running_listener(tmp_path / "objects", trusted_proxies=(f"{PROXY}/32",)) as listener:
        yield listener


def code_of(body: bytes) -> str:
    return str(httpx.Response(200, content=body).json()["code"]) if body else "OK"


class Sender:
    def __init__(self, listener: Listener, connect: Connect) -> None:
        self._listener = listener
        self._connect = connect

    async def url(self, key: str) -> str:
        return await self._listener.objects.presign_put(key, 2, 60)

    async def begin(self, key: str, client: str, *lines: str) -> tuple[Wire, str]:
        wire = await self._connect(self._listener.url, client)
        await wire.put_head(
            await self.url(key), "Content-Length: 2", *lines, "Expect: 100-continue"
        )
        status, _, body = await wire.answer()
        return wire, "CONTINUE" if status == 100 else code_of(body)

    async def fill(self, count: int, upload: str, client: str, *lines: str) -> list[Wire]:
        wires = []
        for number in range(count):
            key, host = f"{upload.format(number)}/a{number}", client.format(number)
            wire, code = await self.begin(key, host, *(line.format(number) for line in lines))
            assert code == "CONTINUE", number
            wires.append(wire)
        return wires


@pytest.fixture
def sender(listener: Listener, connect: Connect) -> Sender:
    return Sender(listener, connect)


async def test_newest_upload_of_a_url_replaces_the_older(
    listener: Listener, sender: Sender
) -> None:
    """A client that lost its connection retries before the listener notices the loss."""
    former, code = await sender.begin("up/a", HERE)
    for _ in range(64):
        newer, code = await sender.begin("up/a", HERE)
        assert code == "CONTINUE"
        status, headers, body = await former.answer()
        assert (status, code_of(body), headers["connection"]) == (409, "IN_USE", "close")
        assert listener.uploads.open_count == 1
        former = newer
    other, code = await sender.begin("up/b", HERE)
    assert code == "CONTINUE"
    for wire in (former, other):
        await wire.send(b"ab")
        assert (await wire.answer())[0] == 200
    assert sorted(await listener.blobs.names("pending")) == ["pending/up/a.0", "pending/up/b.0"]
    async with asyncio.timeout(PATIENCE_S):
        while listener.left_behind():
            await asyncio.sleep(0.01)


async def test_parts_of_one_file_upload_concurrently(listener: Listener, connect: Connect) -> None:
    wires = []
    for offset in (0, 2):
        url = await listener.objects.presign_put("up/a", 2, 60, offset)
        wires.append(await connect(listener.url))
        await wires[-1].put_head(url, "Content-Length: 2", "Expect: 100-continue")
        assert (await wires[-1].answer())[0] == 100
    for wire in wires:
        await wire.send(b"ab")
        assert (await wire.answer())[0] == 200


async def test_slow_uploads_of_one_address_leave_permits_to_others(
    listener: Listener, sender: Sender
) -> None:
    wires = await sender.fill(HALF, "up{}", HERE)
    _, code = await sender.begin("more/a", HERE)
    assert code == "OVERLOADED"
    await sender.fill(SHARE, "there{}", ELSEWHERE)
    _, code = await sender.begin("more/a", ELSEWHERE)
    assert code == "OVERLOADED"
    await sender.fill(SHARE, "far{}", "127.0.5.{}")
    for wire in wires[: HALF - SHARE + 1]:
        await wire.send(b"ab")
        assert (await wire.answer())[0] == 200
    _, code = await sender.begin("more/a", HERE)
    assert code == "CONTINUE"


async def test_slow_files_of_one_upload_leave_permits_to_others(sender: Sender) -> None:
    await sender.fill(HALF, "up", "127.0.5.{}")
    _, code = await sender.begin("up/more", ELSEWHERE)
    assert code == "OVERLOADED"
    _, code = await sender.begin("other/a", ELSEWHERE)
    assert code == "CONTINUE"


async def test_clients_behind_a_trusted_proxy_have_their_own_shares(sender: Sender) -> None:
    # Only a trusted proxy may forward another client address.
    await sender.fill(HALF, "up{}", HERE, "X-Forwarded-For: 198.51.100.{}")
    _, code = await sender.begin("more/a", HERE, "X-Forwarded-For: 203.0.113.1")
    assert code == "OVERLOADED"
    lines = ("X-Forwarded-For: 198.51.100.7",)
    await sender.fill(SHARE, "behind{}", PROXY, *lines)
    _, code = await sender.begin("more/a", PROXY, *lines)
    assert code == "OVERLOADED"
    _, code = await sender.begin("more/a", PROXY, "X-Forwarded-For: 198.51.100.8")
    assert code == "CONTINUE"


async def test_rejected_newer_upload_keeps_the_older(listener: Listener, sender: Sender) -> None:
    await sender.fill(HALF, "extra{}", HERE)
    older, _ = await sender.begin("up/a", ELSEWHERE)
    _, code = await sender.begin("up/a", HERE)
    assert code == "OVERLOADED"
    await older.send(b"ab")
    assert (await older.answer())[0] == 200
    assert listener.objects.counts.failures == {"OVERLOADED": 1}


async def test_permit_is_released_when_the_file_is_on_disk(
    listener: Listener, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload keeps its permit until its file is synced, because its data is in memory until
    then.
    """
    disk, sync = threading.Event(), os.fsync

    def slow_sync(file: int) -> None:
        assert disk.wait(60)
        sync(file)

    monkeypatch.setattr(os, "fsync", slow_sync)
    sender = Sender(listener, connect)
    wires = await sender.fill(2 * HALF, "up{}", "127.0.6.{}")
    for wire in wires:
        await wire.send(b"ab")
    async with asyncio.timeout(PATIENCE_S):
        while listener.uploads.open_count:
            await asyncio.sleep(0.005)
    assert (await sender.begin("late/a", ELSEWHERE))[1] == "OVERLOADED"
    disk.set()
    for wire in wires:
        assert (await wire.answer())[0] == 200
    async with asyncio.timeout(PATIENCE_S):
        while (await sender.begin("later/a", ELSEWHERE))[1] != "CONTINUE":
            await asyncio.sleep(0.005)


async def test_upload_that_cannot_finish_before_its_url_expires_is_rejected(
    listener: Listener, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LEAST_S", 8.0)
    length, piece = 64 << 20, b"x" * (64 << 10)
    slow, quick = await connect(listener.url), await connect(listener.url)
    for wire, key, size in ((slow, "up/slow", length), (quick, "up/quick", len(piece) * 20)):
        url = await listener.objects.presign_put(key, size, 8)
        await wire.put_head(url, f"Content-Length: {size}", "Expect: 100-continue")
        assert (await wire.answer())[0] == 100
    seconds_left = 20
    async with asyncio.timeout(30):
        while listener.uploads.open_count:
            await slow.send(piece)
            if seconds_left:
                await quick.send(piece)
                seconds_left -= 1
            await asyncio.sleep(0.05)
            listener.server.check()
    status, _, body = await slow.answer()
    assert (status, code_of(body)) == (408, "REQUEST_TIMEOUT")
    assert (await quick.answer())[0] == 200
    assert await listener.blobs.names("pending") == ["pending/up/quick.0"]
