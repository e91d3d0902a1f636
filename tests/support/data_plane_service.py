"""Real `pyservice serve --role data` process on free ports, with a feed file in a folder of its
own.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx
import pytest

from pyservice.auth import keyring
from pyservice.settings.sections import RateLimits
from tests.support.leftover_processes import end_leftovers
from tests.support.loopback import FREE_PORT
from tests.support.namespace_configurations import NAMESPACE_ID, VERSION_ID, document, version
from tests.support.service_process import clean_environment, set_flags, wait_ready_file
from tests.support.waiting import until

if TYPE_CHECKING:
    # Tests of pure Python code run without the native module.
    from pyservice.dataplane.engine import Engine

__all__ = ["NAMESPACE_ID", "VERSION_ID", "Service", "document", "version"]

_STOP_S: Final = 30.0
GAME: Final = "arena"
MODES: Final[dict[str, dict[str, Any]]] = {
    "duel": {"max_players": 2, "docker": {"ports": {"game": {"protocol": "tcp"}}}},
    "party": {
        "max_players": 8,
        "taggable": True,
        "player_token_ttl": 120_000,
        "docker": {"ports": {"game": {"protocol": "https"}}},
    },
}
UNLIMITED: Final = {
    "rate_limits": {key: {"per_second": 0, "burst": 1} for key in RateLimits.model_fields}
}
SMALL_JOURNAL: Final = {"journal": {"segment_bytes": 1 << 20}}
"""The default segments take 192 MiB of disk for each data directory."""


class Service:
    """Data directory, and between `start` and `stop` the process that serves it."""

    role: tuple[str, ...] = ("--role", "data")
    listeners: tuple[str, ...] = ("http", "grpc", "metrics")
    command_prefix: tuple[str, ...] = ()
    passed: tuple[int, ...] = ()

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any] | None = None,
        modes: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Writes `settings` to the TOML file. `fields` replace fields of the namespace in the
        feed. Give `folder` a short name: the path of a Unix socket in it has at most 107 bytes.
        """
        self.folder = folder
        self.data_dir = folder / "data"
        self.feed_file = folder / "feed.json"
        self.ready_file = folder / "ready.json"
        self.service_token = f"env_{secrets.token_urlsafe(32)}"
        self.settings = {**UNLIMITED, **SMALL_JOURNAL, **(settings or {})}
        self.addresses: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        self.client = httpx.Client(timeout=30)
        hashed = hashlib.sha256(self.service_token.encode()).hexdigest()
        self.feed = document(
            **{
                "versions": [version(**(MODES if modes is None else modes))],
                "environment_tokens": [{"token_id": NAMESPACE_ID, "sha256": hashed}],
                "access": {"domains": ["play.example.com"]},
                **fields,
            }
        )
        self.write_feed()

    def write_feed(self) -> None:
        self.feed_file.write_text(json.dumps({"namespaces": [self.feed]}))

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        """Starts the process and does not wait. A restart uses the same ports."""
        flags = [f"--{name}={self.addresses.get(name, FREE_PORT)}" for name in self.listeners]
        self.ready_file.unlink(missing_ok=True)
        command = [
            *(*self.command_prefix, sys.executable, "-m", "pyservice", "serve", *self.role),
            *("--data-dir", str(self.data_dir), "--feed", str(self.feed_file)),
            *("--ready-file", str(self.ready_file), *flags, *set_flags(self.settings), *words),
        ]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                command, env=clean_environment(), stderr=log, text=True, pass_fds=self.passed
            )
        return self.process

    def start(self, *words: str) -> Service:
        ready = wait_ready_file(self.spawn(*words), self.ready_file, self.log)
        self.addresses = {name: ready[name] for name in self.listeners if ready.get(name)}
        return self

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(_STOP_S)

    def close(self) -> None:
        self.client.close()
        self.kill()
        end_leftovers(self.data_dir)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text()[-6000:] if path.exists() else ""

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pyservice", *words, "--data-dir", str(self.data_dir)],
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def ask(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> httpx.Response:
        headers_sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            headers_sent["authorization"] = f"Bearer {token}"
        url = f"http://{self.addresses['http']}{path}"
        content = None if body is None else json.dumps(body)
        return self.client.request(method, url, content=content, headers=headers_sent)

    def good(self, *request: Any, **headers: str) -> Any:
        answer = self.ask(*request, **headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def code(self, *request: Any, **headers: str) -> str:
        answer = self.ask(*request, **headers)
        assert answer.status_code >= 400, answer.text
        code: str = answer.json()["code"]
        return code

    def probe(self, path: str) -> httpx.Response:
        return self.client.get(f"http://{self.addresses['metrics']}{path}")

    def wait_ready(self) -> None:
        """A late event loop keeps a busy machine not ready for ten seconds."""
        until(lambda: self.probe("/readyz").status_code == 200)

    def public_token(self) -> str:
        result = self.command("token", "create", "--kind", "public", "--namespace", f"{GAME}/prod")
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def attach(
        self, mode: str = "duel", *, is_ready: bool = True, **fields: Any
    ) -> tuple[str, str]:
        body = {
            "game_mode": mode,
            "ports": {"game": {"address": "127.0.0.1", "port": 4000}},
            **fields,
        }
        path = f"/cloud/games/{GAME}/namespaces/prod/lobbies/attach"
        lobby = self.good("POST", path, body, self.service_token)
        if is_ready:
            self.good("POST", "/matchmaker/lobbies/ready", {}, lobby["lobby_token"])
        return lobby["lobby_id"], lobby["lobby_token"]

    def find(self, token: str, mode: str = "duel", **fields: Any) -> httpx.Response:
        return self.ask("POST", "/matchmaker/lobbies/find", {"game_modes": [mode], **fields}, token)

    def connected(self, lobby_token: str, player_token: str, **headers: str) -> httpx.Response:
        body = {"player_token": player_token}
        return self.ask("POST", "/matchmaker/players/connected", body, lobby_token, **headers)


class MakeService(Protocol):
    def __call__(self, **options: Any) -> Service: ...


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[MakeService]:
    services: list[Service] = []

    def make(**options: Any) -> Service:
        folder = tmp_path / f"s{len(services)}"
        folder.mkdir()
        services.append(Service(folder, **options))
        return services[-1]

    yield make
    for service in services:
        service.close()


@pytest.fixture
def service(make_service: MakeService, request: pytest.FixtureRequest) -> Service:
    return make_service(**getattr(request, "param", {})).start()


@asynccontextmanager
async def running_engine(folder: Path, **limits: Any) -> AsyncIterator[Engine]:
    """Runs an engine with its journal and keys in a folder, which may have those of an earlier one."""
    from pyservice.dataplane.engine import EngineLimits, open_engine

    for name in ("journal", "keys"):
        (folder / name).mkdir(exist_ok=True)
    ring = keyring.load_or_create(folder / "keys")
    limits = {"segment_bytes": 1 << 20, **limits}
    engine = open_engine(folder / "journal", ring, EngineLimits(**limits))
    engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with running_engine(tmp_path, find_wait_ms=2_000) as engine:
        yield engine


def attach_lobby(engine: Engine, namespace: bytes, version: bytes, **fields: Any) -> bytes:
    """Attaches a lobby without waiting for the disk. Returns its id."""
    lobby, _, _ = engine.attach_lobby(
        namespace,
        version,
        "duel",
        "north",
        [],
        max_players=(2, 2, 2),
        player_token_ttl_ms=60_000,
        heartbeat_timeout_ms=30_000,
        heartbeat_grace_ms=10_000,
        is_join_enabled=True,
        create_ts_ms=0,
        lobby_count_max=10_000,
        **fields,
    )
    return lobby
