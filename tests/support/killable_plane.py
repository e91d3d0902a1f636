"""A data plane for one test: a `pyservice serve --role data` process with its own data directory,
feed and settings.

The test can kill the process and start it again on the same ports.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import grpc

from pyservice.pb.hosting.internal.v1 import admin_pb2
from pyservice.settings.sections import RateLimits
from tests.support.data_plane_clients import PlaneGrpcClient, PlaneHttpClient
from tests.support.fault_shim import Shim
from tests.support.loopback import FREE_PORT
from tests.support.service_process import clean_environment, set_flags, wait_ready_file
from tests.support.waiting import PATIENCE_S

GAME: Final = "faults"
NAMESPACE: Final = "prod"
UNLIMITED: Final = {key: {"per_second": 0, "burst": 1} for key in RateLimits.model_fields}
DEFAULT_MODES: Final[dict[str, dict[str, Any]]] = {
    "duel": {"max_players": 8, "player_token_ttl": 5_000},
    "rented": {"max_players": 4, "player_token_ttl": 5_000},
    "large": {"max_players": 100, "player_token_ttl": 600_000},
    "single": {"max_players": 1, "player_token_ttl": 600_000},
}


def feed(
    modes: Mapping[str, Mapping[str, Any]], service_token: str, limits: Mapping[str, int]
) -> dict[str, Any]:
    version_id = str(uuid4())
    game_modes = {
        name: {
            "heartbeat_timeout": 3_600_000,
            "taggable": True,
            "docker": {"ports": {"game": {"protocol": "tcp"}}},
            **mode,
        }
        for name, mode in modes.items()
    }
    configuration = {
        "namespace_id": str(uuid4()),
        "revision": 1,
        "game": {"game_id": str(uuid4()), "name_id": GAME, "display_name": "Faults"},
        "name_id": NAMESPACE,
        "display_name": "Production",
        "current_version_id": version_id,
        "versions": [
            {
                "version_id": version_id,
                "display_name": "0.0.1",
                "matchmaker": {"game_modes": game_modes},
            }
        ],
        "matchmaker": dict(limits),
        "access": {"domains": ["play.example.com"]},
        "environment_tokens": [
            {
                "token_id": str(uuid4()),
                # ProtoJSON encodes bytes as base64.
                "sha256": base64.b64encode(_sha256(service_token)).decode(),
            }
        ],
    }
    return {"namespaces": [configuration]}


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@dataclass(eq=False)
class Plane:
    folder: Path
    shim: Shim | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    modes: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(DEFAULT_MODES))
    limits: dict[str, int] = field(
        default_factory=lambda: {"lobby_count_max": 10_000, "max_players": 4_294_967_295}
    )
    command_prefix: Sequence[str] = ()
    data_dir: Path = Path()
    addresses: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.data_dir == Path():
            self.data_dir = self.folder / "data"
        self.log = self.folder / "service.log"
        self.service_token = f"env_{secrets.token_urlsafe(32)}"
        self.feed_file = self.folder / "feed.json"
        self.feed_file.write_text(
            json.dumps(feed(self.modes, self.service_token, self.limits), indent=1)
        )
        self.settings = {
            "rate_limits": UNLIMITED,
            "http": FREE_PORT,
            "grpc": FREE_PORT,
            "metrics": FREE_PORT,
            "data_dir": str(self.data_dir),
            "feed_file": str(self.feed_file),
            "log_format": "json",
            "journal": {"segment_bytes": 1 << 20},
            **self.settings,
        }

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def commanded(self) -> Shim:
        assert self.shim is not None
        return self.shim

    def spawn(self) -> subprocess.Popen[bytes]:
        """Starts the process without waiting. A restart uses the ports of the first start."""
        self.ready_file = self.folder / "ready.json"
        self.ready_file.unlink(missing_ok=True)
        environment = clean_environment()
        if self.shim is not None:
            self.shim.begin_run()
            environment |= self.shim.environment()
        command = [
            *(*self.command_prefix, sys.executable, "-m", "pyservice", "serve", "--role", "data"),
            *("--ready-file", str(self.ready_file)),
            *set_flags({**self.settings, **self.addresses}),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self.process

    async def start(self) -> None:
        self.spawn()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        assert self.process is not None
        ready = await asyncio.to_thread(
            wait_ready_file, self.process, self.ready_file, self.log_tail
        )
        self.addresses = {name: ready[name] for name in ("http", "grpc", "metrics")}

    async def wait_ended(self, timeout_s: float = 30.0) -> int:
        assert self.process is not None
        end = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < end, f"the service still runs:\n{self.log_tail()}"
            await asyncio.sleep(0.01)
        return int(self.process.returncode)

    async def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.wait_ended()

    def process_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = await self.wait_ended()
        assert code == 0, f"exit {code}:\n{self.log_tail()}"

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=30)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def http_client(self) -> PlaneHttpClient:
        return PlaneHttpClient(self.addresses["http"])

    def grpc_client(self, channels: int = 1) -> PlaneGrpcClient:
        return PlaneGrpcClient(self.addresses["grpc"], channels)

    async def public_token(self) -> str:
        return (await self.new_public_token())[0]

    async def new_public_token(self, namespace: str = NAMESPACE) -> tuple[str, str]:
        """Returns a new token and its id."""
        kind = admin_pb2.TOKEN_KIND_PUBLIC
        request = admin_pb2.CreateTokenRequest(kind=kind, namespace=f"{GAME}/{namespace}")
        async with grpc.aio.insecure_channel(f"unix:{self.data_dir}/admin.sock") as channel:
            create: Any = channel.unary_unary(
                "/hosting.internal.v1.Admin/CreateToken",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=admin_pb2.CreateTokenResponse.FromString,
            )
            answer = await create(request, timeout=30)
            return answer.token, answer.token_id

    async def look(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(_get, f"http://{self.addresses['metrics']}{path}")

    async def metric(self, name: str, **labels: str) -> float:
        _, text = await self.look("/metrics")
        total = 0.0
        for line in text.splitlines():
            if line.split("{")[0].split(" ")[0] != name:
                continue
            if all(f'{label}="{value}"' in line for label, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    async def wait_metric(self, name: str, at_least: float, **labels: str) -> None:
        value = await self.metric(name, **labels)
        end = time.monotonic() + 30
        while value < at_least:
            assert time.monotonic() < end, f"{name} is {value}, not {at_least}"
            await asyncio.sleep(0.01)
            value = await self.metric(name, **labels)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
