"""Requests with two hosts are rejected, because a proxy in front may have used the other host.
HTTP/1.1 requires one host (RFC 9112, 3.2).
"""

from __future__ import annotations

import orjson
import pytest

from tests.cdn.raw_http import Connect
from tests.support.cdn_listener import Listener

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "a"), ("", "a"), ("a", "b", "c")])
async def test_site_request_with_two_hosts_is_rejected(
    listener: Listener, connect: Connect, hosts: tuple[str, ...]
) -> None:
    wire = await connect(listener.url)
    lines = "".join(f"Host: {host}\r\nX-A: 1\r\n" for host in hosts)
    await wire.send(f"GET /arena/prod/tiny.js HTTP/1.1\r\n{lines}\r\n".encode())
    status, headers, body = await wire.answer()
    assert (status, headers["connection"]) == (400, "close")
    problem = orjson.loads(body)
    assert (problem["code"], problem["ray_id"]) == ("HEADER_INVALID", headers["x-ray-id"])
    assert "one Host" in problem["detail"]
    assert await wire.is_closed()


async def test_upload_with_two_hosts_is_rejected(listener: Listener, connect: Connect) -> None:
    url = await listener.objects.presign_put("up/two-hosts", 3, 60)
    wire = await connect(listener.url)
    await wire.put_head(url, "Host: y", "Content-Length: 3")
    status, _, body = await wire.answer()
    assert (status, orjson.loads(body)["code"]) == (400, "HEADER_INVALID")
    assert await wire.is_closed()
    assert "up/two-hosts" not in "".join(await listener.blobs.names("pending"))


async def test_other_duplicate_headers_are_accepted(listener: Listener, connect: Connect) -> None:
    wire = await connect(listener.url)
    request = b"GET /arena/prod/tiny.js HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nX-A: 2\r\n\r\n"
    for _ in range(2):
        await wire.send(request)
        assert (await wire.answer())[::2] == (200, b"1")


async def test_site_request_without_a_host_is_rejected(
    listener: Listener, connect: Connect
) -> None:
    wire = await connect(listener.url)
    await wire.send(b"GET /arena/prod/tiny.js HTTP/1.1\r\nX-Host: x\r\n\r\n")
    status, headers, body = await wire.answer()
    assert (status, headers["connection"]) == (400, "close")
    problem = orjson.loads(body)
    assert (problem["code"], problem["ray_id"]) == ("HEADER_INVALID", headers["x-ray-id"])
    assert "Send a Host header" in problem["detail"]
    assert await wire.is_closed()


async def test_upload_without_a_host_is_rejected(listener: Listener, connect: Connect) -> None:
    target = await listener.objects.presign_put("up/no-host", 3, 60)
    target = target.removeprefix(listener.url)
    wire = await connect(listener.url)
    await wire.send(f"PUT {target} HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".encode())
    status, _, body = await wire.answer()
    assert (status, orjson.loads(body)["code"]) == (400, "HEADER_INVALID")
    assert await wire.is_closed()
    assert "up/no-host" not in "".join(await listener.blobs.names("pending"))


@pytest.mark.parametrize(
    "head", ["HTTP/1.0\r\n", "HTTP/1.0\r\nHost: x\r\n", "HTTP/1.1\r\nHost:\r\n"]
)
async def test_http_1_0_may_omit_the_host_and_http_1_1_may_send_it_empty(
    listener: Listener, connect: Connect, head: str
) -> None:
    wire = await connect(listener.url)
    await wire.send(f"GET /arena/prod/tiny.js {head}\r\n".encode())
    assert (await wire.answer())[::2] == (200, b"1")
