"""Helper of the hosting service for game clients, bots and lobby servers.

One file that needs only the standard library of Python 3.9 or newer. Copy it into a game, or install `hosting-game`.
`Matchmaker` is for players, and `LobbyServer` is for the game server of a lobby.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import random
import signal
import ssl
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

# The service waits up to 45 s for a starting lobby, and `ready` up to 10 s for the ports.
MATCH_ATTEMPT_S = 60.0
SERVER_ATTEMPT_S = 15.0
CONFIRM_ATTEMPT_S = 4.0
# The service expects `disconnected` if `connected` takes longer.
CONFIRM_TOTAL_S = 10.0
RELEASE_TOTAL_S = 60.0
CLOSE_TOTAL_S = 5.0
STATE_INTERVAL_S = 1.0
PAUSE_FIRST_S, PAUSE_LONGEST_S = 0.1, 2.0
TEMPORARY_STATUSES = frozenset({0, 408, 500, 502, 503, 504})
LOBBY_ENDED_STATUSES = frozenset({401, 403, 404, 410})


class HostingError(Exception):
    """A call failed. `code` is stable: see the error codes of the service.

    `NO_RESPONSE` with status 0 means that the service could not be reached or did not answer in time.
    """

    def __init__(
        self, code: str, status: int, detail: str, problem: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(f"{code}: {detail}")
        problem = problem or {}
        self.code, self.status, self.detail = code, status, detail
        self.ray_id: str = problem.get("ray_id", "")
        self.metadata: Mapping[str, str] = problem.get("metadata", {})
        self.errors: Sequence[Any] = problem.get("errors", ())
        self.retry_after_s = 0.0

    @property
    def is_temporary(self) -> bool:
        """True if the same call can succeed later. Its outcome is then unknown."""
        return self.status in TEMPORARY_STATUSES or self.code == "RATE_LIMITED"


@dataclass(frozen=True)
class Port:
    """Player address of one port. `port` is None for a range."""

    hostname: str
    port: int | None
    is_tls: bool = False
    port_range: tuple[int, int] | None = None

    @property
    def host(self) -> str:
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return host if self.port is None else f"{host}:{self.port}"


@dataclass(frozen=True)
class Reservation:
    """A slot in a lobby. Connect to one of `ports` and send `player_token` there."""

    lobby_id: str
    region_id: str
    ports: Mapping[str, Port]
    player_token: str = field(repr=False)
    player_tokens: Sequence[str] = field(repr=False)

    def port(self, name: str = "") -> Port:
        """Returns the port with this name, or the only port."""
        return self.ports[name] if name else next(iter(self.ports.values()))

    def websocket_url(self, path: str = "/", port: str = "") -> str:
        """Returns the address of a WebSocket server, with the player token as query parameter."""
        target = self.port(port)
        scheme = "wss" if target.is_tls else "ws"
        return f"{scheme}://{target.host}{path}?{urlencode({'token': self.player_token})}"


@dataclass(frozen=True)
class Lobby:
    """An entry of the lobby list."""

    lobby_id: str
    game_mode: str
    region_id: str
    player_count: int
    max_players: int
    max_players_direct: int
    max_players_party: int
    state: Any = None


class Matchmaker:
    """Calls of a player with a public token. Cancel a call to give up its slot.

    Each call is repeated under one idempotency key for at most `timeout_s`.
    """

    def __init__(self, api_url: str, token: str, timeout_s: float = 120.0) -> None:
        self._http = _Http(api_url, token)
        self._timeout_s = timeout_s

    async def find(self, *game_modes: str, **fields: Any) -> Reservation:
        """Reserves a slot in a lobby of one of these game modes. `fields` are those of find."""
        return await self._reserve("find", {"game_modes": list(game_modes), **fields})

    async def join(self, lobby_id: str, **fields: Any) -> Reservation:
        """Reserves a slot in this lobby."""
        return await self._reserve("join", {"lobby_id": lobby_id, **fields})

    async def create(self, game_mode: str, **fields: Any) -> Reservation:
        """Starts a lobby and reserves a slot in it."""
        return await self._reserve("create", {"game_mode": game_mode, **fields})

    async def rejoin(self, reservation: Reservation) -> Reservation:
        """Reserves the slot again that the server keeps after a lost connection.

        Without a kept slot it is a normal join.
        """
        return await self.join(reservation.lobby_id, rejoin_token=reservation.player_token)

    async def list_lobbies(self, include_state: bool = False) -> list[Lobby]:
        """Returns all public, open lobbies, oldest first."""
        lobbies: list[Lobby] = []
        query = {"include_state": "true"} if include_state else {}
        while True:
            page = await self._get("lobbies/list", query)
            lobbies += [_lobby(entry) for entry in page["lobbies"]]
            if not page.get("cursor"):
                return lobbies
            query = {**query, "cursor": page["cursor"]}

    async def _get(self, path: str, query: Mapping[str, str]) -> Any:
        path += "?" + urlencode(query) if query else ""
        return await self._http.call("GET", path, None, MATCH_ATTEMPT_S, self._timeout_s)

    async def _reserve(self, operation: str, fields: Mapping[str, Any]) -> Reservation:
        body = {name: value for name, value in fields.items() if value is not None}
        path = f"lobbies/{operation}"
        answer = await self._http.call("POST", path, body, MATCH_ATTEMPT_S, self._timeout_s)
        lobby, players = answer["lobby"], answer.get("players") or [answer["player"]]
        return Reservation(
            lobby["lobby_id"],
            lobby["region"]["region_id"],
            {name: _port(entry) for name, entry in answer["ports"].items()},
            answer["player"]["token"],
            [player["token"] for player in players],
        )


class LobbyServer:
    """The game server of a lobby. Use it as `async with`: inside it, heartbeats run and SIGTERM ends the lobby.

    Without a service it is local: it accepts every token and sends nothing.
    """

    def __init__(
        self, api_url: str = "", lobby_token: str = "", environ: Mapping[str, str] | None = None
    ) -> None:
        self.environ = environ or {}
        self.is_local = not api_url
        self.lobby_id = self.environ.get("HOSTING_LOBBY_ID", "")
        self.game_mode = self.environ.get("HOSTING_GAME_MODE", "")
        self.region_id = self.environ.get("HOSTING_REGION_ID", "")
        self.max_players = int(self.environ.get("HOSTING_MAX_PLAYERS", "0"))
        self.bind_address = self.environ.get("HOSTING_BIND_ADDRESS", "127.0.0.1")
        self.tags: Any = json.loads(self.environ.get("HOSTING_LOBBY_TAGS", "{}"))
        self.config: Any = json.loads(self.environ.get("HOSTING_LOBBY_CONFIG", "null"))
        self.heartbeat_interval_s = 3.0
        self.stop_reason = ""
        self._http = None if self.is_local else _Http(api_url, lobby_token)
        self._confirming: set[str] = set()
        self._players: dict[str, None] = {}
        self._releases: dict[str, asyncio.Task[None]] = {}
        self._is_wanted_ready = self._is_ready = self._is_declared = self._is_finishing = False
        self._is_closed: bool | None = None
        self._sent_closed: bool | None = None
        self._state: bytes | None = None
        self._sent_state: bytes | None = None
        self._heartbeat_due_s = self._state_due_s = 0.0
        self._error: HostingError | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> LobbyServer:
        """Returns the server of the lobby in the HOSTING_* variables. Without them it is local."""
        api_url = environ.get("HOSTING_API_URL", "")
        token = environ.get("HOSTING_LOBBY_TOKEN", "")
        if bool(api_url) != bool(token):
            missing = "HOSTING_LOBBY_TOKEN" if api_url else "HOSTING_API_URL"
            raise ValueError(f"{missing} is not set: set both variables, or none to run locally")
        return cls(api_url, token, environ)

    def port(self, name: str = "", local: int = 7777) -> int:
        """Returns the number to bind for the port with this name, or for the only port.

        `local` is the number if the environment has none.
        """
        variable = "PORT_" + name.upper().replace("-", "_") if name else "PORT"
        return int(self.environ.get(variable, local))

    @property
    def is_stopping(self) -> bool:
        return bool(self.stop_reason)

    async def __aenter__(self) -> LobbyServer:
        # Before Python 3.10 these objects belong to the event loop in which they were created.
        self._changed, self._stopping = asyncio.Event(), asyncio.Event()
        self._left, self._has_answer = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        self._signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Windows and threads have no such handlers. There the process ends at once.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop, signal.Signals(number).name)
                self._signals.append(number)
        self._background = [] if self.is_local else [asyncio.create_task(self._run())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the lobby, releases all slots, and waits at most 5 s for the service."""
        self.stop("close")
        for token in list(self._players):
            self.disconnected(token)
        self._is_finishing = True
        self._changed.set()
        tasks = [*self._releases.values(), *self._background]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TOTAL_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number in list(self._signals):
            self._remove_signal_handler(number)

    async def ready(self) -> None:
        """Lets players in. Returns when the service has confirmed it, or when the lobby stops."""
        if self.is_local:
            log("ready", mode="local: every token is valid")
            return
        self._is_wanted_ready, self._is_declared = True, False
        self._changed.set()
        while not (self._is_ready or self.is_stopping):
            await self._has_answer.wait()
        if self._error and not self._is_ready:
            raise self._error

    def stop(self, reason: str = "stop") -> None:
        """Closes the lobby and wakes `drained`, as SIGTERM does."""
        if not self.is_stopping:
            log("stopping", reason=reason)
            self.stop_reason, self._is_closed = reason, True
            # A second Ctrl-C ends the process at once. A second SIGTERM does not: it can come from a forwarding script.
            self._remove_signal_handler(signal.SIGINT)
            for event in (self._stopping, self._has_answer, self._changed):
                event.set()

    async def stopping(self) -> None:
        """Returns when the lobby has to end."""
        await self._stopping.wait()

    async def drained(self, timeout_s: float = 10.0) -> None:
        """Waits until the lobby has to end, and then until all players have left, at most `timeout_s`.

        The service sends SIGKILL 30 s after SIGTERM.
        """
        await self.stopping()
        deadline_s = time.monotonic() + timeout_s
        while self._players and time.monotonic() < deadline_s:
            self._left.clear()
            await _within(self._left.wait(), deadline_s - time.monotonic())

    def player(self, token: str, hold_ms: int = 0) -> Player:
        """Confirms a player for the duration of `async with`. Raises HostingError: then close the connection."""
        return Player(self, token, hold_ms)

    async def connected(self, token: str) -> None:
        """Confirms a player token. Call `disconnected` when the player has left, or use `player`."""
        if self.is_local:
            self._players[token] = None
            return
        if token in self._confirming or token in self._players or token in self._releases:
            raise HostingError("PLAYER_TOKEN_CONSUMED", 409, "The player token was already used.")
        self._confirming.add(token)
        body = {"player_token": token}
        try:
            assert self._http is not None
            path = "players/connected"
            await self._http.call("POST", path, body, CONFIRM_ATTEMPT_S, CONFIRM_TOTAL_S)
            self._players[token] = None
        except BaseException as error:
            # After a cancellation or without an answer the slot may be connected.
            if not isinstance(error, HostingError) or error.is_temporary:
                self._release(token, 0)
            raise
        finally:
            self._confirming.discard(token)

    def disconnected(self, token: str, hold_ms: int = 0) -> None:
        """Releases the slot in the background. With `hold_ms` the service keeps it for the player."""
        if token in self._players:
            del self._players[token]
            self._left.set()
            self._release(token, hold_ms)

    def set_state(self, value: Any) -> None:
        """Publishes any JSON value in the lobby list, at most once a second."""
        self._state = json.dumps(value).encode()
        self._changed.set()

    def set_closed(self, is_closed: bool = True) -> None:
        """Closes the lobby for new players, or opens it."""
        self._is_closed = is_closed
        self._changed.set()

    def websocket(
        self, play: Callable[[Any, Player], Awaitable[None]], hold_ms: int = 0
    ) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """Returns a connection handler for the library `websockets` that confirms the player first.

        The token is the query parameter `token`. `play` gets the socket and the player. A connection that breaks
        ends it without an error, because players leave in this way, too.
        """
        from websockets.exceptions import ConnectionClosed

        async def handle(socket: Any) -> None:
            try:
                async with self.player(token_of(socket.request.path), hold_ms) as player:
                    await play(socket, player)
            except HostingError as error:
                await socket.close(1008, error.code)
            except ConnectionClosed:
                pass

        return handle

    def _release(self, token: str, hold_ms: int) -> None:
        if self._http is None:
            return
        body = {"player_token": token, **({"hold_ms": hold_ms} if hold_ms else {})}
        path = "players/disconnected"
        call = self._http.call("POST", path, body, SERVER_ATTEMPT_S, RELEASE_TOTAL_S)
        self._releases[token] = asyncio.create_task(self._finish_release(token, call))

    async def _finish_release(self, token: str, call: Awaitable[Any]) -> None:
        try:
            await call
        except HostingError as error:
            # The next heartbeats omit the token, and the service then releases the slot.
            log("slot not released", "warning", code=error.code, ray_id=error.ray_id)
        finally:
            del self._releases[token]

    async def _run(self) -> None:
        """Sends heartbeats and changes. Sends all values again after an outage, because calls may be lost."""
        pauses, is_away = _pauses(), False
        while True:
            self._changed.clear()
            try:
                await self._send_due()
            except HostingError as error:
                if error.status in LOBBY_ENDED_STATUSES:
                    self._error = error
                    self.stop(error.code)
                    return
                if not is_away:
                    log("call failed", "warning", code=error.code, ray_id=error.ray_id)
                is_away = True
                self._is_declared = False
                await asyncio.sleep(max(next(pauses), error.retry_after_s))
                continue
            if self._is_finishing and self._is_closed == self._sent_closed:
                return
            if is_away:
                log("the service answers again")
            pauses, is_away = _pauses(), False
            due_s = self._heartbeat_due_s
            if self._state != self._sent_state:
                due_s = min(due_s, self._state_due_s)
            await _within(self._changed.wait(), due_s - time.monotonic())

    async def _send_due(self) -> None:
        if not self._is_declared:
            self._is_declared, self._sent_closed, self._sent_state = True, None, None
            if self._is_wanted_ready:
                await self._send("POST", "lobbies/ready", {})
                if not self._is_ready:
                    log("ready")
                self._is_ready = True
                self._has_answer.set()
        if self._is_closed != self._sent_closed:
            is_closed = self._is_closed
            await self._send("PUT", "lobbies/closed", {"is_closed": is_closed})
            self._sent_closed = is_closed
        now_s = time.monotonic()
        if self._state != self._sent_state and now_s >= self._state_due_s:
            state, self._state_due_s = self._state, now_s + STATE_INTERVAL_S
            try:
                await self._send("PUT", "lobbies/state", state)
            except HostingError as error:
                if error.is_temporary or error.status in LOBBY_ENDED_STATUSES:
                    raise
                log("state not published", "error", code=error.code, detail=error.detail)
            self._sent_state = state
        if now_s >= self._heartbeat_due_s:
            await self._send("POST", "lobbies/heartbeat", {"player_tokens": list(self._players)})
            self._heartbeat_due_s = now_s + self.heartbeat_interval_s

    async def _send(self, method: str, path: str, body: Any) -> None:
        assert self._http is not None
        await self._http.attempt(method, path, body, str(uuid.uuid4()), SERVER_ATTEMPT_S)

    def _remove_signal_handler(self, number: int) -> None:
        if number in self._signals:
            self._signals.remove(number)
            asyncio.get_running_loop().remove_signal_handler(number)


