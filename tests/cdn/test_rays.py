from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pyservice.cdn import uploads
from pyservice.ids import format_uuid
from pyservice.observability import rays
from pyservice.observability.rays import span_set
from pyservice.pb.hosting.internal.v1 import rays_pb2 as pb
from tests.cdn.example_site import FILES, make_site
from tests.cdn.raw_http import Connect
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import Listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
TRACED = {"traceparent": TRACEPARENT}
NAMESPACE = bytes(range(16))
SLOW_S = 0.15
LARGE_BYTES = 32 << 20


@pytest.fixture(autouse=True)
def nothing_is_kept_by_chance(listener: Listener) -> Iterator[None]:
    listener.rays._until_sample = 1_000_000
    listener.rays.take_all()
    yield
    listener.rays.take_all()


@pytest.fixture(autouse=True)
def known_sites(listener: Listener) -> None:
    listener.sites.by_name["arena", "mine"] = make_site(FILES, namespace_id=NAMESPACE)
    listener.sites.by_name["arena", "guarded"] = make_site(FILES, users={}, namespace_id=NAMESPACE)


async def stored_span_set(listener: Listener, ray_id: str = "") -> pb.SpanSet:
    """Returns the stored request. Pass `ray_id` when slow requests may be stored too."""
    rays: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while not rays:
            rays = [one for one in listener.rays.take_all() if ray_id in ("", one.trace.ray_id)]
            await asyncio.sleep(0.005)
    (one,) = rays
    stored = span_set(one, "cdn")
    assert all(
        stored.start_ns <= span.start_ns <= span.end_ns <= stored.end_ns for span in stored.spans
    )
    return stored


def labels(span_set: pb.SpanSet) -> list[str]:
    return [span.label for span in span_set.spans]


def lasted_s(span_set: pb.SpanSet, label: str) -> float:
    (span,) = [span for span in span_set.spans if span.label == label]
    return (span.end_ns - span.start_ns) / 1e9


