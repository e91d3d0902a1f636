"""Rate of durable changes: create game, create version and set version, by 32 clients.

Load: both planes on one core, on SQLite and on PostgreSQL. Baseline: row inserts into the same database. The run checks
every change in the database, and set versions in the data plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import func, select

from bench.http_load import Request, Responses, send_all
from bench.machine import SERVER_CORE, Bench, loaded, staying_on
from bench.postgres import postgres
from bench.results import Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import MODES, Service, kept_config, running
from pyservice.storage.database import Transaction
from pyservice.storage.tables import games, version_history, versions

NAME = "changes"
CALLERS = 32
COUNT = 1_600
BARE_COUNT = 800
RATE = 300.0
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    runs: dict[str, list[Run]] = {}
    folder = bench.scratch("changes")
    with running(folder) as service:
        runs |= _on(service, "SQLite", lambda: _bare_sqlite(bench.scratch("bare.db")))
    with postgres() as new_url:
        url = new_url()
        with running(folder, url) as service:
            runs |= _on(service, "PostgreSQL", lambda: _bare_postgres(url))
    figures = [
        figure for database in ("SQLite", "PostgreSQL") for figure in _figures(runs, database)
    ]
    return Result(NAME, figures, runs)


def _on(service: Service, database: str, bare: Any) -> dict[str, list[Run]]:
    load = ChangeLoad(service)
    return interleaved(
        {
            f"{database} bare": bare,
            f"{database} create game": load.create_games,
            f"{database} create version": load.create_versions,
            f"{database} set version": load.set_versions,
        }
    )


@dataclass
class ChangeLoad:
    service: Service
    games: list[str] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        for number in range(CALLERS):
            game_id = self.service.game(f"caller-{number}")
            self.games.append(game_id)
            self.namespaces.append(self.service.namespace_id(game_id))

    def create_games(self) -> Run:
        requests = [
            self.service.request(
                "create_game",
                {
                    "developer_group_id": self.service.group_id,
                    "display_name": "Bench",
                    "name_id": f"bench-{next(self._names)}",
                },
                '"game_id"',
            )
            for _ in range(COUNT)
        ]
        batch = self._measure(requests)
        self._require(games.c.game_id, [json.loads(body)["game_id"] for body in batch.bodies])
        began_s = time.perf_counter()
        self.service.wait_held()
        batch.run["caught_up_s"] = time.perf_counter() - began_s
        return batch.run

    def create_versions(self) -> Run:
        requests = [
            self.service.request(
                "create_version",
                {
                    "game_id": self.games[number % CALLERS],
                    "display_name": f"1.0.{number}",
                    "config": {"matchmaker": {"game_modes": MODES}},
                },
                '"version_id"',
            )
            for number in range(COUNT)
        ]
        batch = self._measure(requests)
        version_ids = [json.loads(body)["version_id"] for body in batch.bodies]
        self._require(versions.c.version_id, version_ids)
        return batch.run

    def set_versions(self) -> Run:
        """Measures version changes. Each change sets a version that no namespace had before."""
        version_ids_of_games = self._new_versions(COUNT // CALLERS)
        before = self._history_count()
        requests = [
            self.service.request(
                "set_version",
                {
                    "game_id": self.games[number % CALLERS],
                    "namespace_id": self.namespaces[number % CALLERS],
                    "version_id": version_ids_of_games[number % CALLERS][number // CALLERS],
                },
            )
            for number in range(COUNT // CALLERS * CALLERS)
        ]
        batch = self._measure(requests)
        configurations = self.service.current_version_ids()
        for namespace_id, version_ids in zip(self.namespaces, version_ids_of_games, strict=True):
            if configurations[namespace_id] != version_ids[-1]:
                raise WrongAnswer("the data plane lacks an acknowledged configuration")
        if self._history_count() - before != len(requests):
            raise WrongAnswer("the history lacks a version")
        return batch.run

    def _new_versions(self, count: int) -> list[list[str]]:
        stored_config = kept_config({"matchmaker": {"game_modes": MODES}})
        ids_of_games = [[self.service.ids.new() for _ in range(count)] for _ in self.games]
        rows = (
            {
                "version_id": version_id,
                "game_id": game_id,
                "display_name": "1.0.0",
                "create_ms": 1_700_000_000_000,
                **stored_config,
            }
            for game_id, version_ids in zip(self.games, ids_of_games, strict=True)
            for version_id in version_ids
        )
        self.service.fill(versions, rows)
        return ids_of_games

    def _measure(self, requests: Sequence[Request]) -> Responses:
        before_s = self.service.cpu_s()
        address = self.service.address
        batch = loaded(lambda: send_all(address, requests, CALLERS, is_kept=True))
        cpu_s = self.service.cpu_s() - before_s
        batch.run["server_cpu_us_per_answer"] = cpu_s / len(requests) * 1e6
        return batch

    def _require(self, column: Any, ids: Sequence[str]) -> None:
        async def stored_ids(tx: Transaction) -> set[str]:
            return {row[0] for row in await tx.all(select(column))}

        missing = set(ids) - self.service.with_records(stored_ids)
        if missing or len(set(ids)) != len(ids):
            raise WrongAnswer(f"{len(missing)} confirmed changes are not in the records")

    def _history_count(self) -> int:
        async def count(tx: Transaction) -> int:
            condition = version_history.c.namespace_id.in_(self.namespaces)
            row = await tx.first(select(func.count()).where(condition))
            return int(row[0]) if row else 0

        return self.service.with_records(count)


# The databases alone ------------------------------------------------------------------------------

_ROW = "x" * 400
_WARM_BYTES = 8 << 20


def _bare_sqlite(path: Path) -> Run:
    """Inserts one row per transaction, with the durability settings of the service."""
    for stale in path.parent.glob(f"{path.name}*"):
        stale.unlink()
    with staying_on(SERVER_CORE), contextlib.closing(sqlite3.connect(path)) as connection:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
        # The first growth of a log file is slower than its reuse.
        connection.execute("INSERT INTO rows (text) VALUES (zeroblob(?))", (_WARM_BYTES,))
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        began_s = time.perf_counter()
        for _ in range(BARE_COUNT):
            connection.execute("INSERT INTO rows (text) VALUES (?)", (_ROW,))
        seconds = time.perf_counter() - began_s
    for stale in path.parent.glob(f"{path.name}*"):
        stale.unlink()
    return {"answers": BARE_COUNT, "seconds": seconds, "answers_per_s": BARE_COUNT / seconds}


def _bare_postgres(url: str) -> Run:

    async def insert_all() -> float:
        pool = await asyncpg.create_pool(url, min_size=CALLERS, max_size=CALLERS)
        await pool.execute(
            "CREATE TABLE IF NOT EXISTS bench_rows (id SERIAL PRIMARY KEY, text TEXT)"
        )

        async def caller() -> None:
            for _ in range(BARE_COUNT // CALLERS):
                await pool.execute("INSERT INTO bench_rows (text) VALUES ($1)", _ROW)

        began_s = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        seconds = time.perf_counter() - began_s
        await pool.close()
        return seconds

    assert urlsplit(url).scheme == "postgresql"
    with staying_on(SERVER_CORE):
        seconds = asyncio.run(insert_all())
    return {"answers": BARE_COUNT, "seconds": seconds, "answers_per_s": BARE_COUNT / seconds}


def _figures(runs: Runs, database: str) -> list[Figure]:
    bare = median(runs[f"{database} bare"], "answers_per_s")
    figures = []
    for what in ("create game", "create version", "set version"):
        of = runs[f"{database} {what}"]
        caught_up = ""
        if what == "create game":
            caught_up = f"; fed {median(of, 'caught_up_s'):.1f} s after"
        figures.append(
            Figure(
                f"{what}, durable, {CALLERS} callers, {database}",
                median(of, "answers_per_s"),
                "/s",
                at_least=RATE,
                note=f"{median(of, 'server_cpu_us_per_answer') / 1e3:.2f} ms CPU each; "
                f"p50 {median(of, 'p50_us') / 1e3:.0f} ms, p99 {median(of, 'p99_us') / 1e3:.0f} ms; "
                f"the database alone commits {bare:,.0f} rows/s{caught_up}",
            )
        )
    return figures