class Player:
    """A player of the lobby, from `connected` to `disconnected`."""

    def __init__(self, server: LobbyServer, token: str, hold_ms: int) -> None:
        self._server, self._token = server, token
        self.hold_ms = hold_ms

    async def __aenter__(self) -> Player:
        await self._server.connected(self._token)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.disconnected(self._token, self.hold_ms)


def log(message: str, level: str = "info", **fields: Any) -> None:
    """Writes a line of JSON to standard output, which the service stores."""
    entry = {"time": round(time.time(), 3), "level": level, "message": message, **fields}
    with contextlib.suppress(BrokenPipeError):  # A server without a reader has to go on.
        print(json.dumps(entry, default=str), file=sys.stdout, flush=True)


def token_of(path: str) -> str:
    """Returns the query parameter `token` of a request path."""
    return parse_qs(urlsplit(path).query).get("token", [""])[0]


class _Http:
    """Requests to the service, each on a connection of its own.

    Thus a cancelled call closes its connection, and the service drops the slots of a waiting find at once.
    """

    def __init__(self, api_url: str, token: str) -> None:
        url = urlsplit(api_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"the address {api_url!r} must begin with http:// or https://")
        self._host, self._netloc, self._path = url.hostname, url.netloc, url.path.rstrip("/")
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._port = url.port or (443 if self._tls else 80)
        self._token = token

    async def call(
        self, method: str, path: str, body: Any, attempt_s: float, total_s: float
    ) -> Any:
        """Repeats a request under one idempotency key until its outcome is known."""
        key, pauses, deadline_s = str(uuid.uuid4()), _pauses(), time.monotonic() + total_s
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.001)
            try:
                return await self.attempt(method, path, body, key, min(attempt_s, left_s))
            except HostingError as error:
                pause_s = max(next(pauses), error.retry_after_s)
                if not error.is_temporary or time.monotonic() + pause_s >= deadline_s:
                    raise
            await asyncio.sleep(pause_s)

    async def attempt(self, method: str, path: str, body: Any, key: str, timeout_s: float) -> Any:
        """Sends one request and returns the JSON of its response."""
        content = b"" if body is None else body
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        try:
            raw = await _within(self._exchange(self._head(method, path, content, key)), timeout_s)
            if raw is None:
                raise HostingError("NO_RESPONSE", 0, f"no response within {timeout_s:.0f} s")
            response = http.client.HTTPResponse(_Received(raw), method=method)  # type: ignore[arg-type]
            response.begin()
            answer = _json(response.read(), response.status == 200)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise HostingError("NO_RESPONSE", 0, f"no valid response: {error!r}") from error
        if response.status == 200:
            return answer
        problem = answer if isinstance(answer, dict) else {}
        code, detail = str(problem.get("code", "UNKNOWN")), str(problem.get("detail", ""))
        failure = HostingError(code, response.status, detail, problem)
        retry_after = response.getheader("retry-after", "")
        failure.retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0
        raise failure

    def _head(self, method: str, path: str, content: bytes, key: str) -> bytes:
        headers = {
            "Host": self._netloc.rpartition("@")[2],
            "Authorization": f"Bearer {self._token}",
            "Connection": "close",
        }
        if method != "GET":
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(content))
            headers["Idempotency-Key"] = key
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {self._path}/matchmaker/{path} HTTP/1.1\r\n{lines}\r\n".encode() + content

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.transport.abort()


