from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace
from ipaddress import ip_network

import pytest

from pyservice.edge.client_connection import SLOWED_DOWN_S
from pyservice.errors import ServiceError
from pyservice.transport import TransportSettings
from tests.support.reset_connection import send_and_reset
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_connections import connect as connect
from tests.support.sample_connections import service as service
from tests.support.sample_service import (
    GOOD,
    LOBBY_ID,
    Connect,
    HttpConnection,
    SmallService,
    code_of,
    is_closed,
)
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

CONNECTED_PATH = "/matchmaker/players/connected"
STATE_PATH = f"/matchmaker/lobbies/{LOBBY_ID}/state"
BODY = b'{"player_token":"some token"}'
HASTY = TransportSettings(receive_timeout_ms=200, keep_alive_timeout_ms=200)
FAIR = TransportSettings(receive_timeout_ms=1_000, keep_alive_timeout_ms=1_000)
"""Allowance for pauses of the test client on a busy machine."""


async def test_unfinished_head_times_out(connect: Connect) -> None:
    connection = await connect(FAIR)
    connection.writer.write(b"GET / HTTP/1.1\r\nx: ")
    response = await asyncio.wait_for(connection.read(), PATIENCE_S)
    assert (response.status, code_of(response)) == (408, "REQUEST_TIMEOUT")
    assert await is_closed(connection)


async def test_unfinished_body_times_out(connect: Connect, service: SmallService) -> None:
    connection = await connect(FAIR)
    connection.say("POST", CONNECTED_PATH, None, {**GOOD, "content-length": "30"})
    response = await asyncio.wait_for(connection.read(), PATIENCE_S)
    assert code_of(response) == "REQUEST_TIMEOUT"
    assert service.calls == []


