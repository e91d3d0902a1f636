from __future__ import annotations

import pytest

from pyservice.transport import TransportSettings
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_connections import connect as connect
from tests.support.sample_connections import service as service
from tests.support.sample_service import GOOD, Connect, SmallService, code_of, is_closed

pytestmark = pytest.mark.anyio

CONNECTED_PATH = "/matchmaker/players/connected"
BODY = b'{"player_token":"some token"}'
SMALL = TransportSettings(body_limit_bytes=1000, headers_limit_bytes=2000, url_limit_bytes=500)


async def test_many_requests_use_one_connection(connect: Connect) -> None:
    connection = await connect()
    for _ in range(3):
        response = await connection.ask("POST", CONNECTED_PATH, BODY, GOOD)
        assert (response.status, response.body) == (200, b"{}")
        assert "connection" not in response.headers


async def test_request_may_arrive_byte_by_byte(connect: Connect) -> None:
    connection = await connect()
    request = (
        f"POST {CONNECTED_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer pub_good\r\n"
        f"content-length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY
    for byte in request:
        connection.writer.write(bytes([byte]))
        await connection.writer.drain()
    assert (await connection.read()).status == 200


async def test_chunked_body_is_joined(connect: Connect) -> None:
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
    connection.writer.write(b"0\r\nauthorization: Bearer pub_good\r\n\r\n")
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


async def test_thousands_of_pipelined_requests_do_not_grow_the_stack(
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


async def test_expect_100_returns_continue(connect: Connect) -> None:
    connection = await connect()
    length = {"content-length": str(len(BODY)), "expect": "100-continue"}
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, **length})
    assert (await connection.read()).status == 100
    connection.writer.write(BODY)
    assert (await connection.read()).status == 200


async def test_head_response_has_no_body(connect: Connect) -> None:
    connection = await connect()
    response = await connection.ask("HEAD", "/matchmaker/regions")
    assert response.status == 404
    assert int(response.headers["content-length"]) > 0
    assert (await connection.ask("POST", CONNECTED_PATH, BODY, GOOD)).status == 200


async def test_http_1_0_response_closes_the_connection(connect: Connect) -> None:
    connection = await connect()
    connection.writer.write(
        f"POST {CONNECTED_PATH} HTTP/1.0\r\nconnection: keep-alive\r\n"
        f"authorization: Bearer pub_good\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
        + BODY
    )
    response = await connection.read()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert await is_closed(connection)


async def test_connection_close_header_is_honoured(connect: Connect) -> None:
    connection = await connect()
    response = await connection.ask("POST", CONNECTED_PATH, BODY, {**GOOD, "connection": "close"})
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert await is_closed(connection)


async def test_upgrade_is_ignored(connect: Connect) -> None:
    connection = await connect()
    upgrade = {"connection": "upgrade, http2-settings", "upgrade": "h2c", "http2-settings": "AAM"}
    response = await connection.ask("POST", CONNECTED_PATH, BODY, {**GOOD, **upgrade})
    assert (response.status, response.headers["connection"]) == (200, "close")


async def test_absolute_url_is_accepted_as_target(connect: Connect) -> None:
    connection = await connect()
    response = await connection.ask(
        "GET", "http://host:1/matchmaker/lobbies/list?include_state=true", None, GOOD
    )
    assert response.json["lobbies"][0]["state"] == {"big": 2**64 - 1}


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /matchmaker/regions\r\n\r\n",
        b"GET /matchmaker/regions\r\nauthorization: Bearer pub_good\r\n\r\n",
        b"GET / HTTP/0.9\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"POST /\r\ncontent-length: 9000000\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_invalid_http_returns_an_error_and_closes(
    connect: Connect, request_bytes: bytes
) -> None:
    connection = await connect()
    connection.writer.write(request_bytes)
    response = await connection.read()
    assert (response.status, code_of(response)) == (400, "HEADER_INVALID")
    assert await is_closed(connection)


async def test_large_url_is_rejected(connect: Connect) -> None:
    connection = await connect(SMALL)
    response = await connection.ask("GET", "/" + "u" * 500)
    assert (response.status, code_of(response)) == (414, "URI_TOO_LONG")
    assert await is_closed(connection)


