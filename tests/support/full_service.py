"""Real `pyservice serve` with both planes, on SQLite or PostgreSQL, and clients that call
operations by slug.

The gRPC client encodes its messages from the same JSON as the HTTP client, so one test can use
both transports.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

import grpc
import httpx
import orjson
from google.protobuf.message import Message

from pyservice.auth import keyring
from pyservice.backup.restore import without_journal
from pyservice.data_formats import CONTROL_KEYS, FILE
from pyservice.durable_files import write_file
from pyservice.edge.http_json_codec import decoder, encoder
from pyservice.rpc.error_status import read_error
from pyservice.schema.methods import METHODS, Method
from pyservice.settings.sections import RateLimits
from tests.support.leftover_processes import end_leftovers
from tests.support.loopback import FREE_PORT
from tests.support.service_process import (
    START_TIMEOUT_S,
    clean_environment,
    set_flags,
    wait_ready_file,
)
from tests.support.waiting import eventually as eventually

STOP_TIMEOUT_S: Final = 30.0
BY_SLUG: Final[dict[str, Method]] = {method.slug: method for method in METHODS.values()}
UNLIMITED: Final = {"per_second": 0, "burst": 1}
SHARED_QUOTAS: Final = {
    **dict.fromkeys(("groups", "games", "namespaces", "versions", "cloud_tokens"), 100_000),
    **dict.fromkeys(("lobbies", "servers", "builds", "sites", "pictures"), 100_000),
    **dict.fromkeys(("server_cpu_millicores", "server_memory_mb"), 1 << 40),
    **dict.fromkeys(("build_bytes", "site_bytes", "version_bytes", "picture_bytes"), 1 << 50),
    "configuration_bytes": 1 << 35,
    "domains": 10_000,
    "namespace_tokens": 100_000,
}
"""Quotas for a service that all tests of a session share, with one group for most of them."""


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    code: str
    body: Any
    errors: tuple[tuple[str, ...], ...] = ()
    detail: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


class HttpClient:
    name = "http"

    def __init__(self, address: str) -> None:
        # Each request examines all idle connections.
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=4)
        url = f"http://{address}"
        self._client = httpx.AsyncClient(base_url=url, timeout=60.0, verify=False, limits=limits)

    async def call(
        self,
        slug: str,
        fields: Mapping[str, Any] | None = None,
        *,
        token: str | None = None,
        key: str | None = None,
        origin: str | None = None,
        traceparent: str | None = None,
    ) -> ServiceResponse:
        method = BY_SLUG[slug]
        rest = dict(fields or {})
        path = method.template
        for name in method.path_fields:
            path = path.replace(f"{{{name}}}", quote(str(rest.pop(name)), safe=""))
        content = None
        if method.body_field == "*":
            content = json.dumps(rest).encode()
        elif method.body_field:
            content = json.dumps(rest[method.body_field]).encode()
        elif rest:
            path += "?" + urlencode({name: _text(value) for name, value in rest.items()})
        optional_headers = {"origin": origin, "traceparent": traceparent}
        headers = {name: value for name, value in optional_headers.items() if value is not None}
        answer = await self.request(
            method.http_method, path, content, token=token, key=key, headers=headers
        )
        return _answer(answer)

    async def request(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        token: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        request_headers = dict(headers or {})
        if token is not None:
            request_headers["authorization"] = f"Bearer {token}"
        if key is not None:
            request_headers["idempotency-key"] = key
        return await self._client.request(method, path, content=content, headers=request_headers)

    async def close(self) -> None:
        await self._client.aclose()


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _answer(answer: httpx.Response) -> ServiceResponse:
    if answer.headers["content-type"].startswith("text/plain"):
        return ServiceResponse("OK", {"text": answer.text}, headers=answer.headers)
    body: Any = answer.json()
    if answer.status_code == 200:
        return ServiceResponse("OK", body, headers=answer.headers)
    problems = tuple(tuple(one["path"]) for one in body.get("errors", ()))
    return ServiceResponse(
        body["code"], body, problems, body["detail"], answer.headers, body.get("metadata", {})
    )


class GrpcClient:
    name = "grpc"

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(
            address, options=(("grpc.max_receive_message_length", -1),)
        )

    async def call(
        self,
        slug: str,
        fields: Mapping[str, Any] | None = None,
        *,
        token: str | None = None,
        key: str | None = None,
        origin: str | None = None,
        traceparent: str | None = None,
    ) -> ServiceResponse:
        method = BY_SLUG[slug]
        metadata: list[tuple[str, str]] = []
        if token is not None:
            metadata.append(("authorization", f"Bearer {token}"))
        if key is not None:
            metadata.append(("idempotency-key", key))
        if origin is not None:
            metadata.append(("origin", origin))
        if traceparent is not None:
            metadata.append(("traceparent", traceparent))
        call = self._channel.unary_unary(
            method.grpc_path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            message = await call(_message(method, fields or {}), metadata=metadata, timeout=60)
        except grpc.aio.AioRpcError as failure:
            error = read_error(failure)
            if error is None:
                raise
            paths = tuple(tuple(problem.path) for problem in error.errors)
            return ServiceResponse(error.code, None, paths, error.detail, metadata=error.metadata)
        return ServiceResponse("OK", orjson.loads(encoder(method)(message)))

    async def close(self) -> None:
        await self._channel.close()


def _message(method: Method, fields: Mapping[str, Any]) -> Message:
    rest = dict(fields)
    path = {name: str(rest.pop(name)) for name in method.path_fields}
    body, query = b"", b""
    if method.body_field == "*":
        body = json.dumps(rest).encode()
    elif method.body_field:
        body = json.dumps(rest[method.body_field]).encode()
    else:
        query = urlencode({name: _text(value) for name, value in rest.items()}).encode()
    message, unread = decoder(method)(body, query, path)
    assert not unread.in_body, unread
    assert not unread.in_query, unread
    return message


ServiceClient = HttpClient | GrpcClient


class FullService:
    """Data directory, and between `start` and `stop` the processes that serve it.

    Give `folder` a short name: the path of a Unix socket in it has at most 107 bytes.
    """

    interpreter: Sequence[str] = (sys.executable,)
    """Command that runs Python, with another user if a test needs it."""

    def __init__(self, folder: Path, database_url: str | None = None, **settings: Any) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.ready_file = folder / "ready.json"
        self.settings = {
            "rate_limits": dict.fromkeys(RateLimits.model_fields, UNLIMITED),
            "journal": {"segment_bytes": 1 << 20},
            "quotas": SHARED_QUOTAS,
            "data_plane_configuration_bytes": 1 << 53,
            **settings,
        }
        self.database_url = database_url
        self.ready: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts the service and does not wait. A restart uses the same ports."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        flags = [
            f"--{name}={self.ready.get(name) or FREE_PORT}"
            for name in ("http", "grpc", "cdn", "metrics")
        ]
        environment = clean_environment()
        if self.database_url is not None:
            environment["PYSERVICE_DATABASE_URL"] = self.database_url
        command = [
            *(*self.interpreter, "-m", "pyservice", "serve", "--data-dir", str(self.data_dir)),
            *("--ready-file", str(self.ready_file), *flags, *set_flags(self.settings), *words),
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self.process

    def start(self, *words: str) -> FullService:
        self.ready = wait_ready_file(self.spawn(*words), self.ready_file, self.log)
        return self

    def start_again(self) -> None:
        """Starts the service after a kill. Waits for the ports of processes that are about to end."""
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.start()
            except AssertionError:
                output = self.log().lower()
                is_taken = "already in use" in output or "failed to bind" in output
                if not is_taken or time.monotonic() > end:
                    raise
            else:
                return

    def take_over(self) -> None:
        """Lets the stopped service accept a database that lacks its records."""
        command = [*self.interpreter, "-m", "pyservice", "takeover"]
        url = {} if self.database_url is None else {"PYSERVICE_DATABASE_URL": self.database_url}
        environment = clean_environment(**url)
        subprocess.run([*command, "--data-dir", str(self.data_dir)], env=environment, check=True)

    def take_keys_of(self, other: FullService) -> None:
        """Makes the keys of the other service those of this one, as a restore of its backup does."""
        (self.data_dir / "control").mkdir(parents=True, exist_ok=True)
        for name in (CONTROL_KEYS, FILE):
            shutil.copy(other.data_dir / name, self.data_dir / name)
        ring = without_journal(keyring.load(other.data_dir))
        write_file(self.data_dir / keyring.FILE, keyring.text(ring))

    def control_pid(self) -> int:
        return int((self.data_dir / "control" / "LOCK").read_text().split()[0])

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)
        end_leftovers(self.data_dir)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text()[-8000:] if path.exists() else ""

    @property
    def group_id(self) -> str:
        return str(self.ready["owner_group_id"])

    @property
    def cloud_token(self) -> str:
        return Path(self.ready["cloud_token_file"]).read_text().strip()

    def client(self, transport: str) -> ServiceClient:
        return (
            HttpClient(self.ready["http"])
            if transport == "http"
            else GrpcClient(self.ready["grpc"])
        )

    @contextlib.asynccontextmanager
    async def open_client(self, transport: str) -> AsyncIterator[ServiceClient]:
        """Opens a client and closes it after the test, so that a failed test leaves no open
        socket.
        """
        client = self.client(transport)
        try:
            yield client
        finally:
            await client.close()


Started = TypeVar("Started", bound=FullService)


@contextlib.contextmanager
def running(full_service: Started, *words: str) -> Iterator[Started]:
    try:
        full_service.start(*words)
        yield full_service
    finally:
        full_service.close()


ARENA_MODES: Final[dict[str, Any]] = {
    "arena": {"max_players": 4, "docker": {"ports": {"game": {"protocol": "http"}}}}
}


FED_CREATIONS: Final = frozenset(
    {"create_service_token", "create_public_token", "create_development_token"}
)
"""Each call creates one more token unless it repeats an idempotency key."""
REPEATED_S: Final = 60.0
HARMLESS: Final = "Repeating the request is harmless"
AGAIN: Final = (
    *(HARMLESS, "; try again", "or try again"),
    "Repeat the request with the same Idempotency-Key",
)
"""Parts of a 503 detail that allow repetition of the request."""


def may_be_repeated(detail: str | None) -> bool:
    return any(one in (detail or "") for one in AGAIN)


class Developer:
    """Client with a cloud token. Methods assert success and return the response body."""

    def __init__(
        self, full_service: FullService, client: ServiceClient, token: str | None = None
    ) -> None:
        self.full_service = full_service
        self.client = client
        self.token = token or full_service.cloud_token

    async def call(self, slug: str, key: str | None = None, **fields: Any) -> ServiceResponse:
        return await self.client.call(slug, fields, token=self.token, key=key)

    async def good(self, slug: str, key: str | None = None, **fields: Any) -> Any:
        answer = await self.answered(slug, key, fields)
        assert answer.code == "OK", answer
        return answer.body

    async def code(self, slug: str, key: str | None = None, **fields: Any) -> str:
        answer = await self.answered(slug, key, fields)
        assert answer.code != "OK", answer
        return answer.code

    async def answered(
        self, slug: str, key: str | None, fields: Mapping[str, Any], token: str | None = None
    ) -> ServiceResponse:
        """Repeats the call while its 503 allows a repetition. On a busy machine a plane may be
        slower than its limit of one second.
        """
        if slug in FED_CREATIONS or slug.startswith("delete_"):
            key = key or uuid4().hex
        deadline = time.monotonic() + REPEATED_S
        while True:
            answer = await self.client.call(slug, fields, token=token or self.token, key=key)
            if not may_be_repeated(answer.detail) or time.monotonic() > deadline:
                return answer

    async def game(self, **fields: Any) -> str:
        request = {
            "developer_group_id": self.full_service.group_id,
            "display_name": "Game",
            "name_id": f"g{uuid4().hex[:20]}",
            **fields,
        }
        return str((await self.good("create_game", **request))["game_id"])

    async def version(self, game_id: str, config: Any = None, name: str = "1.0.0") -> str:
        """Creates a version and returns its id. The default configuration has the game mode
        `arena`.
        """
        if config is None:
            config = {"matchmaker": {"game_modes": ARENA_MODES}}
        response = await self.good(
            "create_version", game_id=game_id, display_name=name, config=config
        )
        return str(response["version_id"])

    async def arena(self, **fields: Any) -> str:
        """Creates a game with the namespace `prod` and the game mode `arena`. Returns the id of
        the game.
        """
        game_id = await self.game(**fields)
        version_id = await self.version(game_id)
        await self.good("set_version", game_id=game_id, namespace_id="prod", version_id=version_id)
        return game_id

    async def public_token(self, game_id: str, namespace_id: str = "prod") -> str:
        response = await self.good(
            "create_public_token", game_id=game_id, namespace_id=namespace_id
        )
        return str(response["token"])

    async def service_token(self, game_id: str, environment_id: str = "prod") -> str:
        response = await self.good(
            "create_service_token", game_id=game_id, environment_id=environment_id
        )
        return str(response["token"])

    async def lobby(self, game_id: str, service_token: str, mode: str = "arena") -> Any:
        """Attaches a lobby that is ready. Returns `lobby_id` and `lobby_token`."""
        fields = {
            "game_id": game_id,
            "namespace_id": "prod",
            "game_mode": mode,
            "ports": {"game": {"address": "127.0.0.1", "port": 4000}},
        }
        answer = await self.answered("attach", None, fields, service_token)
        assert answer.code == "OK", answer
        ready = await self.client.call("ready", {}, token=answer.body["lobby_token"])
        assert ready.code == "OK", ready
        return answer.body
