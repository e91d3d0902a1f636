"""HTTP as it arrives: in pieces, too large, too slow, pipelined, broken, behind a proxy."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from pyservice.doors import DoorSettings
from pyservice.observability.metrics import RequestMetrics
from tests.small_service import GOOD, HttpConnection, HttpDoor, Response, SmallService, open_door

pytestmark = pytest.mark.anyio

CONNECTED_PATH = "/matchmaker/players/connected"
BODY = b'{"player_token":"some token"}'
SMALL = DoorSettings(
    body_limit_bytes=1000,
    headers_limit_bytes=2000,
    url_limit_bytes=500,
    receive_timeout_ms=200,
    keep_alive_timeout_ms=200,
)
PATIENT = DoorSettings()

Connect = Callable[..., Awaitable[HttpConnection]]


@pytest.fixture
def service() -> SmallService:
    return SmallService()


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics()


@pytest.fixture
async def connect(service: SmallService, metrics: RequestMetrics) -> AsyncIterator[Connect]:
    """Opens connections to a door with the given settings."""
    async with AsyncExitStack() as stack:

        async def open_connection(settings: DoorSettings = PATIENT) -> HttpConnection:
            door = await stack.enter_async_context(open_door("http", service, settings, metrics))
            assert isinstance(door, HttpDoor)
            connection = await HttpConnection.open(door.address)
            stack.push_async_callback(connection.close)
            return connection

        yield open_connection


def code_of(response: Response) -> Any:
    problem = response.json
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["status"] == response.status
    assert problem["ray_id"] == response.headers["x-ray-id"]
    assert problem["message"] == problem["detail"]
    return problem["code"]


async def is_closed(connection: HttpConnection) -> bool:
    return await asyncio.wait_for(connection.rest(), 5) == b""


# Requests that are fine


async def test_many_requests_use_one_connection(connect: Connect) -> None:
    connection = await connect()
    for _ in range(3):
        response = await connection.ask("POST", CONNECTED_PATH, BODY, GOOD)
        assert (response.status, response.body) == (200, b"{}")
        assert "connection" not in response.headers


async def test_a_request_may_come_byte_by_byte(connect: Connect) -> None:
    connection = await connect()
    request = (
        f"POST {CONNECTED_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer good\r\n"
        f"content-length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY
    for byte in request:
        connection.writer.write(bytes([byte]))
        await connection.writer.drain()
    assert (await connection.read()).status == 200


async def test_a_chunked_body_is_put_together(connect: Connect) -> None:
    connection = await connect()
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, "transfer-encoding": "chunked"})
    for start in range(0, len(BODY), 5):
        piece = BODY[start : start + 5]
        connection.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    connection.writer.write(b"0\r\nauthorization: Bearer other\r\n\r\n")
    assert (await connection.read()).status == 200


async def test_trailers_are_not_headers(connect: Connect) -> None:
    connection = await connect()
    connection.say("POST", CONNECTED_PATH, None, {"transfer-encoding": "chunked"})
    connection.writer.write(b"%x\r\n%b\r\n" % (len(BODY), BODY))
    connection.writer.write(b"0\r\nauthorization: Bearer good\r\n\r\n")
    assert code_of(await connection.read()) == "TOKEN_MISSING"


async def test_pipelined_requests_are_answered_in_order(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect()
    lobby_id = "00000000-0000-4000-8000-000000000001"
    connection.say(
        "POST", "/matchmaker/lobbies/join", b'{"lobby_id":"%b"}' % lobby_id.encode(), GOOD
    )
    connection.say("GET", "/nowhere")
    connection.say("POST", CONNECTED_PATH, BODY, GOOD)
    await service.waiting.wait()
    service.may_join.set()
    first, second, third = [await connection.read() for _ in range(3)]
    assert first.json["lobby"]["lobby_id"] == lobby_id
    assert code_of(second) == "NOT_FOUND"
    assert third.body == b"{}"


async def test_thousands_of_pipelined_requests_need_no_stack(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect()
    join = b'{"lobby_id":"00000000-0000-4000-8000-000000000001"}'
    connection.say("POST", "/matchmaker/lobbies/join", join, GOOD)
    for _ in range(3000):
        connection.say("GET", "/nowhere")
    await service.waiting.wait()
    service.may_join.set()
    statuses = [(await connection.read()).status for _ in range(3001)]
    assert statuses == [200] + [404] * 3000


async def test_a_client_that_asks_first_is_told_to_go_on(connect: Connect) -> None:
    connection = await connect()
    length = {"content-length": str(len(BODY)), "expect": "100-continue"}
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, **length})
    assert (await connection.read()).status == 100
    connection.writer.write(BODY)
    assert (await connection.read()).status == 200


async def test_head_is_answered_without_a_body(connect: Connect) -> None:
    connection = await connect()
    response = await connection.ask("HEAD", "/matchmaker/regions")
    assert response.status == 404  # the small service has no such operation
    assert int(response.headers["content-length"]) > 0
    assert (await connection.ask("POST", CONNECTED_PATH, BODY, GOOD)).status == 200


async def test_http_1_0_is_answered_and_closed(connect: Connect) -> None:
    connection = await connect()
    connection.writer.write(
        f"POST {CONNECTED_PATH} HTTP/1.0\r\nconnection: keep-alive\r\n"
        f"authorization: Bearer good\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
        + BODY
    )
    response = await connection.read()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert await is_closed(connection)


async def test_a_client_that_wants_to_close_is_let_go(connect: Connect) -> None:
    connection = await connect()
    response = await connection.ask("POST", CONNECTED_PATH, BODY, {**GOOD, "connection": "close"})
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert await is_closed(connection)


async def test_an_upgrade_is_not_taken_up(connect: Connect) -> None:
    connection = await connect()
    upgrade = {"connection": "upgrade, http2-settings", "upgrade": "h2c", "http2-settings": "AAM"}
    response = await connection.ask("POST", CONNECTED_PATH, BODY, {**GOOD, **upgrade})
    assert (response.status, response.headers["connection"]) == (200, "close")


async def test_the_whole_url_may_be_the_target(connect: Connect) -> None:
    connection = await connect()
    response = await connection.ask(
        "GET", "http://host:1/matchmaker/lobbies/list?include_state=true", None, GOOD
    )
    assert response.json["lobbies"][0]["state"] == {"big": 2**64 - 1}


# Requests that are not


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_is_told_so_and_closed(
    connect: Connect, request_bytes: bytes
) -> None:
    connection = await connect()
    connection.writer.write(request_bytes)
    response = await connection.read()
    assert (response.status, code_of(response)) == (400, "HEADER_INVALID")
    assert await is_closed(connection)


async def test_a_large_url_is_refused(connect: Connect) -> None:
    connection = await connect(SMALL)
    response = await connection.ask("GET", "/" + "u" * 500)
    assert (response.status, code_of(response)) == (414, "URI_TOO_LONG")
    assert await is_closed(connection)


@pytest.mark.parametrize("fields", [{"x": "v" * 2000}, {f"x{n}": "v" * 50 for n in range(40)}])
async def test_large_headers_are_refused(connect: Connect, fields: dict[str, str]) -> None:
    connection = await connect(SMALL)
    response = await connection.ask("GET", "/", None, fields)
    assert (response.status, code_of(response)) == (431, "HEADERS_TOO_LARGE")
    assert await is_closed(connection)


async def test_headers_without_an_end_are_refused(connect: Connect) -> None:
    connection = await connect(SMALL)
    connection.writer.write(b"GET / HTTP/1.1\r\nx: " + b"v" * 4000)
    assert code_of(await connection.read()) == "HEADERS_TOO_LARGE"


async def test_limits_hold_exactly(connect: Connect) -> None:
    connection = await connect(SMALL)
    body = BODY + b" " * (1000 - len(BODY))
    path = CONNECTED_PATH + "?" + "q" * (500 - len(CONNECTED_PATH) - 1)
    response = await connection.ask("POST", path, body, GOOD)
    assert code_of(response) == "QUERY_INVALID"
    response = await connection.ask("POST", CONNECTED_PATH, body, GOOD)
    assert response.status == 200


async def test_a_large_body_is_refused_before_it_is_sent(connect: Connect) -> None:
    connection = await connect(SMALL)
    announced = {"content-length": "1001", "expect": "100-continue"}
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, **announced})
    response = await connection.read()
    assert (response.status, code_of(response)) == (413, "BODY_TOO_LARGE")
    assert await is_closed(connection)


async def test_a_large_chunked_body_is_refused_while_it_comes(connect: Connect) -> None:
    connection = await connect(SMALL)
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, "transfer-encoding": "chunked"})
    connection.writer.write(b"3e9\r\n" + b" " * 1001)
    assert code_of(await connection.read()) == "BODY_TOO_LARGE"
    assert await is_closed(connection)


async def test_a_body_of_tiny_chunks_has_an_end_too(connect: Connect) -> None:
    connection = await connect(SMALL)
    chunked = {"transfer-encoding": "chunked", "expect": "100-continue"}
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, **chunked})
    assert (await connection.read()).status == 100
    connection.writer.write(b"1;" + b"extension" * 2000)
    assert code_of(await connection.read()) == "BODY_TOO_LARGE"


async def test_the_limit_of_an_operation_is_its_own(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect()
    state = b'"' + b"x" * 65534 + b'"'
    assert (await connection.ask("PUT", "/matchmaker/lobbies/state", state, GOOD)).status == 200
    assert service.state == state
    response = await connection.ask("PUT", "/matchmaker/lobbies/state", state + b" ", GOOD)
    assert (response.status, code_of(response)) == (413, "BODY_TOO_LARGE")


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/nowhere", GOOD, "NOT_FOUND"),
        (CONNECTED_PATH, {}, "TOKEN_MISSING"),
        (CONNECTED_PATH, {**GOOD, "content-type": "text/plain"}, "MEDIA_TYPE_UNSUPPORTED"),
        (CONNECTED_PATH, {**GOOD, "idempotency-key": "a b"}, "BODY_TOO_LARGE"),
    ],
)
async def test_the_size_of_a_body_is_looked_at_in_its_turn(
    connect: Connect, path: str, headers: dict[str, str], code: str
) -> None:
    connection = await connect(SMALL)
    response = await connection.ask("POST", path, b" " * 1001, headers)
    assert code_of(response) == code
    assert response.headers["connection"] == "close"


# Clients that take their time


async def test_a_head_that_does_not_end_in_time_is_given_up(connect: Connect) -> None:
    connection = await connect(SMALL)
    connection.writer.write(b"GET / HTTP/1.1\r\nx: ")
    response = await asyncio.wait_for(connection.read(), 5)
    assert (response.status, code_of(response)) == (408, "REQUEST_TIMEOUT")
    assert await is_closed(connection)


async def test_a_body_that_does_not_come_in_time_is_given_up(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(SMALL)
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, "content-length": "30"})
    response = await asyncio.wait_for(connection.read(), 5)
    assert code_of(response) == "REQUEST_TIMEOUT"
    assert service.calls == []


async def test_a_slow_second_request_is_given_up_behind_the_first(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(SMALL)
    assert (await connection.ask("POST", CONNECTED_PATH, BODY, GOOD)).status == 200
    connection.writer.write(b"GET / HT")
    assert code_of(await asyncio.wait_for(connection.read(), 5)) == "REQUEST_TIMEOUT"


async def test_a_connection_without_a_request_is_closed(connect: Connect) -> None:
    silent = await connect(SMALL)
    idle = await connect(SMALL)
    assert (await idle.ask("POST", CONNECTED_PATH, BODY, GOOD)).status == 200
    assert await is_closed(silent)
    assert await is_closed(idle)


async def test_a_request_that_waits_is_not_a_slow_client(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(SMALL)
    join = b'{"lobby_id":"00000000-0000-4000-8000-000000000001"}'
    connection.say("POST", "/matchmaker/lobbies/join", join, GOOD)
    await service.waiting.wait()
    other = await connect(SMALL)
    assert await is_closed(other)  # so the time of a slow client has passed
    service.may_join.set()
    assert (await connection.read()).status == 200


async def test_a_client_that_does_not_read_is_cut_off(connect: Connect) -> None:
    connection = await connect(SMALL)
    connection.reader._transport.pause_reading()  # type: ignore[attr-defined]  # a client that never reads
    request = b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n" * 1000

    async def flood() -> None:
        while True:
            connection.writer.write(request)
            await connection.writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(flood(), 20)


# PROXY protocol v2

BEHIND_PROXY = DoorSettings(trusted_proxies=("127.0.0.1", "10.0.0.0/8"), proxy_protocol=True)
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def proxy_header(source: bytes, command: int = 0x21) -> bytes:
    family = 0x11 if len(source) == 4 else 0x21
    addresses = source + bytes(len(source)) + struct.pack("!HH", 40000, 80)
    extension = b"\x04\x00\x02ok"
    length = len(addresses) + len(extension)
    return SIGNATURE + struct.pack("!BBH", command, family, length) + addresses + extension


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (proxy_header(bytes([203, 0, 113, 9])), bytes([203, 0, 113, 9])),
        (
            proxy_header(bytes.fromhex("20010db8000100020003000400050006")),
            bytes.fromhex("20010db800010002"),
        ),
        (proxy_header(bytes([203, 0, 113, 9]), 0x20), bytes([127, 0, 0, 1])),
        (proxy_header(bytes([10, 0, 0, 1])), bytes([198, 51, 100, 7])),
    ],
    ids=["ipv4", "ipv6", "local", "another proxy behind it"],
)
async def test_a_proxy_tells_the_client_in_front_of_the_connection(
    connect: Connect, service: SmallService, header: bytes, address: bytes
) -> None:
    connection = await connect(BEHIND_PROXY)
    # Only somebody trusted is believed what he forwards.
    fields = dict(GOOD)
    if address == bytes([198, 51, 100, 7]):
        fields["x-forwarded-for"] = "198.51.100.7"
    connection.writer.write(header[:20])
    await connection.writer.drain()
    connection.writer.write(header[20:])
    for _ in range(2):
        assert (await connection.ask("POST", CONNECTED_PATH, BODY, fields)).status == 200
    assert [call.address for call in service.calls] == [address] * 2


async def test_a_client_behind_a_proxy_is_not_believed_its_own_headers(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(BEHIND_PROXY)
    connection.writer.write(proxy_header(bytes([203, 0, 113, 9])))
    claims = {**GOOD, "x-forwarded-for": "1.1.1.1", "x-coords": "1,1"}
    assert (await connection.ask("POST", CONNECTED_PATH, BODY, claims)).status == 200
    assert service.calls[0].address == bytes([203, 0, 113, 9])
    assert service.calls[0].coords is None


async def test_a_trusted_proxy_that_does_not_introduce_its_client_is_cut_off(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(BEHIND_PROXY)
    connection.say("POST", CONNECTED_PATH, BODY, GOOD)
    assert await is_closed(connection)
    assert service.calls == []


async def test_nobody_else_may_say_who_he_is(connect: Connect, service: SmallService) -> None:
    connection = await connect(DoorSettings(trusted_proxies=("10.0.0.0/8",), proxy_protocol=True))
    connection.writer.write(proxy_header(bytes([203, 0, 113, 9])))
    connection.say("POST", CONNECTED_PATH, BODY, GOOD)
    assert code_of(await connection.read()) == "HEADER_INVALID"
    assert service.calls == []
