"""The service under measurement: a `pyservice serve --role data` of our own on the service's core,
its feed, its lobbies, and fresh player tokens. Every limit that would get in the way is raised by a
setting; everything else is as it is by default.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import random
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from bench.machine import SERVER_CORE, cpu_seconds, on_core, python
from bench.results import WrongAnswer

GAME: Final = "bench"
MODE: Final = "hall"
PARTY: Final = 64
"""Places that one call reserves at most."""
_START_TIMEOUT_S: Final = 60.0
_IDLE_S: Final = 5.0
"""A connection that was idle for longer is not used again: the service may be closing it."""
_SETTINGS: Final = """
player_limit_max = 65535
[rate_limits]
client = {per_second = 0, burst = 1}
operator = {per_second = 0, burst = 1}
"""


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace of the feed and the back end's token for it."""

    name: str
    environment_token: str


@dataclass(frozen=True, slots=True)
class Lobby:
    """An attached lobby that is ready."""

    namespace: Namespace
    lobby_id: str
    lobby_token: str


@dataclass
class Service:
    """A running service. Blocking calls: nothing here is measured."""

    folder: Path
    namespaces: Sequence[Namespace]
    process: subprocess.Popen[bytes]
    addresses: Mapping[str, str]
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)
    _used_s: float = 0.0

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def call(self, method: str, path: str, token: str, body: object = None) -> Any:
        """One request that must succeed."""
        now_s = time.monotonic()
        if self._connection is None or now_s - self._used_s > _IDLE_S:
            self._connection = http.client.HTTPConnection(self.addresses["http"], timeout=60)
        self._used_s = now_s
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        sent = json.dumps(body) if body is not None else b""
        try:
            self._connection.request(method, path, sent, headers)
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            log = (self.folder / "service.log").read_text(errors="replace")[-2_000:]
            ended = self.process.poll()
            raise WrongAnswer(f"{method} {path}: {error!r}, exit {ended}, log:\n{log}") from error
        if response.status != 200:
            raise WrongAnswer(f"{method} {path}: {response.status} {text.decode(errors='replace')}")
        return json.loads(text)

    def attach(self, namespace: Namespace, places: int = 0) -> Lobby:
        """A ready lobby; with `places` it is checked that so many fit."""
        path = f"/cloud/games/{GAME}/namespaces/{namespace.name}/lobbies/attach"
        body = {"game_mode": MODE, "ports": {"game": {"address": "127.0.0.1", "port": 7777}}}
        made = self.call("POST", path, namespace.environment_token, body)
        lobby = Lobby(namespace, made["lobby_id"], made["lobby_token"])
        self.call("POST", "/matchmaker/lobbies/ready", lobby.lobby_token, {})
        return lobby

    def detach(self, lobby: Lobby) -> None:
        """Ends a lobby with all its players."""
        path = f"/cloud/games/{GAME}/matchmaker/lobbies/{lobby.lobby_id}"
        self.call("DELETE", path, lobby.namespace.environment_token)

    def reserve(self, lobby: Lobby, places: int) -> list[str]:
        """Fresh player tokens, a party at a time."""
        tokens: list[str] = []
        while len(tokens) < places:
            size = min(PARTY, places - len(tokens))
            body = {"lobby_id": lobby.lobby_id, "party_size": size}
            path = "/matchmaker/lobbies/join"
            answer = self.call("POST", path, lobby.namespace.environment_token, body)
            tokens += [player["token"] for player in answer.get("players") or [answer["player"]]]
        return tokens

    def connected_players(self, namespace: Namespace) -> int:
        """As statistics has it."""
        path = "/matchmaker/players/statistics"
        return int(self.call("GET", path, namespace.environment_token)["player_count"])

    def scrape(self) -> tuple[float, bytes]:
        """One scrape of the metrics on a connection of its own: seconds and text."""
        connection = http.client.HTTPConnection(self.addresses["metrics"], timeout=60)
        began = time.perf_counter()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
        took_s = time.perf_counter() - began
        connection.close()
        return took_s, text

    def metric(self, name: str) -> float:
        """Sum over all series of a metric."""
        lines = self.scrape()[1].decode().splitlines()
        values = [
            line.rsplit(" ", 1)[1] for line in lines if line.split("{")[0].split(" ")[0] == name
        ]
        return sum(map(float, values))

    def cpu_seconds(self) -> float:
        """CPU time so far, threads included."""
        return cpu_seconds(self.pid)


@contextlib.contextmanager
def running(folder: Path, *, namespaces: int = 1, places: int = 1_024) -> Iterator[Service]:
    """A service with so many namespaces, whose lobbies have so many places. Ends with the block."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = [
        Namespace(f"n{number}", f"env_{secrets.token_urlsafe(32)}") for number in range(namespaces)
    ]
    configurations = [_configuration(namespace, places) for namespace in made]
    (folder / "feed.json").write_text(json.dumps({"namespaces": configurations}))
    (folder / "settings.toml").write_text(_SETTINGS)
    ready = folder / "ready.json"
    command = python(
        *("-m", "pyservice", "serve", "--role", "data", "--config", str(folder / "settings.toml")),
        *("--data-dir", str(folder / "data"), "--feed", str(folder / "feed.json")),
        *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
        *("--ready-file", str(ready)),
    )
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            preexec_fn=on_core(SERVER_CORE),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(ready, process, folder / "service.log")
        yield Service(folder, made, process, json.loads(ready.read_text()))
    finally:
        end(process)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(ready: Path, process: subprocess.Popen[bytes], log: Path | None = None) -> None:
    """Returns when a process has written that it is ready."""
    end_s = time.monotonic() + _START_TIMEOUT_S
    while not (ready.exists() and ready.read_text()):
        if process.poll() is not None or time.monotonic() > end_s:
            said = log.read_text(errors="replace")[-2_000:] if log else ""
            raise WrongAnswer(f"{process.args!r} did not start:\n{said}")
        time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL for who does not listen."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _configuration(namespace: Namespace, places: int) -> dict[str, Any]:
    chance = random.Random(namespace.name)

    def new_id() -> str:
        return str(UUID(int=chance.getrandbits(128), version=4))

    game_id = str(UUID(int=random.Random(GAME).getrandbits(128), version=4))
    mode = {
        "max_players": places,
        "player_token_ttl": 3_600_000,
        "heartbeat_timeout": 3_600_000,
        "docker": {"ports": {"game": {"protocol": "tcp"}}},
    }
    version_id = new_id()
    sha256 = base64.b64encode(hashlib.sha256(namespace.environment_token.encode()).digest())
    return {
        "namespace_id": new_id(),
        "revision": 1,
        "game": {"game_id": game_id, "name_id": GAME, "display_name": "Bench"},
        "name_id": namespace.name,
        "display_name": namespace.name,
        "current_version_id": version_id,
        "versions": [
            {
                "version_id": version_id,
                "display_name": "0.0.1",
                "matchmaker": {"game_modes": {MODE: mode}},
            }
        ],
        "matchmaker": {"lobby_count_max": 100_000, "max_players": 4_294_967_295},
        "environment_tokens": [{"token_id": new_id(), "sha256": sha256.decode()}],
    }
