"""Memory budget for unfinished request bodies: token check first, a total, a share for each
address, and release.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from pyservice.transport import KIB, MIB, TransportSettings
from tests.edge.large_bodies import HALF, JOIN, LARGE
from tests.support.forwarding_pair import VALIDATE, Servers, open_servers, until
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_service import GOOD, HttpConnection, Response, code_of, is_closed

pytestmark = pytest.mark.anyio

CONNECTED_PATH = "/matchmaker/players/connected"
TOKEN = {"authorization": "Bearer cloud_a"}
BUDGET = TransportSettings(bodies_limit_bytes=8 * MIB, receive_timeout_ms=30_000)
"""8 MiB in total. After half is used, each address has 1 MiB, enough for the largest body."""
SHARE = MIB


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path, settings=BUDGET) as servers:
        yield servers


Client = Callable[..., Awaitable[HttpConnection]]


@pytest.fixture
async def client(servers: Servers) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:

        async def connect(number: int = 1) -> HttpConnection:
            local = (f"127.0.0.{number}", 0)
            streams = await asyncio.open_connection(*servers.http.address, local_addr=local)
            connection = HttpConnection(*streams)
            stack.push_async_callback(cut, connection)
            return connection

        yield connect


async def cut(connection: HttpConnection) -> None:
    connection.writer.transport.abort()
    await connection.close()


def body_bytes(servers: Servers) -> int:
    return servers.metrics.http.body_bytes


async def begin(connection: HttpConnection, sent_bytes: int, length_bytes: int) -> None:
    connection.say("POST", VALIDATE, None, {**TOKEN, "content-length": str(length_bytes)})
    connection.writer.write(b" " * sent_bytes)
    await connection.writer.drain()


async def hold_half(servers: Servers, client: Client) -> None:
    for number in range(200, 205):
        await begin(await client(number), LARGE, MIB)
    await until(lambda: body_bytes(servers) == HALF)


def body_of(size: int) -> bytes:
    text = b'{"display_name":"%b"}'
    return text % (b"x" * (size - len(text) + 2))


@pytest.mark.full
async def test_unfinished_bodies_stay_within_the_budget(servers: Servers, client: Client) -> None:
    peak = 0

    async def hostile(number: int) -> asyncio.Future[Response]:
        """The server may also close the connection some seconds after the error."""
        nonlocal peak
        connection = await client(2 + number % 20)
        connection.say("POST", VALIDATE, None, {**TOKEN, "content-length": str(MIB)})
        reading = asyncio.ensure_future(connection.read())
        with suppress(ConnectionError):
            for _ in range(LARGE // (20 * KIB)):
                connection.writer.write(b" " * 20 * KIB)
                await connection.writer.drain()
                peak = max(peak, body_bytes(servers))
                await asyncio.sleep(0)
        return reading

    reading = await asyncio.gather(*(hostile(number) for number in range(200)))

    def refusals() -> list[Response]:
        return [one.result() for one in reading if one.done() and one.exception() is None]

    await until(lambda: bool(refusals()))
    assert all(response.headers["retry-after"] for response in refusals())
    assert {code_of(response) for response in refusals()} == {"OVERLOADED"}
    assert not all(one.done() for one in reading)
    for one in reading:
        one.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    assert 7 * MIB < peak <= 12 * MIB
    assert body_bytes(servers) <= 12 * MIB
    for number in (2, 99):
        good = await client(number)
        assert (await good.ask("POST", CONNECTED_PATH, b'{"player_token":"x"}', GOOD)).status == 200


async def test_address_at_its_share_leaves_space_for_others(
    servers: Servers, client: Client
) -> None:
    await hold_half(servers, client)
    first, second = await client(2), await client(2)
    await begin(first, LARGE, MIB)
    await until(lambda: body_bytes(servers) == HALF + LARGE)
    await begin(second, LARGE, MIB)
    response = await second.read()
    assert (response.status, code_of(response)) == (503, "OVERLOADED")
    assert (response.headers["retry-after"], response.headers["connection"]) == ("1", "close")
    assert "address" in response.json["detail"]
    assert await is_closed(second)
    assert body_bytes(servers) == HALF + LARGE
    other = await client(3)
    assert (await other.ask("POST", VALIDATE, body_of(LARGE), TOKEN)).status == 200
    first.writer.write(b" " * (MIB - LARGE))
    assert code_of(await first.read()) == "BODY_INVALID"
    assert body_bytes(servers) == HALF


async def test_many_clients_of_one_address_may_use_half(servers: Servers, client: Client) -> None:
    for number in range(1, 5):
        await begin(await client(2), LARGE, MIB)
        await until(lambda number=number: body_bytes(servers) == number * LARGE)  # type: ignore[misc]
    refusal = await (await client(2)).ask("POST", VALIDATE, body_of(LARGE), TOKEN)
    assert code_of(refusal) == "OVERLOADED"
    assert (await (await client(3)).ask("POST", VALIDATE, body_of(LARGE), TOKEN)).status == 200


async def test_small_bodies_fit_when_large_ones_do_not(servers: Servers, client: Client) -> None:
    for number in range(2, 11):
        await begin(await client(number), MIB - 1, MIB)
    await until(lambda: body_bytes(servers) >= 8 * (MIB - 1))
    refusal = await (await client(20)).ask("POST", VALIDATE, body_of(LARGE), TOKEN)
    assert code_of(refusal) == "OVERLOADED"
    slow = await client(20)
    body = body_of(60 * KIB)
    slow.say("POST", VALIDATE, None, {**TOKEN, "content-length": str(len(body))})
    before = body_bytes(servers)
    slow.writer.write(body[:1000])
    await until(lambda: body_bytes(servers) == before + 1000)
    slow.writer.write(body[1000:])
    assert (await slow.read()).status == 200
    assert body_bytes(servers) == before


async def test_unfinished_small_bodies_are_limited(servers: Servers, client: Client) -> None:
    await hold_half(servers, client)
    codes = []
    for _ in range(40):
        connection = await client(2)
        before = body_bytes(servers)
        connection.say("POST", JOIN, None, {**GOOD, "content-length": "60000"})
        connection.writer.write(b" " * 59_999)
        await until(lambda before=before: body_bytes(servers) != before or before > HALF + SHARE)  # type: ignore[misc]
        if before + 59_999 > HALF + SHARE * 3 // 2:
            codes.append(code_of(await connection.read()))
    assert codes == ["OVERLOADED"] * (40 - SHARE * 3 // 2 // 59_999)
    assert body_bytes(servers) <= HALF + SHARE * 3 // 2


async def test_large_body_counts_until_its_response(servers: Servers, client: Client) -> None:
    servers.control.is_slow = True
    connection = await client()
    body = body_of(LARGE)
    connection.say("POST", "/cloud/groups", body, TOKEN)
    await until(servers.control.begun.is_set)
    assert body_bytes(servers) == len(body)
    connection.say("POST", VALIDATE, body_of(100 * KIB), TOKEN)
    await until(lambda: body_bytes(servers) == len(body) + 100 * KIB)
    servers.control.go_on.set()
    assert [(await connection.read()).status for _ in range(2)] == [200, 200]
    assert body_bytes(servers) == 0


async def test_metric_reports_the_bytes_held(servers: Servers, client: Client) -> None:
    await begin(await client(), 300 * KIB, MIB)
    await until(lambda: body_bytes(servers) == 300 * KIB)
    line = f'hosting_request_bodies_bytes{{door="http"}} {300.0 * KIB}'
    assert line.encode() in servers.metrics.render()


def chunked(*rest: bytes) -> bytes:
    """Returns a chunked request with a large first chunk."""
    head = f"POST {VALIDATE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer cloud_a\r\n"
    body = b"%x\r\n%b\r\n" % (300 * KIB, b" " * 300 * KIB)
    return f"{head}transfer-encoding: chunked\r\n\r\n".encode() + body + b"".join(rest)


def sized(size: int, sent_bytes: int, *fields: str) -> bytes:
    head = f"POST {VALIDATE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer cloud_a\r\n"
    lines = "".join(f"{field}\r\n" for field in fields)
    return f"{head}{lines}content-length: {size}\r\n\r\n".encode() + b" " * sent_bytes


HOSTILE = {
    "disconnect": (sized(MIB, LARGE), ""),
    "too many bytes": (chunked(b"%x\r\n" % MIB, b" " * MIB), "BODY_TOO_LARGE"),
    "invalid framing": (chunked(b"nonsense\r\n"), "HEADER_INVALID"),
    "large trailer": (chunked(b"0\r\nx: ", b"t" * 300 * KIB), "BODY_TOO_LARGE"),
    "large chunk extension": (chunked(b"1;", b"e" * 300 * KIB), "BODY_TOO_LARGE"),
    "upgrade": (sized(MIB, LARGE, "connection: upgrade", "upgrade: h2c"), ""),
    "expect continue": (sized(MIB, LARGE, "expect: 100-continue"), ""),
    "no JSON": (sized(LARGE, LARGE), "BODY_INVALID"),
    "other content type": (sized(LARGE, LARGE, "content-type: text/plain"), ""),
    "connection close": (sized(LARGE, LARGE, "connection: close"), "BODY_INVALID"),
    "pipelining": (b"".join([sized(300 * KIB, 300 * KIB)] * 3), "BODY_INVALID"),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_budget_is_released_after_a_hostile_request(
    servers: Servers, client: Client, kind: str
) -> None:
    request, code = HOSTILE[kind]
    connection = await client()
    connection.writer.write(request)
    if code:
        assert code_of(await connection.read()) == code
        if code != "BODY_INVALID":
            # The budget is released before the client has read the error.
            assert body_bytes(servers) == 0
    else:
        await until(lambda: body_bytes(servers) > 0 or servers.control.calls != [])
    connection.writer.transport.abort()
    await until(lambda: body_bytes(servers) == 0)
    again = await client()
    assert (await again.ask("POST", VALIDATE, body_of(LARGE), TOKEN)).status == 200
    await until(lambda: body_bytes(servers) == 0)


async def test_budget_is_released_after_a_receive_timeout(tmp_path: Path) -> None:
    settings = TransportSettings(receive_timeout_ms=200)
    async with open_servers(tmp_path, settings=settings) as servers:
        connection = await HttpConnection.open(servers.http.address)
        await begin(connection, LARGE, MIB)
        assert code_of(await connection.read()) == "REQUEST_TIMEOUT"
        assert body_bytes(servers) == 0
        await connection.close()


@pytest.mark.parametrize("is_whole", [True, False])
async def test_budget_is_released_after_a_disconnect_or_shutdown(
    servers: Servers, client: Client, is_whole: bool
) -> None:
    servers.control.is_slow = True
    for end in ("client", "server"):
        servers.control.begun.clear()
        connection = await client()
        size = str(LARGE if is_whole else MIB)
        connection.say("POST", "/cloud/groups", None, {**TOKEN, "content-length": size})
        connection.writer.write(body_of(LARGE))
        await until(lambda: body_bytes(servers) == LARGE)
        if end == "client":
            connection.writer.transport.abort()
        else:
            await servers.server.stop(0.0)
        await until(lambda: body_bytes(servers) == 0)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "TOKEN_MISSING"),
        ({"authorization": "Basic YTpi"}, "TOKEN_INVALID"),
        ({"authorization": "Bearer nonsense"}, "TOKEN_INVALID"),
        ({"authorization": "Bearer cloud_" + "a" * 200}, "TOKEN_INVALID"),
    ],
)
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_large_body_without_a_token_is_rejected_unread(
    servers: Servers, client: Client, headers: dict[str, str], code: str, is_chunked: bool
) -> None:
    connection = await client()
    framing = {"transfer-encoding": "chunked"} if is_chunked else {"content-length": str(MIB)}
    connection.say("POST", VALIDATE, None, {**headers, **framing, "expect": "100-continue"})
    if is_chunked:
        assert (await connection.read()).status == 100
        connection.writer.write(b"%x\r\n" % MIB + b" " * (64 * KIB + 1))
    response = await connection.read()
    assert (response.status, code_of(response)) == (401, code)
    assert response.headers["www-authenticate"] == "Bearer"
    assert body_bytes(servers) == 0
    # A client that continues to send can read the error before the server closes the connection.
    for _ in range(5):
        connection.writer.write(b" " * 20 * KIB)
        await connection.writer.drain()
    assert await is_closed(connection)
    assert servers.control.calls == []
    counted = servers.metrics.http.meters["validate_game"].codes
    assert counted[code] == 1


async def test_small_body_is_received_before_the_token_check(
    servers: Servers, client: Client
) -> None:
    connection = await client()
    for size in (100, 64 * KIB):
        response = await connection.ask("POST", VALIDATE, body_of(size), {})
        assert code_of(response) == "TOKEN_MISSING"
        assert "connection" not in response.headers


async def test_tokenless_operation_accepts_large_bodies(servers: Servers, client: Client) -> None:
    # The sample service requires a token. Its error shows that it received the body.
    connection = await client()
    padded = b'{"lobby_id":"x"}' + b" " * LARGE
    connection.say("POST", JOIN, None, {"content-length": str(len(padded) + 1)})
    connection.writer.write(padded)
    await until(lambda: body_bytes(servers) == len(padded))
    connection.writer.write(b" ")
    assert code_of(await connection.read()) == "TOKEN_MISSING"
    assert body_bytes(servers) == 0


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/nowhere", 404), ("DELETE", VALIDATE, 405)]
)
async def test_large_body_for_an_unknown_path_is_rejected_unread(
    servers: Servers, client: Client, method: str, path: str, status: int
) -> None:
    connection = await client()
    connection.say(method, path, None, {**TOKEN, "content-length": str(LARGE)})
    response = await connection.read()
    assert (response.status, response.headers["connection"]) == (status, "close")


async def test_share_belongs_to_the_client_behind_a_proxy(tmp_path: Path) -> None:
    settings = TransportSettings(
        bodies_limit_bytes=8 * MIB, trusted_proxies=("127.0.0.0/8",), body_limit_bytes=MIB
    )
    async with open_servers(tmp_path, settings=settings) as servers:
        connections = [await HttpConnection.open(servers.http.address) for _ in range(9)]
        for number, connection in enumerate(connections, start=-5):
            forwarded = {
                **TOKEN,
                "x-forwarded-for": f"192.0.2.{100 + (number if number < 0 else number // 2)}",
            }
            connection.say("POST", VALIDATE, None, {**forwarded, "content-length": str(MIB)})
            connection.writer.write(b" " * LARGE)
            await connection.writer.drain()
            if number > 0 and number % 2:
                assert code_of(await connection.read()) == "OVERLOADED"
            else:
                own = number + 6 if number < 0 else 6 + number // 2
                await until(lambda own=own: body_bytes(servers) == LARGE * own)  # type: ignore[misc]
        for connection in connections:
            await connection.close()
