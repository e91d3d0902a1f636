"""Players at edge-guard that check every byte of the responses: streams without gaps and datagrams
of one session.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol

from tests.support.full_service import eventually
from tests.support.waiting import PATIENCE_S

ROUND_S: Final = 0.05
LOST_S: Final = 1.0
"""A datagram counts as lost after this time without a response."""
Address = tuple[str, int]


class SessionBroken(Exception):
    """A player missed data or got wrong data."""


class Player(Protocol):
    socket: socket.socket
    received_count: int

    def say(self) -> None: ...
    def receive(self) -> None: ...


class StreamPlayer:
    def __init__(self, name: str, address: Address, token: str) -> None:
        self.socket = socket.create_connection(address, PATIENCE_S)
        self.received_count = 0
        self._name = name
        self._awaited = b""
        self._send(token.encode())

    def _send(self, words: bytes) -> None:
        self._awaited += words
        self.socket.sendall(words)

    def say(self) -> None:
        if not self._awaited:
            self._send(f"{self._name} {self.received_count}\n".encode().rjust(64, b"."))

    def receive(self) -> None:
        content = self.socket.recv(65_536)
        if not content:
            raise SessionBroken(f"{self._name} was closed after {self.received_count} answers")
        if not self._awaited.startswith(content):
            raise SessionBroken(f"{self._name} received {content!r} in place of {self._awaited!r}")
        self._awaited = self._awaited[len(content) :]
        self.received_count += not self._awaited


class DatagramPlayer:
    def __init__(self, name: str, address: Address) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(address)
        self.received_count = 0
        self.lost_count = 0
        self._name = name
        self._number = 0
        self._is_answered = True
        self._said_s = 0.0
        self._session = b""

    def say(self) -> None:
        if not self._is_answered:
            if time.monotonic() - self._said_s < LOST_S:
                return
            self.lost_count += 1
        self._number += 1
        self._is_answered = False
        self._said_s = time.monotonic()
        self.socket.send(f"{self._name} {self._number}".encode())

    def receive(self) -> None:
        session, _, words = self.socket.recv(2_048).partition(b" ")
        self._session = self._session or session
        if session != self._session:
            raise SessionBroken(
                f"{self._name} has become another: {session!r}, not {self._session!r}"
            )
        name, _, number = words.decode().rpartition(" ")
        if name != self._name or not 0 < int(number) <= self._number:
            raise SessionBroken(f"{self._name} received {words!r}")
        if int(number) == self._number and not self._is_answered:
            self._is_answered = True
            self.received_count += 1


class PlayerThread:
    """Runs all players in one thread, inside of a `with` block."""

    def __init__(self, players: Sequence[Player]) -> None:
        self.players = players
        self._is_over = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._play)

    def __enter__(self) -> PlayerThread:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._is_over.set()
        self._thread.join()
        for player in self.players:
            player.socket.close()

    def _play(self) -> None:
        waiting = selectors.DefaultSelector()
        for player in self.players:
            waiting.register(player.socket, selectors.EVENT_READ, player)
        try:
            while not self._is_over.is_set():
                self._round(waiting)
        except (OSError, SessionBroken) as problem:
            self._problem = problem
        finally:
            waiting.close()

    def _round(self, waiting: selectors.BaseSelector) -> None:
        for player in self.players:
            player.say()
        end = time.monotonic() + ROUND_S
        while (seconds_left := end - time.monotonic()) > 0:
            for key, _ in waiting.select(seconds_left):
                key.data.receive()

    async def goes_on(self) -> None:
        before = [player.received_count for player in self.players]

        async def are_answered() -> bool:
            if self._problem is not None:
                raise self._problem
            now = [player.received_count for player in self.players]
            return all(received > then + 1 for received, then in zip(now, before, strict=True))

        await eventually(are_answered)