@pytest.mark.parametrize("fields", [{"x": "v" * 2000}, {f"x{n}": "v" * 50 for n in range(40)}])
async def test_large_headers_are_rejected(connect: Connect, fields: dict[str, str]) -> None:
    connection = await connect(SMALL)
    response = await connection.ask("GET", "/", None, fields)
    assert (response.status, code_of(response)) == (431, "HEADERS_TOO_LARGE")
    assert await is_closed(connection)


async def test_endless_headers_are_rejected(connect: Connect) -> None:
    connection = await connect(SMALL)
    connection.writer.write(b"GET / HTTP/1.1\r\nx: " + b"v" * 4000)
    assert code_of(await connection.read()) == "HEADERS_TOO_LARGE"


async def test_limits_are_exact(connect: Connect) -> None:
    connection = await connect(SMALL)
    body = BODY + b" " * (1000 - len(BODY))
    path = CONNECTED_PATH + "?" + "q" * (500 - len(CONNECTED_PATH) - 1)
    response = await connection.ask("POST", path, body, GOOD)
    assert code_of(response) == "QUERY_INVALID"
    response = await connection.ask("POST", CONNECTED_PATH, body, GOOD)
    assert response.status == 200


async def test_large_body_is_rejected_before_it_is_sent(connect: Connect) -> None:
    connection = await connect(SMALL)
    announced = {"content-length": "1001", "expect": "100-continue"}
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, **announced})
    response = await connection.read()
    assert (response.status, code_of(response)) == (413, "BODY_TOO_LARGE")
    assert await is_closed(connection)


async def test_large_chunked_body_is_rejected_while_it_arrives(connect: Connect) -> None:
    connection = await connect(SMALL)
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, "transfer-encoding": "chunked"})
    connection.writer.write(b"3e9\r\n" + b" " * 1001)
    assert code_of(await connection.read()) == "BODY_TOO_LARGE"
    assert await is_closed(connection)


async def test_endless_body_of_tiny_chunks_is_rejected(connect: Connect) -> None:
    connection = await connect(SMALL)
    chunked = {"transfer-encoding": "chunked", "expect": "100-continue"}
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, **chunked})
    assert (await connection.read()).status == 100
    connection.writer.write(b"1;" + b"extension" * 2000)
    assert code_of(await connection.read()) == "BODY_TOO_LARGE"


async def test_body_limit_depends_on_the_operation(connect: Connect, service: SmallService) -> None:
    connection = await connect()
    state = b'"' + b"x" * 65534 + b'"'
    assert (await connection.ask("PUT", "/matchmaker/lobbies/state", state, GOOD)).status == 200
    assert service.state == state
    response = await connection.ask("PUT", "/matchmaker/lobbies/state", state + b" ", GOOD)
    assert (response.status, code_of(response)) == (413, "BODY_TOO_LARGE")


async def test_rejected_client_may_finish_sending_and_reads_the_error(connect: Connect) -> None:
    connection = await connect(SMALL)
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, "content-length": "5000000"})
    response = await connection.read()
    assert code_of(response) == "BODY_TOO_LARGE"
    for _ in range(20):
        connection.writer.write(bytes(50_000))
        await connection.writer.drain()
    assert await is_closed(connection)


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/nowhere", GOOD, "NOT_FOUND"),
        (CONNECTED_PATH, {}, "TOKEN_MISSING"),
        (CONNECTED_PATH, {**GOOD, "content-type": "text/plain"}, "MEDIA_TYPE_UNSUPPORTED"),
        (CONNECTED_PATH, {**GOOD, "idempotency-key": "a b"}, "BODY_TOO_LARGE"),
    ],
)
async def test_body_size_is_checked_in_pipeline_order(
    connect: Connect, path: str, headers: dict[str, str], code: str
) -> None:
    connection = await connect(SMALL)
    response = await connection.ask("POST", path, b" " * 1001, headers)
    assert code_of(response) == code
    assert response.headers["connection"] == "close"
