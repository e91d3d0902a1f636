"""Queries of game servers, against recorded answers and against servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

import pytest

from pyservice.runtime import server_queries
from pyservice.runtime.server_queries import QueryFailed, query_server
from tests.runtime.recorded_answers import (
    CHALLENGE,
    COUNTER_STRIKE,
    COUNTER_STRIKE_OLD,
    DATAGRAMS,
    ET_LEGACY,
    MINECRAFT_1_20,
    PLAYER_LIST,
    PREFIX,
    QUAKE_3,
    STREAMS,
    TEAM_FORTRESS_2,
    minecraft,
    split,
    split_half_life,
    varint,
)
from tests.support.loopback import NEEDS_IPV6
from tests.support.waiting import PATIENCE_S, cancel

pytestmark = pytest.mark.anyio

A2S_REQUEST: Final = PREFIX + b"TSource Engine Query\0"
QUAKE_3_REQUEST: Final = PREFIX + b"getstatus\n"
ICON: Final = "data:image/png;base64," + "A" * 40_000


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a query wait as long as a busy machine needs for an answer."""
    monkeypatch.setattr(server_queries, "TIMEOUT_S", PATIENCE_S)


needs_an_answer: Final = pytest.mark.usefixtures("patience")


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answers: Callable[[bytes], list[bytes]]) -> None:
        self._answers = answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        for answer in self._answers(data):
            self._transport.sendto(answer, sender)


@asynccontextmanager
async def datagram_server(
    answers: Callable[[bytes], list[bytes]], host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: Datagrams(answers), local_addr=(host, 0)
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


@needs_an_answer
@pytest.mark.parametrize("game", DATAGRAMS)
async def test_recorded_datagrams_count_players_without_bots(game: str) -> None:
    kind, recorded = DATAGRAMS[game]
    requests: list[bytes] = []

    def answers(request: bytes) -> list[bytes]:
        requests.append(request)
        return [recorded.datagrams[len(requests) - 1]]

    async with datagram_server(answers) as port:
        assert (await query_server(kind, "127.0.0.1", port)).players == recorded.players
    if kind == "quake3":
        assert requests == [QUAKE_3_REQUEST]
    else:
        # A server with challenges gets the same request with the challenge.
        challenges = [b"", *(one[5:] for one in recorded.datagrams if one == CHALLENGE)]
        assert requests == [A2S_REQUEST + challenge for challenge in challenges]


@needs_an_answer
@NEEDS_IPV6
async def test_server_can_have_an_ipv6_address() -> None:
    async with datagram_server(lambda _: [QUAKE_3], "::1") as port:
        assert (await query_server("quake3", "::1", port)).players == 2


@needs_an_answer
@pytest.mark.parametrize("game", STREAMS)
async def test_recorded_streams_count_players(game: str) -> None:
    kind, answer, players = STREAMS[game]
    async with stream_server(answer) as port:
        assert (await query_server(kind, "127.0.0.1", port)).players == players


@needs_an_answer
async def test_minecraft_request_is_a_handshake_and_a_status_request() -> None:
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.readexactly(18))
        writer.write(MINECRAFT_1_20)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await query_server("minecraft", "127.0.0.1", port)
    # Packet 0 with protocol 47, the address, the port and the next state 1, then an empty packet 0.
    handshake = b"\x0f\0\x2f\x09127.0.0.1" + port.to_bytes(2, "big") + b"\x01"
    assert await received == handshake + b"\x01\0"


@needs_an_answer
@pytest.mark.parametrize(
    ("kind", "datagrams", "players"),
    [
        # The counts are in the first packet, which can arrive last.
        ("a2s", split(TEAM_FORTRESS_2, 100), 7),
        ("a2s", split(TEAM_FORTRESS_2, 100)[::-1], 7),
        ("a2s", split_half_life(COUNTER_STRIKE, 60), 10),
        # Half-Life servers send the old form of the answer first.
        ("a2s", [COUNTER_STRIKE_OLD, COUNTER_STRIKE], 10),
        ("a2s", [PLAYER_LIST, COUNTER_STRIKE], 10),
        ("quake3", [b"noise", PREFIX + b"print\nbad\n", QUAKE_3], 2),
    ],
)
async def test_other_datagrams_and_packets_are_ignored(
    kind: str, datagrams: list[bytes], players: int
) -> None:
    async with datagram_server(lambda _: datagrams) as port:
        assert (await query_server(kind, "127.0.0.1", port)).players == players


