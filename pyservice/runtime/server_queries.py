"""Queries of game servers: Source A2S, Quake 3 status, Minecraft server list ping, HTTP.

Each query has a timeout, and limits of the size and number of messages.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

TIMEOUT_S: Final = 1.0

_ANSWER_BYTES_MAX: Final = 64 << 10
_DATAGRAMS_MAX: Final = 8
"""Datagrams of a server that are read for one query."""
_PLAYERS_MAX: Final = 65_535
_PREFIX: Final = b"\xff\xff\xff\xff"
_SPLIT_PREFIX: Final = b"\xfe\xff\xff\xff"
_SPLIT_HEADERS: Final = (9, 10, 12)
"""Lengths of the header of a packet of a split answer: Half-Life, Source, and Source since 2007."""
_A2S_INFO: Final = _PREFIX + b"TSource Engine Query\0"
_QUAKE3_STATUS: Final = _PREFIX + b"getstatus\n"
_QUAKE3_ANSWER: Final = _PREFIX + b"statusResponse\n"
_QUAKE3_PLAYER: Final = re.compile(rb"^-?[0-9]+ (-?[0-9]+) ", re.MULTILINE)
"""Beginning of a line `score ping "name"`, with the ping."""
_MINECRAFT_VERSION: Final = 47


class QueryFailed(Exception):
    """The server did not answer, or its answer is not one of the protocol."""


class QueryAnswer(NamedTuple):
    players: int | None
    """Number of players without bots. None: the answer has none."""


async def query_server(kind: str, host: str, port: int, path: str = "/") -> QueryAnswer:
    """Returns the answer of a server to one query. `path` is for HTTP.

    Raises QueryFailed, at the latest after `TIMEOUT_S`.
    """
    query = _QUERIES[kind]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await query(host, port, path)
    except TimeoutError:
        raise QueryFailed(f"no answer within {TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise QueryFailed(error.strerror or type(error).__name__) from None
    except (ValueError, struct.error, asyncio.IncompleteReadError) as error:
        raise QueryFailed(f"malformed answer: {error}") from None


class _Datagrams:
    """A connected UDP socket, so that only the server's datagrams arrive."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.connect((host, port))
        self._left = _DATAGRAMS_MAX

    def __enter__(self) -> _Datagrams:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, datagram: bytes) -> None:
        self._socket.send(datagram)

    async def receive(self, *prefixes: bytes) -> bytes:
        """Returns the next datagram with one of the prefixes. Ignores a few others."""
        loop = asyncio.get_running_loop()
        while self._left > 0:
            self._left -= 1
            datagram = await loop.sock_recv(self._socket, _ANSWER_BYTES_MAX)
            if datagram.startswith(prefixes):
                return datagram
        raise QueryFailed("other datagrams than an answer")


async def _query_a2s(host: str, port: int, path: str) -> QueryAnswer:
    info, challenge = _PREFIX + b"I", _PREFIX + b"A"
    with _Datagrams(host, port) as datagrams:
        datagrams.send(_A2S_INFO)
        answer = await datagrams.receive(info, challenge, _SPLIT_PREFIX)
        if answer.startswith(challenge):
            datagrams.send(_A2S_INFO + answer[5:9])
            answer = await datagrams.receive(info, _SPLIT_PREFIX)
        while answer.startswith(_SPLIT_PREFIX):
            # The first packet of a split answer has all numbers, and begins like a whole answer.
            starts = (size for size in _SPLIT_HEADERS if answer.startswith(info, size))
            if (start := next(starts, None)) is not None:
                answer = answer[start:]
            else:
                answer = await datagrams.receive(info, _SPLIT_PREFIX)
    # A version, then name, map, folder and game, each with a NUL, and the id of the game.
    *texts, numbers = answer[6:].split(b"\0", 4)
    if len(texts) != 4:
        raise QueryFailed("malformed answer: texts are missing")
    _, players, _, bots = struct.unpack_from("<HBBB", numbers)
    return QueryAnswer(max(0, players - bots))


async def _query_quake3(host: str, port: int, path: str) -> QueryAnswer:
    with _Datagrams(host, port) as datagrams:
        datagrams.send(_QUAKE3_STATUS)
        answer = await datagrams.receive(_QUAKE3_ANSWER)
    _, _, players = answer[len(_QUAKE3_ANSWER) :].partition(b"\n")
    # Bots have no ping.
    return QueryAnswer(sum(ping != b"0" for ping in _QUAKE3_PLAYER.findall(players)))


async def _query_minecraft(host: str, port: int, path: str) -> QueryAnswer:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        address = host.encode()
        handshake = b"\0" + _varint(_MINECRAFT_VERSION) + _varint(len(address)) + address
        handshake += struct.pack(">H", port) + b"\1"
        writer.write(_varint(len(handshake)) + handshake + b"\1\0")
        length = await _read_varint(reader)
        if not 0 < length <= _ANSWER_BYTES_MAX:
            raise QueryFailed("malformed answer: a wrong length")
        answer = await reader.readexactly(length)
    finally:
        writer.transport.abort()
    # The number of the packet (0), and the length of the text.
    text = answer[1:].lstrip(bytes(range(0x80, 0x100)))[1:]
    return QueryAnswer(_player_count(_json_object(text).get("players"), "online"))


async def _query_http(host: str, port: int, path: str) -> QueryAnswer:
    reader, writer = await asyncio.open_connection(host, port, limit=_ANSWER_BYTES_MAX)
    try:
        # A response of HTTP/1.0 ends with the connection, and has no chunks.
        name = f"[{host}]" if ":" in host else host
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {name}:{port}\r\n\r\n".encode())
        answer = b""
        while len(answer) <= _ANSWER_BYTES_MAX and (part := await reader.read(_ANSWER_BYTES_MAX)):
            answer += part
    finally:
        writer.transport.abort()
    head, _, body = answer.partition(b"\r\n\r\n")
    version, _, status = head.split(b"\r\n")[0].partition(b" ")
    if not version.startswith(b"HTTP/1.") or not status.startswith(b"2"):
        raise QueryFailed(f"no status 2xx: {head[:64]!r}")
    if len(answer) > _ANSWER_BYTES_MAX:
        return QueryAnswer(None)
    try:
        return QueryAnswer(_player_count(_json_object(body), "players"))
    except ValueError:
        return QueryAnswer(None)


def _player_count(value: Any, name: str) -> int | None:
    """Returns the number, or the length of the list, that an object has under `name`."""
    count = value.get(name) if isinstance(value, dict) else None
    count = len(count) if isinstance(count, list) else count
    if not isinstance(count, int) or isinstance(count, bool):
        return None
    return min(max(0, count), _PLAYERS_MAX)


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


async def _read_varint(reader: asyncio.StreamReader) -> int:
    number = 0
    for shift in range(0, 35, 7):
        [byte] = await reader.readexactly(1)
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise QueryFailed("malformed answer: a number is too long")


_QUERIES: Final[dict[str, Callable[[str, int, str], Awaitable[QueryAnswer]]]] = {
    "a2s": _query_a2s,
    "quake3": _query_quake3,
    "minecraft": _query_minecraft,
    "http": _query_http,
}
