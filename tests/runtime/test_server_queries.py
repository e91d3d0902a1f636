"""Queries of game servers, against recorded answers and against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

import pytest

from pyservice.runtime.server_queries import QueryFailed, query_server

pytestmark = pytest.mark.anyio

PREFIX: Final = b"\xff\xff\xff\xff"
A2S_CHALLENGE: Final = PREFIX + b"A\x0b\x16\x21\x2c"
A2S_INFO: Final = (
    PREFIX
    + b"I\x11Game server\0de_dust\0csgo\0Counter-Strike\0\xda\x02\x0c\x10\x04dl\x00\x011.38.7.9\0"
)
QUAKE3: Final = (
    PREFIX
    + b"statusResponse\n\\mapname\\q3dm17\\sv_maxclients\\16\\gamename\\baseq3\n"
    + b'12 48 "Anna B"\n3 52 "^1Ben"\n0 0 "Sarge"\n'
)
XONOTIC: Final = (
    PREFIX
    + b"statusResponse\n\\gamename\\Xonotic\\clients\\2\\bots\\1\n"
    + b'5 31 2 "^xF00Red"\n0 0 "[BOT]Eureka"\n'
)
MINECRAFT: Final = json.dumps(
    {
        "version": {"name": "1.20.4", "protocol": 765},
        "players": {"max": 20, "online": 3, "sample": [{"name": "Alex", "id": "-"}]},
        "description": {"text": "A Minecraft server " * 20},
    }
).encode()


def varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def minecraft(text: bytes) -> bytes:
    body = b"\0" + varint(len(text)) + text
    return varint(len(body)) + body


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answers: Callable[[bytes], list[bytes]]) -> None:
        self._answers = answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        for answer in self._answers(data):
            self._transport.sendto(answer, sender)


@asynccontextmanager
async def datagram_server(answers: Callable[[bytes], list[bytes]]) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: Datagrams(answers), local_addr=("127.0.0.1", 0)
    )
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


@asynccontextmanager
async def stream_server(answer: bytes, *, closes: bool = True) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(4096)
            writer.write(answer)
            if not closes:
                await reader.read()
        finally:
            writer.close()

    tasks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.gather(*tasks, return_exceptions=True)


def a2s(query: bytes) -> list[bytes]:
    """Answers with a challenge first, as servers do since 2020."""
    return [A2S_INFO if query.endswith(A2S_CHALLENGE[5:]) else A2S_CHALLENGE]


@pytest.mark.parametrize(
    ("kind", "answers", "players"),
    [
        ("a2s", a2s, 8),
        ("a2s", lambda _: [A2S_INFO], 8),
        ("quake3", lambda _: [QUAKE3], 2),
        ("quake3", lambda _: [XONOTIC], 1),
        ("quake3", lambda _: [b"noise", PREFIX + b"print\n", QUAKE3], 2),
    ],
)
async def test_datagram_queries_count_players_without_bots(
    kind: str, answers: Callable[[bytes], list[bytes]], players: int
) -> None:
    async with datagram_server(answers) as port:
        assert (await query_server(kind, "127.0.0.1", port)).players == players


@pytest.mark.parametrize(
    ("kind", "answer", "players"),
    [
        ("minecraft", minecraft(MINECRAFT), 3),
        ("minecraft", minecraft(b'{"players":{}}'), None),
        ("http", b'HTTP/1.1 200 OK\r\n\r\n{"players": 5}', 5),
        ("http", b"HTTP/1.0 204 No Content\r\n\r\n", None),
        ("http", b'HTTP/1.1 200 OK\r\n\r\n{"players": ["a", "b"]}', 2),
        ("http", b'HTTP/1.1 200 OK\r\n\r\n{"players": -7}', 0),
        ("http", b'HTTP/1.1 200 OK\r\n\r\n{"players": 1e999}', None),
        ("http", b"HTTP/1.1 200 OK\r\n\r\nwelcome", None),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 60_000, None),
    ],
)
async def test_stream_queries_count_players(kind: str, answer: bytes, players: int | None) -> None:
    async with stream_server(answer) as port:
        assert (await query_server(kind, "127.0.0.1", port)).players == players


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("a2s", lambda _: [PREFIX + b"I\x11cut"]),
        ("a2s", lambda _: [A2S_CHALLENGE]),
        ("a2s", lambda _: [b"x" * 1400] * 500),
        ("quake3", lambda _: [b"x" * 1400] * 500),
        ("quake3", lambda _: []),
    ],
)
async def test_wrong_and_missing_datagrams_are_failures(
    kind: str, answers: Callable[[bytes], list[bytes]]
) -> None:
    async with datagram_server(answers) as port:
        with pytest.raises(QueryFailed):
            await query_server(kind, "127.0.0.1", port)


@pytest.mark.parametrize(
    ("kind", "answer", "closes"),
    [
        ("minecraft", b"\xff" * 10, True),
        ("minecraft", varint(1 << 30), False),
        ("minecraft", minecraft(b"not json"), True),
        ("minecraft", minecraft(MINECRAFT)[:50], True),
        ("http", b"HTTP/1.1 503 Busy\r\n\r\n", True),
        ("http", b"SSH-2.0-x\r\n", True),
        ("http", b"", True),
        ("http", b"HTTP/1.1 200 OK\r\n", False),
    ],
)
async def test_wrong_and_slow_streams_are_failures(kind: str, answer: bytes, closes: bool) -> None:
    async with stream_server(answer, closes=closes) as port:
        with pytest.raises(QueryFailed):
            await query_server(kind, "127.0.0.1", port)


@pytest.mark.parametrize("kind", ["a2s", "quake3", "minecraft", "http"])
async def test_closed_port_is_a_failure(kind: str) -> None:
    async with stream_server(b"") as port:
        pass
    with pytest.raises(QueryFailed):
        await query_server(kind, "127.0.0.1", port)
