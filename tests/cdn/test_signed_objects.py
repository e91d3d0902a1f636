"""Signed URLs for reading: responses, and headers that keep a browser from running them as a page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pyservice.storage.objects import Part, PendingObject
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

CONTENT = b"timestamp,stream,line\r\n" * 1000


@pytest.fixture(scope="module")
async def listener(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listener]:
    folder: Path = tmp_path_factory.mktemp("signed")
    async with running_listener(folder) as listener:
        await put_whole(listener.objects, "exports/a", CONTENT)
        yield listener


@pytest.fixture
async def client(listener: Listener) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        yield client


async def test_export_is_a_named_download(listener: Listener, client: httpx.AsyncClient) -> None:
    url = listener.objects.presign_get(
        "exports/a", 3600, filename='lögs "1".csv', content_type="text/csv"
    )
    answer = await client.get(url)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["content-type"] == "text/csv"
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"l_gs _1_.csv\"; filename*=UTF-8''l%C3%B6gs%20%221%22.csv"
    )
    assert answer.headers["cache-control"] == "private, no-cache"
    head = await client.head(url)
    assert (head.status_code, head.content) == (200, b"")
    head = await client.head(url, headers={"range": "bytes=5-9", "accept-encoding": "identity"})
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(CONTENT)))
    part = await client.get(url, headers={"range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, CONTENT[5:10])


@pytest.mark.parametrize("content_type", ["text/html", "image/svg+xml", None, "x\r\ny: 1", "html"])
async def test_no_response_can_run_as_a_page(
    listener: Listener, client: httpx.AsyncClient, content_type: str | None
) -> None:
    url = listener.objects.presign_get("exports/a", None, content_type=content_type)
    answer = await client.get(url)
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "y" not in answer.headers


async def test_permanent_url_is_stable_and_cacheable(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    url = listener.objects.presign_get("exports/a", None, content_type="image/png")
    assert url == listener.objects.presign_get("exports/a", None, content_type="image/png")
    answer = await client.get(url)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["access-control-allow-origin"] == "*"
    await put_whole(listener.objects, "exports/b", b"x")
    missing_url = listener.objects.presign_get("exports/b", None)
    await listener.objects.delete("exports/b")
    answer = await client.get(missing_url)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


async def test_multipart_object_is_returned_whole(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    parts = [Part(0, 600_000), Part(600_000, 400_000)]
    for part, letter in zip(parts, b"ab", strict=True):
        url = await listener.objects.presign_put("up/p", part.content_length, 60, part.byte_offset)
        await client.put(url, content=bytes([letter]) * part.content_length)
    await listener.objects.complete([PendingObject("up/p", parts)])
    url = listener.objects.presign_get("up/p", 60)
    assert (await client.get(url)).content == b"a" * 600_000 + b"b" * 400_000
    part_of = await client.get(url, headers={"range": "bytes=599998-600001"})
    assert part_of.content == b"aabb"


@pytest.mark.parametrize(
    ("before", "after"),
    [("exports/a", "exports/b"), ("expires=1", "expires=2"), ("signature=", "signature=x")],
)
async def test_altered_url_is_rejected(
    listener: Listener, client: httpx.AsyncClient, before: str, after: str
) -> None:
    url = listener.objects.presign_get("exports/a", 3600)
    answer = await client.get(url.replace(before, after))
    assert (answer.status_code, answer.json()["code"]) == (403, "UPLOAD_URL_INVALID")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_expired_url_is_rejected(listener: Listener, client: httpx.AsyncClient) -> None:
    answer = await client.get(listener.objects.presign_get("exports/a", 0))
    assert (answer.status_code, answer.json()["code"]) == (403, "UPLOAD_URL_INVALID")


async def test_upload_url_does_not_allow_reading(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    url = await listener.objects.presign_put("exports/a", 10, 60)
    assert (await client.get(url)).status_code == 403
    assert (await client.delete(url)).status_code == 405


async def test_browser_may_upload_from_any_origin(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    url = await listener.objects.presign_put("up/q", 3, 60)
    headers = {"origin": "https://console.test", "access-control-request-method": "PUT"}
    answer = await client.options(url, headers=headers)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "PUT" in answer.headers["access-control-allow-methods"]
    refusal = await client.put(url, content=b"four", headers={"origin": "https://console.test"})
    assert refusal.status_code == 400
    assert refusal.headers["access-control-allow-origin"] == "*"
