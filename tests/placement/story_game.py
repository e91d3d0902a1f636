"""A published game with lobbies and servers that behave as a story says, and its public API.

Each game mode has the name of a behaviour. A lobby or server is reached as players reach it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import httpx

from tests.support import game_programs
from tests.support.full_service import AGAIN
from tests.support.game_placement import HUGE_TIER, TIER, GamePlacement
from tests.support.waiting import PATIENCE_S

GAME: Final = "stories"
SCRATCH_MB: Final = 16
MODES: Final[Mapping[str, str]] = {
    "plain": "",
    "talking": "out:hello err:oops",
    "deleted": "",
    "leaving": "",
    "failing": "",
    "filling": "",
    "adopted": "",
    "ending": "",
    "stopping": "catch-sigterm",
    "ignoring": "ignore-sigterm",
    "mute": "mute",
    "exits": "exit:3",
    "killed": "signal:10",
    "incomplete": "import:no_such_module",
    "deaf": "deaf",
    "greedy": "allocate:256",
    "huge": "",
    "absent": "",
}
"""Words for the programs of the game modes, as `tests/programs/story.py` describes it."""
ADAPTERS: Final[Mapping[str, Mapping[str, str]]] = {
    "by-port": {"ready": "port"},
    "by-log": {"ready": "log", "log_match": "^ready by itself$"},
    "by-query": {"ready": "query", "query": "http"},
    "counted": {"ready": "query", "query": "http", "players": "query"},
    "adopted-count": {"ready": "log", "log_match": "^ready", "query": "http", "players": "query"},
}
"""Adapters of the game modes with servers that make no calls."""
NEVER_EXITED: Final = 0
"""Exit code in the record of a lobby without one. In the record of a server, it is absent."""
STARTS_S: Final = 60.0
"""Longest start or end of a game server on a busy machine."""
NO_FILES: Final[Mapping[str, bytes]] = {}
_POLL_S: Final = 0.1
_ENDED: Final = ("destroyed", "failed")
_OVERLOADED: Final = "OVERLOADED"
Found = TypeVar("Found")


class Reply(NamedTuple):
    code: str
    body: Any


class End(NamedTuple):
    """How a lobby or server ended."""

    state: str
    failure: str = ""
    exit_code: int | None = None
    sentence: str = ""
    """Sentence of the record, or a pattern for it."""


class Player:
    """A TCP connection to a port of a lobby or server."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def echo(self, content: bytes) -> bytes:
        """Sends something, and returns the reply. Empty: the connection was closed."""
        try:
            self._connection.sendall(content)
            return self._connection.recv(65_536)
        except ConnectionError:
            return b""

    def order(self, words: str) -> None:
        """Lets the program obey, and does not wait for it."""
        self._connection.sendall(f"do {words}".encode())

    def wait_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self._connection.recv(65_536):
                pass


def until(condition: Callable[[], Found], timeout_s: float = STARTS_S) -> Found:
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, "the condition was not met"
        time.sleep(_POLL_S)
    return value


