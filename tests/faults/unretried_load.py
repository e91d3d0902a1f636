"""Load of players and lobby servers that repeat no request. Each lost or wrong answer is a failure.

Over gRPC, the library of the client repeats calls that the service has not processed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import uvloop

from tests.support.data_plane_clients import (
    Fields,
    PlaneGrpcClient,
    ResponseLost,
    TransportResponse,
)
from tests.support.waiting import PATIENCE_S

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_LAST: Final = b"\r\nconnection: close\r\n"
_TOKEN: Final = re.compile(rb"player_[A-Za-z0-9_-]+")
_THINK_S: Final = 0.4
"""Longest pause of a slow player. It is shorter than the time of idle connections during a stop."""
_READY_SHARE: Final = 0.1
"""Share of the rounds with a request that the front passes on."""


@dataclass(frozen=True)
class LoadedLobby:
    id: str
    token: str


@dataclass
class LoadCounts:
    answers: int = 0
    last_answers: int = 0
    """Answers with `connection: close`."""
    connections: int = 0
    failures: list[str] = field(default_factory=list)


class UnretriedLoad:
    """Players over HTTP in a thread of their own, between `__enter__` and `__exit__`.

    In a round, a player joins, connects and disconnects. Each request depends on the answer to the
    one before, so a lost change is a wrong answer. The lobby server reports `ready` after some
    rounds.
    """

    def __init__(
        self, address: str, token: str, lobbies: Sequence[LoadedLobby], players: int
    ) -> None:
        """Each tenth player is slow: it pauses before its requests."""
        host, _, port = address.rpartition(":")
        self.where = (host, int(port))
        self.token = token
        self.counts = LoadCounts()
        self.random = random.Random(1)
        self.is_over = False
        self.players = [(lobbies[n % len(lobbies)], n % 10 == 0) for n in range(players)]
        # A test that fails does not wait for the thread.
        self._thread = threading.Thread(target=lambda: uvloop.run(self._play()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_over = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "a request is not answered"

    async def _play(self) -> None:
        """Plays until `is_over`."""
        loop = asyncio.get_running_loop()
        players = [_Player(self, lobby, loop, is_slow=slow) for lobby, slow in self.players]
        await asyncio.gather(*(player.connect() for player in players))
        await asyncio.gather(*(player.has_ended for player in players))


class UnretriedGrpcLoad(UnretriedLoad):
    """Players over gRPC, each with a channel of its own.

    The library's transparent retries are on. Without them, a call on a connection that gets GOAWAY
    before the call is sent fails with "Stream removed (GOAWAY received)".
    """

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lobby, is_slow in self.players:
                group.create_task(self._play_alone(lobby, is_slow=is_slow))

    async def _play_alone(self, lobby: LoadedLobby, *, is_slow: bool) -> None:
        client = PlaneGrpcClient("{}:{}".format(*self.where), is_default=True)
        self.counts.connections += 1
        try:
            while not self.is_over:
                await self._play_round(client, lobby)
                if is_slow:
                    await asyncio.sleep(self.random.random() * _THINK_S)
        except (ResponseLost, AssertionError) as error:
            self.counts.failures.append(repr(error))
        finally:
            await client.close()

    async def _play_round(self, client: PlaneGrpcClient, lobby: LoadedLobby) -> None:
        async def call(operation: str, fields: Fields, token: str) -> TransportResponse:
            answer = await client.call(operation, fields, token=token)
            assert answer.code == "OK", (operation, answer)
            self.counts.answers += 1
            return answer

        joined = await call("join", {"lobby_id": lobby.id}, self.token)
        player = {"player_token": joined.tokens[0]}
        await call("connected", player, lobby.token)
        await call("disconnected", player, lobby.token)
        if self.random.random() < _READY_SHARE:
            await call("ready", {}, lobby.token)


class _Player(asyncio.Protocol):
    def __init__(
        self,
        load: UnretriedLoad,
        lobby: LoadedLobby,
        loop: asyncio.AbstractEventLoop,
        *,
        is_slow: bool,
    ) -> None:
        self.has_ended: asyncio.Future[None] = loop.create_future()
        self._load = load
        self._lobby = lobby
        self._loop = loop
        self._is_slow = is_slow
        self._received = b""
        self._is_asking = False
        self._is_last = False
        self._player_token = b""
        join = json.dumps({"lobby_id": lobby.id}).encode()
        self._steps: list[tuple[bytes, Callable[[], bytes]]] = [
            (_head("lobbies/join", load.token), lambda: join),
            (_head("players/connected", lobby.token), self._token_body),
            (_head("players/disconnected", lobby.token), self._token_body),
            (_head("lobbies/ready", lobby.token), lambda: b"{}"),
        ]
        self._step = 0

    async def connect(self) -> None:
        self._received, self._is_last = b"", False
        try:
            await self._loop.create_connection(lambda: self, *self._load.where)
        except OSError as error:
            self._fail(f"not connected: {error}")

    def _token_body(self) -> bytes:
        return b'{"player_token":"%b"}' % self._player_token

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._load.counts.connections += 1
        self._ask_soon()

    def _ask_soon(self) -> None:
        if self._is_slow:
            self._loop.call_later(self._load.random.random() * _THINK_S, self._ask)
        else:
            self._ask()

    def _ask(self) -> None:
        if self._transport.is_closing():
            # The service closed the idle connection. `connection_lost` opens another one.
            return
        if self._load.is_over:
            self._transport.close()
            return
        head, body = self._steps[self._step]
        content = body()
        self._is_asking = True
        self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(content), content))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(_HEAD_END)
        if not separator:
            return
        length = _LENGTH.search(head + b"\r\n")
        if length is None:
            self._fail(f"no length: {head!r}")
        elif len(body) >= int(length[1]):
            self._received = b""
            self._is_asking = False
            self._on_answer(head + b"\r\n", body)

    def _on_answer(self, head: bytes, body: bytes) -> None:
        counts = self._load.counts
        if not head.startswith(b"HTTP/1.1 200 "):
            self._fail(f"step {self._step}: {head[:40]!r} {body[:400]!r}")
            return
        if self._step == 0:
            self._player_token = _TOKEN.findall(body)[0]
        counts.answers += 1
        self._step = (self._step + 1) % len(self._steps)
        if self._step == len(self._steps) - 1 and self._load.random.random() > _READY_SHARE:
            self._step = 0
        self._is_last = _LAST in head
        if self._is_last:
            counts.last_answers += 1
            self._transport.close()
        else:
            self._ask_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_asking:
            self._fail(f"step {self._step}: the connection ended without an answer: {exc!r}")
        elif self.has_ended.done():
            return
        elif self._load.is_over:
            self.has_ended.set_result(None)
        else:
            self._connecting = self._loop.create_task(self.connect())

    def _fail(self, reason: str) -> None:
        self._load.counts.failures.append(reason)
        self._is_asking = False
        if not self.has_ended.done():
            self.has_ended.set_result(None)
        if hasattr(self, "_transport"):
            self._transport.abort()


def _head(operation: str, token: str) -> bytes:
    return (
        f"POST /matchmaker/{operation} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
        "content-type: application/json\r\ncontent-length: "
    ).encode()
