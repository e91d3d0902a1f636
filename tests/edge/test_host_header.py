"""Requests with two hosts are rejected, because a proxy in front may have used the other host.
HTTP/1.1 requires one host (RFC 9112, 3.2).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_connections import connect as connect
from tests.support.sample_connections import service as service
from tests.support.sample_service import (
    GOOD,
    Connect,
    HttpApi,
    HttpConnection,
    SmallService,
    code_of,
    open_api,
)

pytestmark = pytest.mark.anyio

CONNECTED_PATH = b"/matchmaker/players/connected"
BODY = b'{"player_token":"some token"}'
LENGTH = b"content-length: %d\r\n" % len(BODY)
TOKEN = b"authorization: Bearer pub_good\r\n"


@pytest.fixture(params=("http", "asgi"))
async def connection(
    request: pytest.FixtureRequest, service: SmallService
) -> AsyncIterator[HttpConnection]:
    async with open_api(str(request.param), service) as api:
        assert isinstance(api, HttpApi)
        connection = await HttpConnection.open(api.address)
        yield connection
        await connection.close()


def posted(*lines: bytes, version: bytes = b"1.1") -> bytes:
    head = b"POST %b HTTP/%b\r\n%b" % (CONNECTED_PATH, version, TOKEN + LENGTH)
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + BODY


@pytest.mark.parametrize(
    "lines",
    [
        (b"Host: a.example", b"Host: b.example"),
        (b"Host: a.example", b"Host: a.example"),
        (b"host: a.example", b"x: 1", b"HOST: b.example"),
        (b"Host:", b"Host: a.example"),
        (b"Host: a.example", b"Host: b.example", b"Host: c.example"),
    ],
)
async def test_request_with_two_hosts_is_rejected_and_not_executed(
    connection: HttpConnection, service: SmallService, lines: tuple[bytes, ...]
) -> None:
    connection.writer.write(posted(*lines))
    response = await connection.read()
    assert (response.status, code_of(response)) == (400, "HEADER_INVALID")
    assert "one Host" in response.json["detail"]
    assert service.calls == []


async def test_request_without_a_host_is_rejected_and_not_executed(
    connection: HttpConnection, service: SmallService
) -> None:
    connection.writer.write(posted(b"X-Host: a.example"))
    response = await connection.read()
    assert (response.status, code_of(response)) == (400, "HEADER_INVALID")
    assert "Send a Host header" in response.json["detail"]
    assert service.calls == []


@pytest.mark.parametrize(
    ("version", "lines"), [(b"1.0", ()), (b"1.0", (b"Host: a.example",)), (b"1.1", (b"Host:",))]
)
async def test_http_1_0_may_omit_the_host_and_http_1_1_may_send_it_empty(
    connection: HttpConnection, service: SmallService, version: bytes, lines: tuple[bytes, ...]
) -> None:
    connection.writer.write(posted(*lines, version=version))
    assert (await connection.read()).status == 200
    assert len(service.calls) == 1


async def test_other_headers_may_repeat(connection: HttpConnection, service: SmallService) -> None:
    connection.writer.write(posted(b"Host: a.example", b"X-Host: b.example", b"X-Host: c.example"))
    assert (await connection.read()).status == 200
    assert len(service.calls) == 1


async def test_host_in_a_trailer_is_ignored(connect: Connect) -> None:
    """Some ASGI servers report a trailer as a header if it arrives with the head."""
    connection = await connect()
    connection.writer.write(
        b"POST %b HTTP/1.1\r\nHost: a.example\r\n%btransfer-encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n0\r\nHost: b.example\r\n\r\n" % (CONNECTED_PATH, TOKEN, len(BODY), BODY)
    )
    assert (await connection.read()).status == 200
    path = CONNECTED_PATH.decode()
    assert (await connection.ask("POST", path, BODY, GOOD)).status == 200
