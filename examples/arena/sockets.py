"""The WebSockets of the arena: confirms players, reads inputs and sends snapshots."""

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request
from websockets.protocol import State

from . import messages
from .hosting import HostingClient, ServiceAway, ServiceRefused
from .lobby import Lobby, Releases, Verdict
from .messages import End, TokenBucket, Unacceptable
from .pages import Pages
from .settings import Settings
from .world import TICK_HZ, World

PLAYER_TOKEN_CHARS_MAX = 160
# A slow client first misses snapshots. After CONGESTED_MAX_S the server closes its socket.
SEND_BUFFER_BYTES_MAX = 64 * 1024
CONGESTED_MAX_S = 3.0
CLOSE_TIMEOUT_S = 2.0
# A client that vanishes keeps its slot for at most the sum of both values.
PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 10.0
# After a longer stall the server skips ticks.
LATE_TICKS_MAX = 5
STOP_TIMEOUT_S = 3.0

log = logging.getLogger("arena")


class PlayerConnection(ServerConnection):
    """Connection with a limit on received bytes."""

    _bytes_left: TokenBucket | None = None
    _ending: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        if self._ending is not None:
            return
        now_s = time.monotonic()
        if self._bytes_left is None:
            self._bytes_left = TokenBucket(messages.BYTES_PER_S, messages.BYTES_BURST, now_s)
        if self._bytes_left.take(len(data), now_s):
            super().data_received(data)
        elif self.protocol.state is State.OPEN:
            self._ending = asyncio.create_task(end_socket(self, End.TOO_MANY_MESSAGES))
        else:
            self.transport.abort()


@dataclass(slots=True, eq=False)
class Seat:
    connection: ServerConnection
    player_id: int
    token: str
    messages_left: TokenBucket
    has_roster: bool = False
    congested_since_s: float | None = None
    ending: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Counts:
    confirmed: int = 0
    refused: int = 0
    skipped_snapshots: int = 0
    late_ticks: int = 0