async def test_slow_second_request_times_out_after_the_first_response(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(FAIR)
    assert (await connection.ask("POST", CONNECTED_PATH, BODY, GOOD)).status == 200
    connection.writer.write(b"GET / HT")
    assert code_of(await asyncio.wait_for(connection.read(), PATIENCE_S)) == "REQUEST_TIMEOUT"


async def test_connection_without_a_request_times_out(connect: Connect) -> None:
    silent = await connect(HASTY)
    idle = await connect(FAIR)
    assert (await idle.ask("POST", CONNECTED_PATH, BODY, GOOD)).status == 200
    assert await is_closed(silent)
    assert await is_closed(idle)


async def test_every_response_closes_the_connection_without_keep_alive(connect: Connect) -> None:
    connection = await connect(TransportSettings(keep_alive_timeout_ms=0))
    connection.say("POST", CONNECTED_PATH, BODY, GOOD)
    connection.say("POST", CONNECTED_PATH, BODY, GOOD)
    response = await connection.read()
    assert (response.status, response.headers.get("connection")) == (200, "close")
    assert await is_closed(connection)


async def test_first_request_has_its_timeout_without_keep_alive(connect: Connect) -> None:
    connection = await connect(TransportSettings(keep_alive_timeout_ms=0))
    connection.writer.write(f"POST {CONNECTED_PATH} HTTP/1.1\r\n".encode())
    await connection.writer.drain()
    await asyncio.sleep(0)
    fields = f"host:\r\nauthorization: Bearer pub_good\r\ncontent-length: {len(BODY)}\r\n\r\n"
    connection.writer.write(fields.encode() + BODY)
    assert (await connection.read()).status == 200


async def test_waiting_request_is_not_a_slow_client(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(FAIR)
    join = b'{"lobby_id":"00000000-0000-4000-8000-000000000001"}'
    connection.say("POST", "/matchmaker/lobbies/join", join, GOOD)
    await service.waiting.wait()
    other = await connect(FAIR)
    assert await is_closed(other)
    service.may_join.set()
    assert (await connection.read()).status == 200


@pytest.mark.parametrize("is_proxy", [False, True], ids=["client", "trusted proxy"])
async def test_connection_is_slowed_down_after_too_many_requests(
    connect: Connect, service: SmallService, *, is_proxy: bool
) -> None:
    """A trusted proxy sends requests of several clients over one connection."""
    proxies = (ip_network("127.0.0.1/32"),) if is_proxy else ()
    connection = await connect(replace(FAIR, trusted_proxies=proxies))
    service.refusal = ServiceError("MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE")
    find = b'{"game_modes":["duel"]}'
    connection.say("POST", "/matchmaker/lobbies/find", find, GOOD)
    connection.say("POST", CONNECTED_PATH, BODY, GOOD)
    assert (await connection.read()).status == 429
    began_s = asyncio.get_running_loop().time()
    assert (await connection.read()).status == 200
    pause_s = asyncio.get_running_loop().time() - began_s
    assert (pause_s < SLOWED_DOWN_S) if is_proxy else (pause_s > SLOWED_DOWN_S / 2)


async def test_client_that_reads_nothing_is_disconnected(connect: Connect) -> None:
    connection = await connect(HASTY)
    connection.reader._transport.pause_reading()  # type: ignore[attr-defined]  # a client that never reads
    request = b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n" * 1000

    async def flood() -> None:
        while True:
            connection.writer.write(request)
            await connection.writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(flood(), PATIENCE_S)


@pytest.mark.full
@pytest.mark.parametrize("is_last", [False, True], ids=["kept alive", "last answer"])
async def test_slow_reader_gets_the_whole_response(
    connect: Connect, service: SmallService, is_last: bool
) -> None:
    """The response takes several times as long as the idle timeout."""
    service.state = b'"%b"' % (b"x" * 1_500_000)
    address = (await connect(FAIR)).writer.get_extra_info("peername")
    last = "connection: close\r\n" if is_last else ""
    head = f"GET {STATE_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer pub_good\r\n{last}\r\n"
    loop = asyncio.get_running_loop()
    with socket.socket() as line:
        # As on Ethernet, the kernel buffers only a small part of the response.
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        line.setblocking(False)
        await loop.sock_connect(line, address[:2])
        await loop.sock_sendall(line, head.encode())
        content, began = b"", loop.time()
        while not content.endswith(b'x"'):
            await asyncio.sleep(0.02)
            piece = await loop.sock_recv(line, 8192)
            assert piece, f"cut off after {len(content)} bytes"
            content += piece
        assert content.partition(b"\r\n\r\n")[2] == service.state
        assert loop.time() - began > 3 * FAIR.receive_timeout_ms / 1000


BEHIND_PROXY = TransportSettings(trusted_proxies=("127.0.0.1", "10.0.0.0/8"), proxy_protocol=True)
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
async def test_proxy_header_sets_the_client_address(
    connect: Connect, service: SmallService, header: bytes, address: bytes
) -> None:
    connection = await connect(BEHIND_PROXY)
    # Only a trusted proxy may forward a client address.
    fields = dict(GOOD)
    if address == bytes([198, 51, 100, 7]):
        fields["x-forwarded-for"] = "198.51.100.7"
    connection.writer.write(header[:20])
    await connection.writer.drain()
    connection.writer.write(header[20:])
    for _ in range(2):
        assert (await connection.ask("POST", CONNECTED_PATH, BODY, fields)).status == 200
    assert [call.address for call in service.calls] == [address] * 2


async def test_client_behind_a_proxy_cannot_forward_an_address(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(BEHIND_PROXY)
    connection.writer.write(proxy_header(bytes([203, 0, 113, 9])))
    claims = {**GOOD, "x-forwarded-for": "1.1.1.1", "x-coords": "1,1"}
    assert (await connection.ask("POST", CONNECTED_PATH, BODY, claims)).status == 200
    assert service.calls[0].address == bytes([203, 0, 113, 9])
    assert service.calls[0].coords is None


async def test_trusted_proxy_without_a_header_is_disconnected(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(BEHIND_PROXY)
    connection.say("POST", CONNECTED_PATH, BODY, GOOD)
    assert await is_closed(connection)
    assert service.calls == []


async def test_untrusted_client_cannot_send_a_proxy_header(
    connect: Connect, service: SmallService
) -> None:
    connection = await connect(
        TransportSettings(trusted_proxies=("10.0.0.0/8",), proxy_protocol=True)
    )
    connection.writer.write(proxy_header(bytes([203, 0, 113, 9])))
    connection.say("POST", CONNECTED_PATH, BODY, GOOD)
    assert code_of(await connection.read()) == "HEADER_INVALID"
    assert service.calls == []


async def test_reset_connection_cannot_send_a_proxy_header(
    connect: Connect, service: SmallService
) -> None:
    address = (await connect(TransportSettings())).writer.get_extra_info("peername")[:2]
    fields = "".join(f"{name}: {value}\r\n" for name, value in GOOD.items())
    fields = f"host: x\r\n{fields}content-length: {len(BODY)}\r\n"
    head = f"POST {CONNECTED_PATH} HTTP/1.1\r\n{fields}\r\n"
    send_and_reset(address, proxy_header(bytes([203, 0, 113, 9])) + head.encode() + BODY)
    for _ in range(2):
        later = await HttpConnection.open(address)
        assert (await later.ask("POST", CONNECTED_PATH, BODY, GOOD)).status == 200
        await later.close()
    assert [call.address for call in service.calls] == [bytes([127, 0, 0, 1])] * 2
