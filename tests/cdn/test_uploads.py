"""Uploads to the folder over real connections: lengths, broken clients, concurrent uploads, full
disks.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pyservice.cdn import http_connection, uploads
from pyservice.storage.objects import PART_EXPIRES_S, Part, PendingObject
from pyservice.storage.signed_urls import UrlGrant, UrlSigner
from tests.cdn.raw_http import Connect
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import KEY, Listener, running_listener
from tests.support.small_disk import small_disk
from tests.support.tiers import one_of
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
FAR_FUTURE_S = 4_000_000_000
KILLED_DELETION = """
import asyncio, os, signal, sys
from pathlib import Path
import httpx
from tests.support.cdn_listener import running_listener

async def delete(folder, step):
    async with running_listener(folder) as listener, httpx.AsyncClient() as client:
        for key in ("up/a", "up/b"):
            url = await listener.objects.presign_put(key, 3, 60)
            assert (await client.put(url, content=b"abc")).status_code == 200
        do = getattr(os, step)

        def kill(path, *rest, **more):
            # Reading a folder opens it, too.
            if step != "open" or rest[0] & os.O_CREAT:
                os.kill(os.getpid(), signal.SIGKILL)
            return do(path, *rest, **more)

        setattr(os, step, kill)
        await listener.objects.delete_upload("up")