class Arena:
    def __init__(self, settings: Settings, hosting: HostingClient, seed: int) -> None:
        self.counts = Counts()
        self._lobby_id = settings.lobby_id
        self._waiting_max = settings.max_players
        self._hosting = hosting
        self._releases = Releases(hosting)
        self._lobby = Lobby(hosting, self._connected_tokens)
        self._world = World(seed)
        self._seats: dict[int, Seat] = {}
        self._waiting_tokens: set[str] = set()

    async def run(
        self, stop: asyncio.Event, listener: socket.socket, pages: Pages
    ) -> Verdict | None:
        """Serves until `stop` is set (returns None) or the lobby ends."""
        server = await serve(
            self._handle,
            sock=listener,
            process_request=lambda connection, request: pages.answer(request),
            create_connection=PlayerConnection,
            compression=None,
            max_size=messages.MESSAGE_BYTES_MAX,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
        )
        lobby = asyncio.create_task(self._lobby.run())
        stopped = asyncio.create_task(stop.wait())
        ticks = asyncio.create_task(self._tick_forever())
        releases = asyncio.create_task(self._releases.run())
        parts = (lobby, stopped, ticks, releases)
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        ended = [part for part in parts if part.done()]
        try:
            await self._end_all(server, is_lobby_alive=lobby not in ended)
        finally:
            await _cancel(*parts)
        for part in ended:
            part.result()
        return lobby.result() if lobby in ended else None

    async def _end_all(self, server: Server, is_lobby_alive: bool) -> None:
        end = End.SERVER_STOPPING if is_lobby_alive else End.LOBBY_ENDED
        with contextlib.suppress(TimeoutError, ServiceAway, ServiceRefused):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                if is_lobby_alive:
                    await self._lobby.close()
        server.close(code=end.code, reason=end.reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await server.wait_closed()
                await self._releases.finish_first_tries()
        for connection in server.all_connections:
            connection.transport.abort()

    async def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        token = _player_token(connection.request)
        end = self._reason_to_refuse(token)
        if end is None:
            end = await self._admit_and_play(connection, token)
        if end is not None:
            await end_socket(connection, end)

    def _reason_to_refuse(self, token: str) -> End | None:
        """Returns the close code for a token that is malformed or in use, or None."""
        if not token:
            return End.TOKEN_MISSING
        if len(token) > PLAYER_TOKEN_CHARS_MAX or not token.isascii() or not token.isprintable():
            return End.TOKEN_INVALID
        if (
            token in self._waiting_tokens
            or token in self._releases.pending
            or any(seat.token == token for seat in self._seats.values())
        ):
            return End.TOKEN_IN_USE
        if len(self._waiting_tokens) >= self._waiting_max:
            return End.BUSY
        return None

    async def _admit_and_play(self, connection: ServerConnection, token: str) -> End | None:
        self._waiting_tokens.add(token)
        try:
            end = await self._confirm(connection, token)
        finally:
            self._waiting_tokens.discard(token)
        if end is not None:
            self.counts.refused += 1
            return end
        if connection.protocol.state is not State.OPEN:
            self._releases.add(token)
            return None
        self.counts.confirmed += 1
        player = self._world.join()
        now_s = time.monotonic()
        bucket = TokenBucket(messages.MESSAGES_PER_S, messages.MESSAGES_BURST, now_s)
        seat = Seat(connection, player.id, token, bucket)
        self._seats[player.id] = seat
        self._forget_rosters()
        try:
            await connection.send(messages.welcome(player, self._lobby_id))
            return await self._read_inputs(seat)
        except ConnectionClosed:
            return None
        finally:
            # Release the slot before the closing handshake ends.
            del self._seats[player.id]
            self._world.leave(player.id)
            self._forget_rosters()
            self._releases.add(token)

    async def _confirm(self, connection: ServerConnection, token: str) -> End | None:
        """Calls `players/connected`. Returns the reason of a rejection.

        Releases the slot if the service may have marked the slot as connected.
        """
        confirmation = asyncio.create_task(
            self._hosting.confirm_player(token, idempotency_key=str(uuid.uuid4()))
        )
        first_message = asyncio.create_task(connection.recv())
        try:
            await asyncio.wait({confirmation, first_message}, return_when=asyncio.FIRST_COMPLETED)
            if confirmation.done():
                confirmation.result()
            if first_message.done():
                self._releases.add(token)
                return End.TOO_EARLY
            return None
        except ServiceRefused as refused:
            if refused.code not in messages.END_OF_REFUSAL:
                log.error("a player was refused: %s", refused)
            return messages.END_OF_REFUSAL.get(refused.code, End.REFUSED)
        except ServiceAway:
            self._releases.add(token)
            return End.UNCONFIRMED
        finally:
            await _cancel(confirmation, first_message)

    async def _read_inputs(self, seat: Seat) -> End:
        last_seq = 0
        while True:
            message = await seat.connection.recv()
            if not seat.messages_left.take(1, time.monotonic()):
                return End.TOO_MANY_MESSAGES
            try:
                steering = messages.parse_input(message, last_seq)
            except Unacceptable as unacceptable:
                return unacceptable.end
            last_seq = steering.seq
            self._world.steer(seat.player_id, steering.seq, steering.dirs)

    def _connected_tokens(self) -> list[str]:
        return [seat.token for seat in self._seats.values()]

    def _forget_rosters(self) -> None:
        for seat in self._seats.values():
            seat.has_roster = False

    async def _tick_forever(self) -> None:
        tick_s = 1 / TICK_HZ
        due_s = time.monotonic()
        while True:
            due_s += tick_s
            late_s = time.monotonic() - due_s
            if late_s > LATE_TICKS_MAX * tick_s:
                self.counts.late_ticks += int(late_s / tick_s)
                due_s += late_s
            await asyncio.sleep(max(due_s - time.monotonic(), 0))
            if self._seats:
                self._world.step()
                self._send_snapshots()
            if self._world.tick % TICK_HZ == 0 or not self._seats:
                self._lobby.publish(messages.lobby_state(self._world))

    def _send_snapshots(self) -> None:
        now_s = time.monotonic()
        keeping_up = [seat for seat in self._seats.values() if self._keeps_up(seat, now_s)]
        without_roster = [seat for seat in keeping_up if not seat.has_roster]
        if without_roster:
            roster = messages.roster(self._world.players.values())
            broadcast([seat.connection for seat in without_roster], roster)
            for seat in without_roster:
                seat.has_roster = True
        broadcast([seat.connection for seat in keeping_up], messages.snapshot(self._world))

    def _keeps_up(self, seat: Seat, now_s: float) -> bool:
        """Returns false for a slow socket. Closes a socket that is slow for too long."""
        if seat.connection.transport.get_write_buffer_size() <= SEND_BUFFER_BYTES_MAX:
            seat.congested_since_s = None
            return True
        self.counts.skipped_snapshots += 1
        if seat.congested_since_s is None:
            seat.congested_since_s = now_s
        elif now_s - seat.congested_since_s > CONGESTED_MAX_S and seat.ending is None:
            seat.ending = asyncio.create_task(end_socket(seat.connection, End.TOO_SLOW))
        return False


async def end_socket(connection: ServerConnection, end: End) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await connection.close(end.code, end.reason)
    except TimeoutError:
        connection.transport.abort()


def _player_token(request: Request) -> str:
    values = parse_qs(urlsplit(request.path).query).get("token", [])
    return values[0] if len(values) == 1 else ""


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
