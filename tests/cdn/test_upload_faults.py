"""Failures at the start of an upload request: a 500 response, a log entry and no leak."""

from __future__ import annotations

import asyncio
import errno
import json
import mmap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http import httptools_impl

from pyservice.cdn import uploads
from pyservice.cdn.uploads import Reception
from pyservice.storage.objects import Part, PendingObject
from tests.cdn.raw_http import Connect
from tests.support.captured_logs import logged
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

Faults = Callable[[Listener], AbstractContextManager[None]]
CONTENT = bytes(range(256)) * 8192


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    async with running_listener(tmp_path / "objects") as listener:
        yield listener


@pytest.fixture
def log_lines() -> Iterator[Callable[[], list[Any]]]:
    with logged() as stream:
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


@contextmanager
def a_broken_folder(listener: Listener) -> Iterator[None]:
    aside = listener.folder.with_name("aside")
    listener.folder.rename(aside)
    listener.folder.symlink_to(listener.folder)
    yield
    listener.folder.unlink()
    aside.rename(listener.folder)


@contextmanager
def no_memory(listener: Listener) -> Iterator[None]:
    def refuse(*_: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mmap, "mmap", refuse)
        yield


@pytest.mark.parametrize("faults", [a_broken_folder, no_memory])
async def test_failed_start_of_an_upload_is_a_500_without_a_leak(
    listener: Listener, connect: Connect, log_lines: Callable[[], list[Any]], faults: Faults
) -> None:
    ray_ids, count = [], uploads.UPLOADS_MAX + 1
    with faults(listener):
        for number in range(count):
            wire = await connect(listener.url)
            url = await listener.objects.presign_put(f"up/a{number}", 3, 60)
            await wire.put_head(url, "Content-Length: 3")
            await wire.send(b"abc")
            status, headers, body = await wire.answer()
            problem = json.loads(body)
            assert (status, problem["code"]) == (500, "INTERNAL")
            assert (headers["connection"], problem["ray_id"]) == ("close", headers["x-ray-id"])
            assert headers["access-control-allow-origin"] == "*"
            assert await wire.is_closed()
            await wire.close()
            ray_ids.append(headers["x-ray-id"])
    errors = [line for line in log_lines() if line["level"] == "error"]
    assert [line["ray_id"] for line in errors] == ray_ids
    assert all("OSError" in line["exception"] for line in errors)
    assert listener.objects.counts.failures == {"INTERNAL": count}
    rays = listener.rays.take_all()
    assert [one.trace.ray_id for one in rays if one.code == "INTERNAL"] == ray_ids
    assert (listener.uploads.open_count, listener.left_behind()) == (0, [])
    async with asyncio.timeout(PATIENCE_S):
        while listener.server.clients:
            await asyncio.sleep(0.01)
    for number in range(uploads.UPLOADS_MAX):
        wire = await connect(listener.url)
        url = await listener.objects.presign_put(f"up{number}/b", 3, 60)
        await wire.put_head(url, "Content-Length: 3")
        await wire.send(b"abc")
        assert (await wire.answer())[0] == 200


async def test_upload_continues_with_its_block_when_memory_is_short(
    listener: Listener, connect: Connect
) -> None:
    spare_blocks = listener.uploads.spare_blocks
    wire = await connect(listener.url)
    url = await listener.objects.presign_put("up/a", len(CONTENT), 60)
    await wire.put_head(url, f"Content-Length: {len(CONTENT)}", "Expect: 100-continue")
    assert (await wire.answer())[0] == 100
    with no_memory(listener):
        await wire.send(CONTENT)
        assert (await wire.answer())[0] == 200
    await listener.objects.complete([PendingObject("up/a", [Part(0, len(CONTENT))])])
    assert b"".join([block async for block in listener.objects.read("up/a")]) == CONTENT
    assert listener.uploads.spare_blocks == spare_blocks


async def test_lost_first_bytes_of_an_upload_are_a_500_without_a_leak(
    listener: Listener,
    connect: Connect,
    log_lines: Callable[[], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Reception, "feed", refuse)
    wire = await connect(listener.url)
    target = (await listener.objects.presign_put("up/a", 3, 60)).removeprefix(listener.url)
    await wire.send(f"PUT {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc".encode())
    status, headers, body = await wire.answer()
    assert (status, json.loads(body)["code"]) == (500, "INTERNAL")
    assert await wire.is_closed()
    (line,) = [line for line in log_lines() if line["level"] == "error"]
    assert "MemoryError" in line["exception"]
    assert line["ray_id"] == headers["x-ray-id"]
    assert listener.objects.counts.failures == {"INTERNAL": 1}
    assert (listener.uploads.open_count, listener.left_behind()) == (0, [])
    assert await listener.blobs.names("pending") == []


async def test_failed_start_of_another_request_is_a_500(
    listener: Listener,
    connect: Connect,
    log_lines: Callable[[], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", refuse)
    wire = await connect(listener.url)
    await wire.send(b"GET /arena/prod/a HTTP/1.1\r\nHost: x\r\n\r\n")
    status, headers, body = await wire.answer()
    assert (status, json.loads(body)["code"]) == (500, "INTERNAL")
    assert await wire.is_closed()
    (line,) = [line for line in log_lines() if line["level"] == "error"]
    assert line["ray_id"] == headers["x-ray-id"] == json.loads(body)["ray_id"]
    assert "MemoryError" in line["exception"]


@pytest.mark.parametrize("url", ["http://e.x", "/a b", "x:80", "?a"])
async def test_invalid_url_is_a_client_error_without_a_log_entry(
    listener: Listener, connect: Connect, log_lines: Callable[[], list[Any]], url: str
) -> None:
    wire = await connect(listener.url)
    await wire.send(f"GET {url} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status, _, body = await wire.answer()
    assert (status, b"not valid HTTP/1.1" in body) == (400, True)
    assert await wire.is_closed()
    assert log_lines() == []