@needs_an_answer
@pytest.mark.parametrize(
    ("kind", "answer", "players"),
    [
        ("minecraft", minecraft({"players": {}}), None),
        ("minecraft", minecraft({"players": {"online": 5_000_000, "max": 20}}), 65_535),
        ("minecraft", minecraft({"players": {"online": -1, "max": 20}}), 0),
        ("minecraft", minecraft({"players": {"online": "20"}}), None),
        ("minecraft", minecraft({"players": {"online": 2.5}}), None),
        ("minecraft", minecraft({"players": {"online": True}}), None),
        ("minecraft", minecraft({"players": ["Anna"]}), None),
        # Names that do not exist: the sample is not the count.
        ("minecraft", minecraft({"players": {"online": 1, "sample": [{"name": "?"}] * 99}}), 1),
        ("minecraft", minecraft({"players": {"online": 2}, "favicon": ICON}), 2),
        ("http", b"HTTP/1.0 204 No Content\r\n\r\n", None),
        ("http", b'HTTP/1.1 200 OK\r\n\r\n{"players": -7}', 0),
        ("http", b'HTTP/1.1 200 OK\r\n\r\n{"players": 1e999}', None),
        ("http", b'HTTP/1.1 200 OK\r\n\r\n{"players": ' + b"9" * 5_000 + b"}", None),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n[" + b"0," * 99 + b"0]", None),
        ("http", b"HTTP/1.1 200 OK\r\n\r\nwelcome", None),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe\0", None),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 60_000, None),
    ],
)
async def test_false_counts_have_limits(kind: str, answer: bytes, players: int | None) -> None:
    async with stream_server(answer) as port:
        assert (await query_server(kind, "127.0.0.1", port)).players == players


@needs_an_answer
@pytest.mark.parametrize(
    ("kind", "answer", "players"),
    [
        # More bots than players, and more players than slots.
        ("a2s", PREFIX + b"I\x11a\0b\0c\0d\0" + bytes([10, 0, 1, 8, 9]), 0),
        ("a2s", PREFIX + b"I\x11a\0b\0c\0d\0" + bytes([10, 0, 255, 8, 0]), 255),
        # Lines that are no players, and players that do not exist.
        ("quake3", QUAKE_3 + b'   \nx  \n"a b"\n7 \n 9 9 9\n7 40 "Cid"', 3),
        ("quake3", QUAKE_3 + b'7 40 "?"\n' * 4_000, 4_002),
        ("quake3", PREFIX + b"statusResponse\n", 0),
    ],
)
async def test_false_datagrams_have_limits(kind: str, answer: bytes, players: int) -> None:
    async with datagram_server(lambda _: [answer]) as port:
        assert (await query_server(kind, "127.0.0.1", port)).players == players


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("a2s", lambda _: [PREFIX + b"I\x11cut"]),
        ("a2s", lambda _: [CHALLENGE]),
        ("a2s", lambda _: [COUNTER_STRIKE_OLD]),
        ("a2s", lambda _: split(TEAM_FORTRESS_2, 100)[1:]),
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
        ("minecraft", MINECRAFT_1_20[:2], False),
        # A packet without a text, and the answer of another protocol.
        ("minecraft", bytes.fromhex("01 05"), True),
        ("minecraft", b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
        ("minecraft", minecraft(b"not json"), True),
        ("minecraft", MINECRAFT_1_20[:5_000], True),
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


@pytest.mark.parametrize("kind", ["minecraft", "http"])
async def test_endless_stream_is_read_up_to_a_limit(kind: str) -> None:
    """The server sends for as long as the query reads, and counts what the connection took."""
    sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    head = varint(60_000) if kind == "minecraft" else b"HTTP/1.1 200 OK\r\n\r\n"

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken = 0
        writer.write(head)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
                taken += 1 << 16
        writer.close()
        sent.set_result(taken)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with contextlib.suppress(QueryFailed):
            answer = await query_server(kind, "127.0.0.1", port)
            assert answer.players is None
        # The buffers of the kernel and of this server take most of it.
        assert await sent < 64 << 20


@needs_an_answer
async def test_servers_that_never_answer_delay_no_other_query() -> None:
    async with (
        datagram_server(lambda _: []) as silent,
        datagram_server(lambda _: [QUAKE_3]) as healthy,
    ):
        waiting = [
            asyncio.create_task(query_server(kind, "127.0.0.1", silent))
            for kind in ("a2s", "quake3") * 50
        ]
        for _ in range(20):
            assert (await query_server("quake3", "127.0.0.1", healthy)).players == 2
        assert not any(task.done() for task in waiting)
        await cancel(*waiting)


def changed(answer: bytes, chance: random.Random) -> bytes:
    """Returns the answer with some bytes replaced, and often cut."""
    content = bytearray(answer)
    for _ in range(chance.randrange(1, 8)):
        content[chance.randrange(len(content))] = chance.choice(b'\0\n \\"-09{[\x7f\x80\xff')
    return bytes(
        content[: chance.randrange(len(content) + 1)] if chance.random() < 0.5 else content
    )


@pytest.mark.parametrize(("kind", "answer"), [("a2s", TEAM_FORTRESS_2), ("quake3", ET_LEGACY)])
async def test_damaged_datagrams_are_counts_or_failures(kind: str, answer: bytes) -> None:
    chance = random.Random(38)
    # A query fails at once after eight other datagrams.
    async with datagram_server(lambda _: [changed(answer, chance)] * 8) as port:
        for _ in range(300):
            with contextlib.suppress(QueryFailed):
                players = (await query_server(kind, "127.0.0.1", port)).players
                assert players is not None
                assert 0 <= players <= 255


async def test_damaged_streams_are_counts_or_failures() -> None:
    chance = random.Random(38)
    for _ in range(100):
        async with stream_server(changed(STREAMS["Minecraft 1.8-pre1"][1], chance)) as port:
            with contextlib.suppress(QueryFailed):
                players = (await query_server("minecraft", "127.0.0.1", port)).players
                assert players is None or 0 <= players <= 65_535