class Client:
    """Calls of one token, repeated where the service allows it."""

    def __init__(self, url: str, token: str = "") -> None:
        self.token = token
        self._http = httpx.Client(base_url=url, timeout=2 * PATIENCE_S)

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Reply:
        key, end = uuid4().hex, time.monotonic() + STARTS_S
        while True:
            headers = {"authorization": f"Bearer {self.token}"}
            if method != "GET":
                headers["idempotency-key"] = key
            try:
                response = self._http.request(
                    method, path, json=body, params=query, headers=headers
                )
            except httpx.TransportError:
                # The service is being started again.
                assert time.monotonic() < end, f"no answer to {method} {path}"
            else:
                reply = _reply(response)
                if not _is_temporary(reply) or time.monotonic() > end:
                    return reply
            time.sleep(_POLL_S)

    def good(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        reply = self.call(method, path, body, **query)
        assert reply.code == "OK", (method, path, reply)
        return reply.body


def _reply(response: httpx.Response) -> Reply:
    body = response.json()
    return Reply("OK" if response.status_code == httpx.codes.OK else body["code"], body)


def _is_temporary(reply: Reply) -> bool:
    detail = "" if reply.code == "OK" else reply.body.get("detail") or ""
    return reply.code == _OVERLOADED or any(words in detail for words in AGAIN)


class StoryGame:
    def __init__(self, placement: GamePlacement) -> None:
        self._cloud = Client(placement.url, placement.owner_token)
        self._players = Client(placement.url)
        self._path = f"/cloud/games/{GAME}"
        self._environment = f"/games/{GAME}/environments/prod"

    def close(self) -> None:
        self._cloud.close()
        self._players.close()

    # Lobbies.

    def try_find(self, mode: str) -> Reply:
        body = {"game_modes": [mode]}
        return self._players.call("POST", "/matchmaker/lobbies/find", body)

    def find(self, mode: str) -> Any:
        reply = self.try_find(mode)
        assert reply.code == "OK", reply
        return reply.body

    def failed_find(self, mode: str) -> tuple[str, str]:
        """Returns the id of the lobby with which find fails, and the kind of its problem."""
        reply = self.try_find(mode)
        assert reply.code == "MATCHMAKER_LOBBY_START_FAILED", reply
        metadata = reply.body["metadata"]
        return metadata["lobby_id"], metadata["kind"]

    def join(self, lobby_id: str) -> Reply:
        return self._players.call("POST", "/matchmaker/lobbies/join", {"lobby_id": lobby_id})

    def lobby(self, lobby_id: str) -> Any:
        path = f"{self._path}/namespaces/prod/logs/lobbies/{lobby_id}"
        return self._cloud.good("GET", path)["lobby"]

    def delete_lobby(self, lobby_id: str) -> bool:
        path = f"{self._path}/matchmaker/lobbies/{lobby_id}"
        return bool(self._cloud.good("DELETE", path)["did_remove"])

    def lobby_end(self, lobby_id: str) -> End | None:
        record = self.lobby(lobby_id)
        stopped = record["status"].get("stopped")
        if stopped is None:
            return None
        return End(
            record["state"],
            record.get("failure", ""),
            stopped.get("exit_code"),
            record.get("problem", ""),
        )

    def check_lobby_end(self, lobby_id: str, expected: End, timeout_s: float = STARTS_S) -> None:
        """Waits until the record of a lobby has this end. Its log must have the same sentence."""
        end = _wait_for_end(lambda: self.lobby_end(lobby_id), expected, timeout_s)
        _check_log(self.lobby_lines(lobby_id, "service"), end)

    def lobby_lines(self, lobby_id: str, stream: str = "std_out") -> list[str]:
        path = f"{self._path}/matchmaker/lobbies/{lobby_id}/logs"
        lines: list[str] = self._cloud.good("GET", path, stream=stream)["lines"]
        return lines

    @contextlib.contextmanager
    def player(self, found: Any) -> Iterator[Player]:
        """Connects a player to the lobby that find returned."""
        port, token = found["ports"]["game"], found["player"]["token"].encode()
        address = (port["hostname"], port["port"])
        with socket.create_connection(address, STARTS_S) as connection:
            player = Player(connection)
            assert player.echo(token) == token
            yield player

    # Dynamic servers.

    def try_create(self, play: str = "", **fields: Any) -> Reply:
        environment = {"PLAY": f"any-address {play}", **fields.pop("environment", {})}
        body = {
            "datacenter": "local",
            "tags": {},
            "resources": {"cpu": 50, "memory": 64},
            "network": {"ports": {"game": {"protocol": "tcp"}}},
            "runtime": {"build": self.build_id, "environment": environment},
            **fields,
        }
        return self._cloud.call("POST", f"{self._environment}/servers", body)

    def create(self, play: str = "", **fields: Any) -> Any:
        reply = self.try_create(play, **fields)
        assert reply.code == "OK", reply
        return reply.body["server"]

    def server(self, server_id: str) -> Any:
        return self._cloud.good("GET", f"{self._environment}/servers/{server_id}")["server"]

    def running(self, play: str = "", **fields: Any) -> Any:
        """Creates a server, and returns its record when players reach it."""
        server_id = self.create(play, **fields)["id"]
        record = until(lambda: self._running(server_id))
        until(lambda: self.is_reached(record))
        return record

    def start_program(
        self, *command: str, memory_mb: int = 64, files: Mapping[str, bytes] = NO_FILES
    ) -> str:
        """Creates a server with a program of its own, and returns its id."""
        archive = game_programs.program_archive(command, files)
        build_id = game_programs.upload_build(self._cloud.good, GAME, archive)
        resources = {"cpu": 200, "memory": memory_mb}
        return str(self.create(runtime={"build": build_id}, resources=resources)["id"])

    def run_program(self, *command: str, memory_mb: int, **files: bytes) -> list[str]:
        """Runs a program that must exit with 0, and returns the lines of its standard output."""
        server_id = self.start_program(*command, memory_mb=memory_mb, files=files)
        until(lambda: self.server_end(server_id))
        end = self.server_end(server_id)
        assert end == End("destroyed", exit_code=0), (end, self.lines(server_id, "std_err"))
        return self.lines(server_id)

    def destroy(self, server_id: str, timeout_ms: int | None = None) -> None:
        query = {} if timeout_ms is None else {"override_kill_timeout": timeout_ms}
        self._cloud.good("DELETE", f"{self._environment}/servers/{server_id}", **query)

    def server_end(self, server_id: str) -> End | None:
        record = self.server(server_id)
        if record["status"] not in _ENDED:
            return None
        failure = record.get("failure", {})
        return End(
            record["status"],
            failure.get("reason", ""),
            record.get("exit_code"),
            failure.get("message") or record.get("problem", ""),
        )

    def check_server_end(self, server_id: str, expected: End, timeout_s: float = STARTS_S) -> None:
        """Waits until the record of a server has this end. Its log must have the same sentence."""
        end = _wait_for_end(lambda: self.server_end(server_id), expected, timeout_s)
        _check_log(self.lines(server_id, "service"), end)

    def log(self, server_id: str, stream: str = "std_out", **query: Any) -> Any:
        path = f"{self._environment}/servers/{server_id}/logs"
        return self._cloud.good("GET", path, stream=stream, **query)

    def lines(self, server_id: str, stream: str = "std_out") -> list[str]:
        lines: list[str] = self.log(server_id, stream)["lines"]
        return lines

    def wait_for_lines(self, server_id: str, *lines: str, stream: str = "std_out") -> None:
        """Waits until a server has written exactly these lines."""
        until(lambda: self.lines(server_id, stream) == [*lines])

    def is_reached(self, record: Any) -> bool:
        try:
            with self.connection(record) as player:
                return player.echo(b"hello") == b"hello"
        except OSError:
            return False

    def is_open(self, address: tuple[str, int]) -> bool:
        """Returns whether a public port accepts connections."""
        try:
            socket.create_connection(address, STARTS_S).close()
        except ConnectionRefusedError:
            return False
        return True

    @contextlib.contextmanager
    def connection(self, record: Any, name: str = "game") -> Iterator[Player]:
        with socket.create_connection(address_of(record, name), STARTS_S) as connection:
            yield Player(connection)

    def _running(self, server_id: str) -> Any:
        record = self.server(server_id)
        assert record["status"] not in _ENDED, record
        return record if record["status"] == "running" else None

    # The game.

    def publish(self) -> None:
        (group, *_) = self._cloud.good("GET", "/cloud/games")["groups"]
        described = {"display_name": GAME, "name_id": GAME}
        self._cloud.good(
            "POST", "/cloud/games", {"developer_group_id": group["group_id"], **described}
        )
        self.build_id = self._upload("python3", "-S", "story.py")
        absent = self._upload("no-such-program")
        modes = {name: self._mode(f"any-address guests {play}") for name, play in MODES.items()}
        for name, adapter in ADAPTERS.items():
            modes[name] = self.unaware_mode(**adapter)
        modes["absent"]["docker"]["image_id"] = absent
        modes["huge"]["tier"] = HUGE_TIER
        reply = self.try_version("1.0.0", **modes)
        assert reply.code == "OK", reply
        body = {"version_id": reply.body["version_id"]}
        self._cloud.good("PUT", f"{self._path}/namespaces/prod/version", body)
        path = f"{self._path}/namespaces/prod/tokens/public"
        self._players.token = self._cloud.good("POST", path, {})["token"]

    def try_version(self, name: str, **modes: Any) -> Reply:
        version = {"display_name": name, "config": {"matchmaker": {"game_modes": modes}}}
        return self._cloud.call("POST", f"{self._path}/versions", version)

    def unaware_mode(self, *, protocol: str = "tcp", **adapter: str) -> dict[str, Any]:
        """Returns a game mode with servers that make no calls."""
        mode = self._mode("any-address unaware")
        mode["docker"]["ports"] = {"game": {"protocol": protocol}}
        return {**mode, "adapter": adapter}

    def _upload(self, *command: str) -> str:
        story = (game_programs.FOLDER / "story.py").read_bytes()
        files = {"story.py": story}
        archive = game_programs.program_archive(command, files, scratch_mb=SCRATCH_MB)
        return game_programs.upload_build(self._cloud.good, GAME, archive)

    def _mode(self, play: str) -> dict[str, Any]:
        return {
            "tier": TIER,
            "max_players": 4,
            "docker": {
                "image_id": self.build_id,
                "env": {"PLAY": play},
                "ports": {"game": {"protocol": "tcp"}},
            },
        }


def address_of(record: Any, name: str = "game") -> tuple[str, int]:
    port = record["network"]["ports"][name]
    return port["public_hostname"], port["public_port"]


def _wait_for_end(read: Callable[[], End | None], expected: End, timeout_s: float) -> End:
    end_s = time.monotonic() + timeout_s
    while True:
        found = read()
        if found is not None and _matches(found, expected):
            return found
        # The exit code and the sentence may follow the state.
        assert time.monotonic() < end_s, f"{found} is not {expected}"
        time.sleep(_POLL_S)


def _check_log(service_lines: list[str], end: End) -> None:
    if end.sentence:
        assert service_lines[-1:] == [end.sentence], f"{service_lines} does not end with {end}"


def _matches(found: End, expected: End) -> bool:
    if found[:3] != expected[:3]:
        return False
    return re.fullmatch(expected.sentence, found.sentence) is not None
