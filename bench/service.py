"""Service under measurement: `pyservice serve` with both planes and default settings.

Lobbies can be large, rate limits are off and quotas are large. All processes are on the service's core. A benchmark
says where it differs. Uses SQLite, or a PostgreSQL server on the load's core.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Table, func, insert, select

from bench.http_load import Request, send_all, send_one
from bench.machine import ROOT, SERVER_CORE, cpu_seconds, loaded, on_core, python
from bench.processes import end, family, memory_kib, wait_for
from bench.results import WrongAnswer
from pyservice.control.configuration_encoding import encode, json_of
from pyservice.edge.http_json_codec import decoder
from pyservice.ids import RecordIds
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.rpc import InternalClient
from pyservice.schema.methods import METHODS
from pyservice.storage.database import Transaction, open_database
from pyservice.storage.tables import cloud_tokens, games, namespaces

Result = TypeVar("Result")

MODES: Final = {"hall": {"max_players": 4, "docker": {"ports": {"game": {"protocol": "http"}}}}}

_PLAYER_LIMIT: Final = "player_limit_max = 65535\n"
DEFAULT_LIMITS: Final = ""
NO_LIMITS: Final = """
[rate_limits]
client = {per_second = 1000000, burst = 1000000}
operator = {per_second = 1000000, burst = 1000000}
client_group = {per_second = 1000000, burst = 1000000}
operator_group = {per_second = 1000000, burst = 1000000}
address = {per_second = 1000000, burst = 1000000}
failed_authentication = {per_second = 1000000, burst = 1000000}
lobby = {per_second = 1000000, burst = 1000000}
[quotas]
games = 1_000_000
namespaces = 1_000_000
versions = 1_000_000
version_bytes = 1_000_000_000_000
configuration_bytes = 1_000_000_000_000
builds = 1_000_000
build_bytes = 1_000_000_000_000
sites = 1_000_000
site_bytes = 1_000_000_000_000
pictures = 1_000_000
picture_bytes = 1_000_000_000_000
cloud_tokens = 1_000_000
namespace_tokens = 1_000_000
domains = 1_000_000
lobbies = 1_000_000
"""
"""Most benchmarks use one group, so that its quotas must not end them."""
_BY_SLUG: Final = {method.slug: method for method in METHODS.values()}
_ROWS_AT_ONCE: Final = 2_000
_CALLERS: Final = 16
"""Number of parallel requests that prepare data over the API."""
_TAKEN_IN_S: Final = 120.0


class Service:
    def __init__(
        self, folder: Path, process: subprocess.Popen[bytes], database_url: str | None
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.process = process
        self.database_url = database_url
        self.ready: Mapping[str, Any] = json.loads((folder / "ready.json").read_text())
        self.address = str(self.ready["http"])
        self.group_id = str(self.ready["owner_group_id"])
        self.token = Path(self.ready["cloud_token_file"]).read_text().strip()
        self.ids = RecordIds()

    # Processes

    def pids(self) -> list[int]:
        return family(self.process.pid)

    def cpu_s(self) -> float:
        return sum(map(cpu_seconds, self.pids()))

    def idle_memory_kib(self) -> int:
        """Returns the sum of the processes' resident memory once the process of the sites runs too."""
        connection = http.client.HTTPConnection(str(self.ready["cdn"]), timeout=60)
        connection.request("GET", "/")
        connection.getresponse().read()
        connection.close()
        return self.memory_kib()

    def memory_kib(self) -> int:
        """Returns the sum of the processes' resident memory. Shared memory counts once per process."""
        return sum(map(memory_kib, self.pids()))

    def scrape(self) -> tuple[float, bytes]:
        connection = http.client.HTTPConnection(str(self.ready["metrics"]), timeout=60)
        began = time.perf_counter()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
        took_s = time.perf_counter() - began
        connection.close()
        return took_s, text

    def metric(self, name: str, **labels: str) -> float:
        lines = self.scrape()[1].decode().splitlines()
        words = [f'{label}="{value}"' for label, value in labels.items()]
        values = [
            line.rsplit(" ", 1)[1]
            for line in lines
            if line.split("{")[0].split(" ")[0] == name and all(word in line for word in words)
        ]
        return sum(map(float, values))

    def wait_for_facts(self) -> None:
        """Waits until the control plane has stored all facts about lobbies, so that it is idle."""
        deadline_s = time.monotonic() + 30.0
        while waiting := self.metric("hosting_facts_waiting"):
            if time.monotonic() > deadline_s:
                raise WrongAnswer(f"{waiting:.0f} facts wait after 30 s")
            time.sleep(0.05)

    # Operations

    def request(
        self,
        slug: str,
        fields: Mapping[str, Any] | None = None,
        expected: str = "",
        token: str | None = None,
    ) -> Request:
        method = _BY_SLUG[slug]
        rest = dict(fields or {})
        path = method.template
        for name in method.path_fields:
            path = path.replace(f"{{{name}}}", str(rest.pop(name)))
        body = b""
        if method.body_field:
            body = json.dumps(rest).encode()
        elif rest:
            path += "?" + "&".join(f"{name}={value}" for name, value in rest.items())
        head = (
            f"{method.http_method} {path} HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\n"
            f"Authorization: Bearer {token or self.token}\r\n"
        )
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return Request(f"{head}\r\n".encode() + body, expected.encode())

    @staticmethod
    def path_fields(slug: str) -> Sequence[str]:
        return _BY_SLUG[slug].path_fields

    def call(self, slug: str, fields: Mapping[str, Any] | None = None) -> Any:
        return json.loads(send_one(self.address, self.request(slug, fields)))

    def call_all(self, requests: Sequence[Request]) -> list[Any]:
        batch = loaded(lambda: send_all(self.address, requests, _CALLERS, is_kept=True))
        return [json.loads(body) for body in batch.bodies]

    def game(self, name: str) -> str:
        fields = {"developer_group_id": self.group_id, "display_name": name, "name_id": name}
        return str(self.call("create_game", fields)["game_id"])

    def version(self, game_id: str, config: Any = None) -> str:
        fields = {
            "game_id": game_id,
            "display_name": "1.0.0",
            "config": config or {"matchmaker": {"game_modes": MODES}},
        }
        return str(self.call("create_version", fields)["version_id"])

    def namespace_id(self, game_id: str, name: str = "prod") -> str:
        namespaces = self.call("list_namespaces", {"game_id": game_id})["namespaces"]
        return next(str(one["namespace_id"]) for one in namespaces if one["name_id"] == name)

    # Configuration in the data plane

    def current_version_ids(self) -> dict[str, str]:

        async def read() -> dict[str, str]:
            async with InternalClient(self.data_dir / "admin.sock") as client:
                answer = await client.call("hosting.internal.v1.Feed.Held", feed_pb2.HeldRequest())
            return {one.namespace_id: one.current_version_id for one in answer.configurations}

        return asyncio.run(read())

    def wait_held(self) -> None:
        expected = self.count_of(namespaces)
        end_s = time.monotonic() + _TAKEN_IN_S
        while len(self.current_version_ids()) < expected:
            if time.monotonic() > end_s:
                raise WrongAnswer("the data plane was not fed every new namespace")
            time.sleep(0.05)

    # Database

    def count_of(self, table: Table) -> int:

        async def count(tx: Transaction) -> int:
            row = await tx.first(select(func.count()).select_from(table))
            return int(row[0]) if row else 0

        return self.with_records(count)

    def with_records(self, work: Callable[[Transaction], Coroutine[Any, Any, Result]]) -> Result:

        async def done() -> Result:
            database = open_database(self.database_url, self.data_dir / "control")
            try:
                async with database.write() as tx:
                    return await work(tx)
            finally:
                await database.close()

        return asyncio.run(done())

    def fill(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:

        async def put(tx: Transaction) -> None:
            batch: list[Mapping[str, Any]] = []
            for row in rows:
                batch.append(row)
                if len(batch) == _ROWS_AT_ONCE:
                    await tx.run(insert(table), batch)
                    batch = []
            if batch:
                await tx.run(insert(table), batch)

        self.with_records(put)

    def identity_id(self) -> str:
        own = sha256(self.token.encode()).digest()

        async def identity(tx: Transaction) -> str:
            row = await tx.first(cloud_tokens.select().where(cloud_tokens.c.sha256 == own))
            assert row is not None
            return str(row.identity_id)

        return self.with_records(identity)

    def owner_tokens(self, count: int) -> list[str]:
        tokens = [f"cloud_{secrets.token_urlsafe(32)}" for _ in range(count)]
        identity_id = self.identity_id()
        now_ms = time.time_ns() // 1_000_000
        self.fill(
            cloud_tokens,
            (
                {
                    "token_id": self.ids.new(),
                    "sha256": sha256(token.encode()).digest(),
                    "identity_id": identity_id,
                    "create_ms": now_ms,
                }
                for token in tokens
            ),
        )
        return tokens

    def games_at_rest(self, group_id: str, count: int) -> list[str]:
        """Inserts games without namespaces, which the data plane never receives. Returns their ids."""
        ids = [self.ids.new() for _ in range(count)]
        rows = (
            {
                "game_id": game_id,
                "name_id": f"rest-{game_id[-12:]}",
                "display_name": "At rest",
                "group_id": group_id,
                "create_ms": 1_700_000_000_000 + number,
            }
            for number, game_id in enumerate(ids)
        )
        self.fill(games, rows)
        return ids


def kept_config(config: Any) -> dict[str, bytes]:
    method = _BY_SLUG["create_version"]
    body = json.dumps({"display_name": "1.0.0", "config": config}).encode()
    message, _ = decoder(method)(body, b"", {"game_id": "bench"})
    request = cast(versions_pb2.CreateVersionRequest, message)
    return {"config": encode(request.config), "config_json": json_of(request.config)}


@contextlib.contextmanager
def running(
    folder: Path,
    database_url: str | None = None,
    *,
    is_pinned: bool = True,
    limits: str = NO_LIMITS,
    more: str = "",
    checkout: Path = ROOT,
) -> Iterator[Service]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with started(
            folder, database_url, is_pinned=is_pinned, limits=limits, more=more, checkout=checkout
        ) as service:
            yield service
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def started(
    folder: Path,
    database_url: str | None = None,
    *,
    is_pinned: bool = True,
    limits: str = NO_LIMITS,
    more: str = "",
    checkout: Path = ROOT,
) -> Iterator[Service]:
    settings, ready, log = folder / "settings.toml", folder / "ready.json", folder / "log"
    database = "" if database_url is None else f'database_url = "{database_url}"\n'
    settings.write_text(database + _PLAYER_LIMIT + limits + more)
    ready.unlink(missing_ok=True)
    command = python(
        *("-m", "pyservice", "serve", "--config", str(settings), "--ready-file", str(ready)),
        *("--data-dir", str(folder / "data"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"),
        *("--cdn", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
        checkout=checkout,
    )
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=checkout,
            preexec_fn=on_core(SERVER_CORE) if is_pinned else None,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(ready, process, log)
        yield Service(folder, process, database_url)
    finally:
        end(process)