class _Received:
    """Bytes that `http.client` reads as if they came from a socket."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


async def _within(coroutine: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
    """Returns the result, or None after the timeout.

    Unlike this function, `asyncio.wait_for` can lose a cancellation before Python 3.12.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait({task}, timeout=max(timeout_s, 0.0))
        return task.result() if task.done() else None
    finally:
        task.cancel()


def _json(content: bytes, is_needed: bool) -> Any:
    """Returns the value of a body. A proxy in front of the service can answer without JSON."""
    try:
        return json.loads(content or b"null")
    except ValueError:
        if is_needed:
            raise
        return None


def _pauses() -> Iterator[float]:
    """Yields growing pauses with jitter, so that clients do not retry at the same instant."""
    pause_s = PAUSE_FIRST_S
    while True:
        yield pause_s * random.uniform(0.5, 1.0)
        pause_s = min(pause_s * 2, PAUSE_LONGEST_S)


def _port(entry: Mapping[str, Any]) -> Port:
    limits = entry.get("port_range")
    port_range = (limits["min"], limits["max"]) if limits else None
    return Port(entry["hostname"], entry.get("port"), bool(entry.get("is_tls")), port_range)


def _lobby(entry: Mapping[str, Any]) -> Lobby:
    return Lobby(
        entry["lobby_id"],
        entry["game_mode_id"],
        entry["region_id"],
        entry["total_player_count"],
        entry["max_players_normal"],
        entry["max_players_direct"],
        entry["max_players_party"],
        entry.get("state"),
    )