asyncio.run(delete(Path(sys.argv[1]), sys.argv[2]))
"""
"""Deletes an upload of two parts, and stops before a step, as a crash does."""


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    async with running_listener(tmp_path / "objects") as listener:
        yield listener


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30) as client:
        yield client


async def pending(listener: Listener) -> list[str]:
    return await listener.blobs.names("pending")


def code_of(body: bytes) -> str:
    return str(httpx.Response(200, content=body).json()["code"])


@pytest.mark.parametrize("length", [0, 1, 100, 65_536, 1 << 20, (1 << 20) + 1, 10_000_019])
async def test_every_length_arrives_unchanged(
    listener: Listener, client: httpx.AsyncClient, length: int
) -> None:
    content = random.Random(length).randbytes(length)
    answer = await client.put(
        await listener.objects.presign_put("up/a", length, 60), content=content
    )
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    await listener.objects.complete([PendingObject("up/a", [Part(0, length)])])
    digest = await listener.objects.digest("up/a", asyncio.to_thread)
    assert digest == hashlib.sha256(content).hexdigest()
    assert listener.left_behind() == []
    assert (listener.objects.counts.puts, listener.objects.counts.put_bytes) == (1, length)


async def test_one_connection_serves_uploads_and_other_requests(
    listener: Listener, client: httpx.AsyncClient, connect: Connect
) -> None:
    for number in range(5):
        url = await listener.objects.presign_put(f"up/a{number}", 300_000, 60)
        assert (await client.put(url, content=b"x" * 300_000)).status_code == 200
        assert (await client.get(listener.url)).status_code == 404
    wire = await connect(listener.url)
    for number in range(3):
        await wire.put_head(
            await listener.objects.presign_put(f"up/b{number}", 3, 60), "Content-Length: 3"
        )
        await wire.send(b"abc")
        assert (await wire.answer())[0] == 200
    assert len(await pending(listener)) == 8


@pytest.mark.parametrize(
    "lines",
    [("Content-Length: 9",), ("Content-Length: 11",), ("Transfer-Encoding: chunked",), ()],
)
async def test_wrong_length_is_rejected_before_the_body(
    listener: Listener, lines: tuple[str, ...], connect: Connect
) -> None:
    wire = await connect(listener.url)
    await wire.put_head(await listener.objects.presign_put("up/a", 10, 60), *lines)
    status, headers, body = await wire.answer()
    assert (status, code_of(body)) == (400, "UPLOAD_LENGTH_MISMATCH")
    assert headers["connection"] == "close"
    assert await pending(listener) == []
    assert listener.objects.counts.failures == {"UPLOAD_LENGTH_MISMATCH": 1}


async def test_rejected_client_that_still_sends_reads_the_error(
    listener: Listener, connect: Connect
) -> None:
    wire = await connect(listener.url)
    await wire.put_head(
        await listener.objects.presign_put("up/a", 10, 60), "Content-Length: 900000"
    )
    for _ in range(9):
        await wire.send(b"x" * 100_000)
    status, _, body = await wire.answer()
    assert (status, code_of(body)) == (400, "UPLOAD_LENGTH_MISMATCH")
    assert await wire.is_closed()


@pytest.mark.parametrize(
    ("before", "after"),
    [("up/a", "up/b"), ("length=10", "length=11"), ("expires=", "expires=1"), ("up/a", "../a")],
)
async def test_altered_url_is_rejected(
    listener: Listener, before: str, after: str, connect: Connect
) -> None:
    url = await listener.objects.presign_put("up/a", 10, 60)
    wire = await connect(url)
    await wire.put_head(url.replace(before, after), "Content-Length: 10")
    status, _, body = await wire.answer()
    assert (status, code_of(body)) == (403, "UPLOAD_URL_INVALID")


async def test_read_url_does_not_allow_uploads(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    answer = await client.put(listener.objects.presign_get("up/a", 60), content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (403, "UPLOAD_URL_INVALID")


async def test_url_is_rejected_after_completion(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    url = await listener.objects.presign_put("up/a", 3, 60)
    await client.put(url, content=b"old")
    await client.put(url, content=b"new")
    await listener.objects.complete([PendingObject("up/a", [Part(0, 3)])])
    answer = await client.put(url, content=b"bad")
    assert (answer.status_code, answer.json()["code"]) == (409, "UPLOAD_ALREADY_COMPLETE")
    assert b"".join([block async for block in listener.objects.read("up/a")]) == b"new"
    assert await pending(listener) == []


async def test_upload_that_is_deleted_in_flight_stores_nothing(
    listener: Listener, connect: Connect
) -> None:
    wires = [await connect(listener.url) for _ in range(2)]
    for number, wire in enumerate(wires):
        await wire.put_head(
            await listener.objects.presign_put("up/a", 3, 60, number), "Content-Length: 3"
        )
        await wire.send(b"ab")

    async def are_open() -> bool:
        return listener.uploads.open_count == 2

    await eventually(are_open)
    await listener.objects.delete_upload("up")
    for wire in wires:
        await wire.send(b"c")
        status, _, body = await wire.answer()
        assert (status, code_of(body)) == (404, "UPLOAD_NOT_FOUND")
    assert listener.left_behind() == []
    assert [path.name for path in (listener.folder / "pending").rglob("*")] == ["up"]


async def test_deletion_ends_while_uploads_arrive(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    """Uploads that end between two steps of the deletion are removed or refused."""
    urls = [await listener.objects.presign_put(f"up/a{number}", 3, 60) for number in range(8)]
    statuses = set[int]()
    is_deleted = asyncio.Event()

    async def put_repeatedly(url: str) -> None:
        while not is_deleted.is_set():
            statuses.add((await client.put(url, content=b"abc")).status_code)

    async def has_stored() -> bool:
        return 200 in statuses

    async def delete() -> None:
        await eventually(has_stored)
        await listener.objects.delete_upload("up")
        is_deleted.set()

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(delete(), *map(put_repeatedly, urls))
    assert statuses <= {200, 404}
    assert await pending(listener) == listener.left_behind() == []
    for url in urls:
        assert (await client.put(url, content=b"abc")).status_code == 404


@pytest.mark.parametrize("step", one_of(4, ["unlink", "rmdir", "open", "fsync"]))
async def test_killed_deletion_is_finished_by_the_next_one(
    tmp_path: Path, client: httpx.AsyncClient, step: str
) -> None:
    folder = tmp_path / "objects"
    command = [sys.executable, "-c", KILLED_DELETION, str(folder), step]
    killed = await asyncio.to_thread(
        lambda: subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S, check=False)
    )
    assert killed.returncode == -signal.SIGKILL
    async with running_listener(folder) as listener:
        await listener.objects.delete_upload("up")
        url = await listener.objects.presign_put("up/a", 3, 60)
        answer = await client.put(url, content=b"abc")
        assert (answer.status_code, answer.json()["code"]) == (404, "UPLOAD_NOT_FOUND")
        assert await pending(listener) == []


async def test_refusal_outlives_the_urls_and_is_then_removed(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    await listener.objects.delete_upload("up")
    await listener.objects.drop_empty_folders(PART_EXPIRES_S)
    url = await listener.objects.presign_put("up/a", 3, 60)
    assert (await client.put(url, content=b"abc")).status_code == 404
    then_s = time.time() - PART_EXPIRES_S - 60
    os.utime(listener.folder / "pending" / "up", (then_s, then_s))
    await listener.objects.drop_empty_folders(PART_EXPIRES_S)
    assert list((listener.folder / "pending").iterdir()) == []


@pytest.mark.parametrize("sent_bytes", [0, 1, 70_000, 3_500_000])
async def test_disconnected_client_leaves_no_file(
    listener: Listener, sent_bytes: int, connect: Connect
) -> None:
    wire = await connect(listener.url)
    url = await listener.objects.presign_put("up/a", 4_000_000, 60)
    await wire.put_head(url, "Content-Length: 4000000")
    await wire.send(b"x" * sent_bytes)
    async with asyncio.timeout(PATIENCE_S):
        while not listener.uploads.open_count:
            await asyncio.sleep(0.01)
        wire.abort()
        while listener.uploads.open_count or listener.left_behind():
            await asyncio.sleep(0.01)
    assert await pending(listener) == []


async def test_concurrent_uploads_of_one_key_leave_one_whole_file(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    url = await listener.objects.presign_put("up/a", 2_500_000, 60)
    contents = [bytes([65 + number]) * 2_500_000 for number in range(8)]
    answers = await asyncio.gather(*(client.put(url, content=content) for content in contents))
    codes = [answer.json()["code"] if answer.content else "OK" for answer in answers]
    assert set(codes) <= {"OK", "IN_USE"}
    assert "OK" in codes
    await listener.objects.complete([PendingObject("up/a", [Part(0, 2_500_000)])])
    assert b"".join([block async for block in listener.objects.read("up/a")]) in contents
    assert listener.left_behind() == []


async def test_uploads_over_the_limit_are_rejected(
    listener: Listener, client: httpx.AsyncClient, connect: Connect
) -> None:
    wires = []
    for number in range(uploads.UPLOADS_MAX):
        wire = await connect(listener.url, f"127.0.3.{number // 8 + 1}")
        url = await listener.objects.presign_put(f"up{number // 8}/a{number}", 2, 60)
        await wire.put_head(url, "Content-Length: 2", "Expect: 100-continue")
        assert (await wire.answer())[0] == 100
        wires.append(wire)
    last = await listener.objects.presign_put("up/last", 2, 60)
    answer = await client.put(last, content=b"ab")
    assert (answer.status_code, answer.json()["code"]) == (503, "OVERLOADED")
    assert "64 files of all clients" in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) > 0
    for wire in wires:
        await wire.send(b"ab")
        assert (await wire.answer())[0] == 200
        assert (await client.put(last, content=b"ab")).status_code == 200


async def test_data_around_a_body_is_never_part_of_it(listener: Listener, connect: Connect) -> None:
    wire = await connect(listener.url)
    url = await listener.objects.presign_put("up/a", 3, 60)
    await wire.put_head(url, "Content-Length: 3", "X: y\r\n\r\nabcGET / HTTP/1.1\r\nHost: x")
    status, headers, _ = await wire.answer()
    # The second request was sent before the first response, so the client repeats it on another
    # connection.
    assert (status, headers["connection"]) == (200, "close")
    await listener.objects.complete([PendingObject("up/a", [Part(0, 3)])])
    assert b"".join([block async for block in listener.objects.read("up/a")]) == b"abc"


async def test_uploads_stop_at_the_disk_reserve(tmp_path: Path, client: httpx.AsyncClient) -> None:
    async with running_listener(tmp_path / "objects", reserve_bytes=1 << 60) as listener:
        answer = await client.put(await listener.objects.presign_put("up/a", 3, 60), content=b"abc")
        assert (answer.status_code, answer.json()["code"]) == (503, "STORAGE_FULL")
        assert int(answer.headers["retry-after"]) > 0
        assert await pending(listener) == []


async def test_start_removes_incomplete_files_of_a_crash(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    async with running_listener(folder) as listener:
        await put_whole(listener.objects, "up/a", b"abc")
    (folder / "incoming" / "leftover").write_bytes(b"half")
    async with running_listener(folder) as listener:
        assert listener.left_behind() == []
        assert await listener.objects.stat("up/a") == 3


@pytest.mark.full
async def test_shutdown_lets_a_running_upload_finish(tmp_path: Path, connect: Connect) -> None:
    async with running_listener(tmp_path / "objects") as listener:
        wire = await connect(listener.url)
        url = await listener.objects.presign_put("up/a", 4, 60)
        await wire.put_head(url, "Content-Length: 4", "Expect: 100-continue")
        assert (await wire.answer())[0] == 100
        stopping = asyncio.ensure_future(listener.server.stop(grace_s=10))
        await wire.send(b"abcd")
        assert (await wire.answer())[0] == 200
        await stopping
        assert await pending(listener) == ["pending/up/a.0"]


@pytest.mark.parametrize(
    "head", [b"GET /" + b"a" * 300_000, b"GET / HTTP/1.1\r\nX: " + b"a" * 300_000]
)
async def test_unfinished_head_is_disconnected(
    listener: Listener, head: bytes, connect: Connect
) -> None:
    wire = await connect(listener.url)
    await wire.send(head)
    status, _, body = await wire.answer()
    assert (status, code_of(body)) == (431, "HEADERS_TOO_LARGE")
    assert await wire.is_closed()


async def test_full_disk_is_reported_and_leaves_no_file(
    tmp_path: Path, client: httpx.AsyncClient, connect: Connect
) -> None:
    disk = small_disk(tmp_path, 32)
    command = [*disk.command_prefix, sys.executable, "-m", "tests.support.cdn_listener"]
    process = subprocess.Popen(
        [*command, str(disk.mount_point / "objects")], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.to_thread(process.stdout.readline)).decode().strip()
        signer = UrlSigner(KEY)

        def target(key: str, length: int) -> str:
            return url + signer.target(UrlGrant("PUT", key, FAR_FUTURE_S, length))

        answer = await client.put(target("up/a", 64 << 20), content=b"x" * (64 << 20))
        assert (answer.status_code, answer.json()["code"]) == (503, "STORAGE_FULL")
        # The upload was accepted before another program filled the disk.
        wire = await connect(url)
        await wire.put_head(target("up/b", 20 << 20), "Content-Length: 20971520")
        await wire.send(b"x" * (4 << 20))
        filler = disk.fill(process.pid)
        await wire.send(b"x" * (16 << 20))
        status, _, body = await wire.answer()
        assert (status, code_of(body)) == (503, "STORAGE_FULL")
        objects = disk.inside(process.pid) / "objects"
        assert [path for path in objects.rglob("*") if path.is_file()] == []
        filler.unlink()
        answer = await client.put(target("up/b", 1 << 20), content=b"x" * (1 << 20))
        assert answer.status_code == 200
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.full
async def test_kill_leaves_a_whole_upload_or_none(
    tmp_path: Path, client: httpx.AsyncClient
) -> None:
    folder = tmp_path / "objects"
    signer = UrlSigner(KEY)
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cdn_listener", str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        url = (await asyncio.to_thread(process.stdout.readline)).decode().strip()
        target = signer.target(UrlGrant("PUT", f"up/a{attempt}", FAR_FUTURE_S, 8 << 20))
        upload = asyncio.ensure_future(client.put(url + target, content=b"x" * (8 << 20)))
        done, _ = await asyncio.wait([upload], timeout=0.008 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        was_answered = bool(done) or not isinstance(
            (await asyncio.gather(upload, return_exceptions=True))[0], Exception
        )
        path = folder / "pending" / "up" / f"a{attempt}.0"
        assert path.exists() or not was_answered
        assert not path.exists() or path.read_bytes() == b"x" * (8 << 20)
    async with running_listener(folder) as listener:
        assert listener.left_behind() == []


def missing(listener: Listener, key: str) -> int:
    return sum(one._missing for target, one in listener.uploads._open.items() if target.key == key)


async def test_idle_clients_are_disconnected(
    listener: Listener, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    window_s, piece = 0.3, 100_000
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", window_s)
    monkeypatch.setattr(uploads, "WINDOW_S", window_s)
    silent, half = await connect(listener.url), await connect(listener.url)
    await half.send(b"GET / HTTP/1.1\r\nHo")
    slow, steady = await connect(listener.url), await connect(listener.url)
    for wire, key in ((slow, "up/slow"), (steady, "up/steady")):
        url = await listener.objects.presign_put(key, 1_000_000, 60)
        await wire.put_head(url, "Content-Length: 1000000", "Expect: 100-continue")
        assert (await wire.answer())[0] == 100
    await slow.send(b"x")
    for number in range(1, 11):
        await steady.send(b"x" * piece)
        async with asyncio.timeout(PATIENCE_S):
            while missing(listener, "up/steady") > 1_000_000 - number * piece:
                await asyncio.sleep(0.005)
        await asyncio.sleep(window_s / 3)
        listener.server.check()
    status, _, body = await slow.answer()
    assert (status, code_of(body)) == (408, "REQUEST_TIMEOUT")
    for wire in (silent, half, slow):
        assert await wire.is_closed()
    assert (await steady.answer())[0] == 200
    assert await pending(listener) == ["pending/up/steady.0"]
    assert listener.objects.counts.failures == {"REQUEST_TIMEOUT": 1}


async def test_client_that_reads_no_response_is_disconnected(
    listener: Listener, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "READ_TIMEOUT_S", 0.3)
    await put_whole(listener.objects, "up/a", b"x" * (32 << 20))
    target = listener.objects.presign_get("up/a", 60).removeprefix(listener.url)
    wire = await connect(listener.url)
    await wire.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        while listener.server.connections:
            listener.server.check()
            await asyncio.sleep(0.05)
    assert listener.cdn.counts.answers["2xx"] == 1
