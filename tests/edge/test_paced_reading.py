from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest
from google.protobuf.message import Message

from pyservice.calls import Caller
from pyservice.edge.http_application import HttpApplication
from pyservice.edge.http_messages import Request
from pyservice.edge.http_protocol import HttpProtocol
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.transport import TransportSettings
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
    connections_to,
    is_closed,
    open_api,
)
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

CONNECTED_PATH = "/matchmaker/players/connected"
JOIN_PATH = "/matchmaker/lobbies/join"
BODY = b'{"player_token":"some token"}'
JOIN = b'{"lobby_id":"00000000-0000-4000-8000-000000000001"}'
HASTY = TransportSettings(receive_timeout_ms=2_000, keep_alive_timeout_ms=2_000)
"""Short timeouts that still give a client on a busy machine the time to send its next request."""
SHORTEST = b"GET / HTTP/1.1\r\nhost:\r\n\r\n"


async def test_pipelining_client_does_not_block_others(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, turns_of_openings = 0, dict[int, int]()
    is_over = False
    open_one = HttpApplication.open

    def count(edge: HttpApplication, request: Request) -> Any:
        turns_of_openings[turns] = turns_of_openings.get(turns, 0) + 1
        return open_one(edge, request)

    async def take_turns() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(HttpApplication, "open", count)
    connection = await connect()
    ticking = asyncio.create_task(take_turns())
    connection.writer.write(SHORTEST * 3000)
    for _ in range(3000):
        assert (await connection.read()).status == 404
    is_over = True
    await ticking
    assert sum(turns_of_openings.values()) == 3000
    assert max(turns_of_openings.values()) <= 250


async def test_requests_pipelined_behind_a_waiting_one_stay_unparsed(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect()
    connection.say("POST", JOIN_PATH, JOIN, GOOD)
    connection.writer.write(SHORTEST * 3000)
    await service.waiting.wait()
    assert sum(isinstance(one, Request) for one in gc.get_objects()) <= 250
    service.may_join.set()
    assert [(await connection.read()).status for _ in range(3001)] == [200] + [404] * 3000


class Keeping(SmallService):
    def __init__(self) -> None:
        super().__init__()
        self.states: list[bytes] = []

    async def set_state(self, message: pb.SetLobbyStateRequest, caller: Caller) -> Message:
        self.states.append(message.state)
        return pb.SetLobbyStateResponse()


async def test_bodies_in_one_chunk_arrive_whole_and_in_order() -> None:
    states = [b'"' + b"%d" % n * length + b'"' for n in range(8) for length in (1, 2000, 60_000)]
    content = b"".join(
        b"PUT /matchmaker/lobbies/state HTTP/1.1\r\nhost:\r\nauthorization: Bearer pub_good\r\n"
        b"content-length: %d\r\n\r\n%b%b" % (len(state), state, SHORTEST)
        for state in states
    )
    service = Keeping()
    async with connections_to(service) as connect:
        connection = await connect()
        connection.writer.write(content)
        statuses = [(await connection.read()).status for _ in range(2 * len(states))]
    assert statuses == [200, 404] * len(states)
    assert service.states == states


async def test_long_chunked_body_with_an_upgrade_arrives_whole(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect()
    offer = {"connection": "upgrade", "upgrade": "x", "transfer-encoding": "chunked"}
    state = b'"' + b"s" * 30_000 + b'"'
    pieces = (state[at : at + 700] for at in range(0, len(state), 700))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    fields = "".join(f"{name}: {value}\r\n" for name, value in {**GOOD, **offer}.items())
    head = f"PUT /matchmaker/lobbies/state HTTP/1.1\r\nhost:\r\n{fields}\r\n".encode()
    connection.writer.write(head + chunks + b"0\r\n\r\n" + SHORTEST * 1000)
    response = await connection.read()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert service.state == state


async def test_data_after_the_last_request_gets_no_response(connect: Connect) -> None:
    connection = await connect()
    last = b"GET / HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n"
    connection.writer.write(SHORTEST * 300 + last + SHORTEST * 300)
    connection.writer.write_eof()
    answers = [await connection.read() for _ in range(301)]
    assert [answer.headers.get("connection") for answer in answers] == [None] * 300 + ["close"]
    assert await is_closed(connection)


async def test_error_far_back_in_a_chunk_keeps_its_order(connect: Connect) -> None:
    connection = await connect()
    connection.writer.write(SHORTEST * 300 + b"BAD\r\n\r\n" + SHORTEST * 3000)
    assert [(await connection.read()).status for _ in range(300)] == [404] * 300
    assert code_of(await connection.read()) == "HEADER_INVALID"
    assert await is_closed(connection)


@pytest.mark.full
async def test_time_without_reading_does_not_count_for_the_client(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(HASTY)
    connection.say("POST", JOIN_PATH, JOIN, GOOD)
    connection.writer.write(SHORTEST * 300 + b"GET / HT")
    await service.waiting.wait()
    other = await connect(HASTY)
    assert await is_closed(other)
    service.may_join.set()
    assert [(await connection.read()).status for _ in range(301)] == [200] + [404] * 300
    connection.writer.write(b"TP/1.1\r\nhost:\r\n\r\n")
    assert (await connection.read()).status == 404


@pytest.mark.full
async def test_partial_request_behind_a_waiting_one_does_not_time_out(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(HASTY)
    connection.say("POST", JOIN_PATH, JOIN, GOOD)
    connection.writer.write(SHORTEST + b"GET / HT")
    await service.waiting.wait()
    other = await connect(HASTY)
    assert await is_closed(other)
    service.may_join.set()
    assert [(await connection.read()).status for _ in range(2)] == [200, 404]
    connection.writer.write(b"TP/1.1\r\nhost:\r\n\r\n")
    assert (await connection.read()).status == 404


async def test_disconnect_discards_unread_data(service: SmallService) -> None:
    async with open_api("http", service) as api:
        assert isinstance(api, HttpApi)
        assert api.server is not None
        connection = await HttpConnection.open(api.address)
        connection.writer.write(SHORTEST * 100_000)
        assert (await connection.read()).status == 404
        connection.writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while api.server._connections:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([f"x{n}:" for n in range(127)], 404),
        ([f"x{n}:" for n in range(128)], 431),
        (["x:"] * 127, 404),
        (["x:"] * 128, 431),
        ([f"x{n}:" for n in range(64)] * 2, 431),
    ],
    ids=["127", "128", "one name 127 times", "one name 128 times", "64 names twice"],
)
async def test_head_has_at_most_128_fields(connect: Connect, lines: list[str], status: int) -> None:
    """The limit of 128 header fields includes the host."""
    connection = await connect()
    for _ in range(2 if status == 404 else 1):
        connection.writer.write("\r\n".join(["GET / HTTP/1.1", "host:", *lines, "\r\n"]).encode())
        response = await connection.read()
        assert response.status == status
    if status == 431:
        assert code_of(response) == "HEADERS_TOO_LARGE"
        assert await is_closed(connection)


async def test_endless_head_stores_at_most_128_fields(connect: Connect) -> None:
    connection = await connect()
    connection.writer.write(b"GET / HTTP/1.1\r\n" + b"".join(b"x%d:\r\n" % n for n in range(131)))
    assert code_of(await connection.read()) == "HEADERS_TOO_LARGE"


async def come_to_rest(transport: asyncio.Transport) -> None:
    """Waits until the kernel's buffers of an unread connection are full."""
    buffered_bytes, idle_rounds = -1, 0
    while idle_rounds < 20:
        await asyncio.sleep(0.01)
        before, buffered_bytes = buffered_bytes, transport.get_write_buffer_size()
        idle_rounds = idle_rounds + 1 if buffered_bytes == before else 0


@pytest.mark.full
async def test_rejected_client_with_a_full_buffer_is_disconnected(
    service: SmallService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = 0
    pause = HttpProtocol.pause_writing

    def count(connection: HttpProtocol) -> None:
        nonlocal pauses
        pauses += 1
        pause(connection)

    monkeypatch.setattr(HttpProtocol, "pause_writing", count)
    loop = asyncio.get_running_loop()
    async with open_api("http", service) as api, asyncio.timeout(PATIENCE_S):
        assert isinstance(api, HttpApi)
        assert api.server is not None
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await loop.sock_connect(slow, api.address)
            while not api.server._connections:
                await asyncio.sleep(0.01)
            [connection] = api.server._connections
            transport = connection.transport
            transport.set_write_buffer_limits(high=20_000_000)
            transport.write(bytes(8_000_000))
            await come_to_rest(transport)
            # The write buffer takes everything except the error response.
            transport.set_write_buffer_limits(high=transport.get_write_buffer_size() + 50, low=0)
            await loop.sock_sendall(slow, b"BAD\r\n\r\n")
            while not pauses:
                await asyncio.sleep(0.01)
            content = b""
            while piece := await loop.sock_recv(slow, 1 << 20):
                content = content[-4000:] + piece
            assert b"HEADER_INVALID" in content
            # The client keeps its side open, so only the timeout closes the connection.
            while api.server._connections:
                await asyncio.sleep(0.01)