async def upload_url(listener: Listener, key: str, length: int) -> str:
    return (await listener.objects.presign_put(key, length, 60)).removeprefix(listener.url)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        *(("GET", "", 200, "OK"), ("HEAD", "app.js", 200, "OK"), ("GET", "art", 308, "OK")),
        ("GET", "nothing", 404, "NOT_FOUND"),
    ],
)
async def test_site_request_belongs_to_its_namespace(
    listener: Listener, client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await client.request(method, f"/arena/mine/{path}", headers=TRACED)
    assert (answer.status_code, answer.headers["x-ray-id"]) == (status, TRACE)
    span_set = await stored_span_set(listener)
    assert (span_set.door, span_set.operation, span_set.code) == ("cdn", "site", code)
    assert (span_set.ray_id, span_set.parent_span_id) == (TRACE, PARENT)
    assert span_set.caller == pb.RayCaller(namespace_id=format_uuid(NAMESPACE))
    is_file = status == 200
    assert labels(span_set) == ["site", *(["file"] if is_file else []), "sending"]


async def test_missing_password_belongs_to_the_site_namespace(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    assert (await client.get("/arena/guarded/")).status_code == 401
    span_set = await stored_span_set(listener)
    assert span_set.code == "UNAUTHORIZED"
    assert span_set.caller == pb.RayCaller(namespace_id=format_uuid(NAMESPACE))
    assert labels(span_set) == ["site", "password", "sending"]


@pytest.mark.parametrize(
    ("method", "path", "operation", "code"),
    [
        *(("GET", "/", "site", "NOT_FOUND"), ("GET", "/arena/unknown/", "site", "NOT_FOUND")),
        ("GET", "/arena/mine/%00", "site", "BAD_REQUEST"),
        ("POST", "/arena/mine/", "site", "METHOD_NOT_ALLOWED"),
        ("GET", "/.objects/up/a?signature=x", "object", "UPLOAD_URL_INVALID"),
        ("DELETE", "/.objects/up/a", "object", "METHOD_NOT_ALLOWED"),
        ("PUT", "/.objects/up/a?signature=x", "upload", "UPLOAD_URL_INVALID"),
    ],
)
async def test_unknown_site_belongs_to_no_namespace(
    listener: Listener, client: httpx.AsyncClient, method: str, path: str, operation: str, code: str
) -> None:
    answer = await client.request(method, path)
    span_set = await stored_span_set(listener)
    assert span_set.ray_id == answer.headers["x-ray-id"]
    assert (span_set.operation, span_set.code) == (operation, code)
    assert not span_set.HasField("caller")


async def test_signed_object_belongs_to_its_upload(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    await put_whole(listener.objects, "up/a", b"abc")
    url = listener.objects.presign_get("up/a", 60).removeprefix(listener.url)
    assert (await client.get(url, headers=TRACED)).content == b"abc"
    span_set = await stored_span_set(listener)
    assert (span_set.operation, span_set.code, span_set.caller) == (
        "object",
        "OK",
        pb.RayCaller(upload_id="up"),
    )
    assert labels(span_set) == ["file", "sending"]
    missing_url = listener.objects.presign_get("up/gone", 60).removeprefix(listener.url)
    assert (await client.get(missing_url)).status_code == 404
    span_set = await stored_span_set(listener)
    assert (span_set.code, span_set.caller) == ("NOT_FOUND", pb.RayCaller(upload_id="up"))


async def test_fast_successful_request_is_not_stored(
    listener: Listener, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, fast requests may count as slow.
    monkeypatch.setattr(rays, "SLOW_S", PATIENCE_S)
    # The first response compresses the file.
    await client.get("/arena/mine/tiny.js")
    listener.rays.take_all()
    for _ in range(20):
        assert (await client.get("/arena/mine/tiny.js")).status_code == 200
    assert listener.rays.take_all() == []


async def test_upload_spans_show_receive_and_disk_time(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    url = await upload_url(listener, "up/traced", 3)
    assert (await client.put(url, content=b"abc", headers=TRACED)).status_code == 200
    span_set = await stored_span_set(listener)
    assert (span_set.ray_id, span_set.door, span_set.operation, span_set.code) == (
        TRACE,
        "cdn",
        "upload",
        "OK",
    )
    assert span_set.caller == pb.RayCaller(upload_id="up")
    assert labels(span_set) == ["receiving", "disk"]


async def test_slow_upload_is_stored(listener: Listener, connect: Connect) -> None:
    wire = await connect(listener.url)
    url = listener.url + await upload_url(listener, "up/slow", 4)
    await wire.put_head(url, "Content-Length: 4", "Expect: 100-continue")
    # From here on, the server waits for the content.
    assert (await wire.answer())[0] == 100
    await wire.send(b"ab")
    await asyncio.sleep(SLOW_S)
    await wire.send(b"cd")
    _, headers, _ = await wire.answer()
    span_set = await stored_span_set(listener)
    assert (span_set.ray_id, span_set.code) == (headers["x-ray-id"], "OK")
    assert (
        SLOW_S * 0.9
        <= lasted_s(span_set, "receiving")
        <= (span_set.end_ns - span_set.start_ns) / 1e9
    )
    assert lasted_s(span_set, "disk") > 0


async def test_rejected_upload_is_stored_with_its_upload_id(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    url = await upload_url(listener, "up/refused", 3)
    refusal = await client.put(url, content=b"four")
    span_set = await stored_span_set(listener)
    assert span_set.ray_id == refusal.headers["x-ray-id"]
    assert (span_set.code, span_set.caller) == (
        "UPLOAD_LENGTH_MISMATCH",
        pb.RayCaller(upload_id="up"),
    )
    assert labels(span_set) == []


async def test_upload_cancelled_by_the_client_is_no_failure(
    listener: Listener, connect: Connect
) -> None:
    for header in ("X-Other: 1", f"traceparent: {TRACEPARENT}"):
        wire = await connect(listener.url)
        url = listener.url + await upload_url(listener, "up/left", 1_000_000)
        await wire.put_head(url, "Content-Length: 1000000", header)
        async with asyncio.timeout(PATIENCE_S):
            while not listener.uploads.open_count:
                await asyncio.sleep(0.005)
        wire.abort()
        async with asyncio.timeout(PATIENCE_S):
            while listener.uploads.open_count:
                await asyncio.sleep(0.005)
    span_set = await stored_span_set(listener, TRACE)
    assert span_set.code == "CANCELLED"
    assert span_set.caller == pb.RayCaller(upload_id="up")


async def test_upload_below_the_minimum_speed_is_reported(
    listener: Listener, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "WINDOW_S", 0.05)
    wire = await connect(listener.url)
    url = listener.url + await upload_url(listener, "up/late", 1_000_000)
    await wire.put_head(url, "Content-Length: 1000000", "Expect: 100-continue")
    assert (await wire.answer())[0] == 100
    await asyncio.sleep(0.06)
    listener.server.check()
    span_set = await stored_span_set(listener)
    assert (span_set.code, span_set.caller) == ("REQUEST_TIMEOUT", pb.RayCaller(upload_id="up"))
    assert lasted_s(span_set, "receiving") >= 0.05


async def test_download_cancelled_by_the_client_is_no_failure(
    listener: Listener, connect: Connect
) -> None:
    await put_whole(listener.objects, "up/large", b"x" * LARGE_BYTES)
    target = listener.objects.presign_get("up/large", 60).removeprefix(listener.url)
    wire = await connect(listener.url)
    before = listener.cdn.counts.answers["2xx"]
    head = f"GET {target} HTTP/1.1\r\nHost: x\r\ntraceparent: {TRACEPARENT}\r\n\r\n"
    await wire.send(head.encode())
    async with asyncio.timeout(PATIENCE_S):
        while listener.cdn.counts.answers["2xx"] == before:
            await asyncio.sleep(0.005)
    wire.abort()
    span_set = await stored_span_set(listener)
    assert (span_set.operation, span_set.code) == ("object", "CANCELLED")
    assert labels(span_set) == ["file", "sending"]
