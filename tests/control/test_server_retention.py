"""Retention of destroyed servers: by age, by number, and while their runs are in use."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Connection, select

from pyservice.control import server_retention
from pyservice.control.lobby_records import LOBBY_RETENTION_MS
from pyservice.control.server_retention import DESTROYED_SERVERS_MAX, ServerRetention
from pyservice.errors import Unreachable
from pyservice.pb.hosting.v1 import servers_pb2 as pb
from pyservice.runtime.node_allocation import PORT_QUARANTINE_S
from pyservice.runtime.run_layout import REPORTED
from pyservice.storage import servers
from pyservice.storage.database import DELETION_BATCH_ROWS, Database, open_database
from pyservice.storage.list_pages import PageBounds
from pyservice.storage.sqlite import SqliteDatabase
from pyservice.storage.tables import server_tags
from pyservice.storage.tables import servers as servers_table
from pyservice.timestamps import now_ms
from tests.control.feeder_setup import IDS, Source
from tests.control.feeder_setup import source as source
from tests.control.service_fixtures import each_database
from tests.support import game_programs
from tests.support.databases import Databases
from tests.support.full_service import Developer, FullService, eventually, running
from tests.support.hosted_game import Hosted
from tests.support.noted_writes import noted_writes

pytestmark = pytest.mark.anyio

NOW_MS: Final = 1_800_000_000_000
MAX: Final = 5
TAGS: Final = {"mode": "duel", "shelf": "full"}


def server_row(namespace_id: str, destroy_ms: int | None, argument: str = "") -> dict[str, Any]:
    server_id = IDS.new()
    server = pb.Server(id=server_id, environment=namespace_id)
    server.runtime.arguments.append(argument)
    return {
        "server_id": server_id,
        "namespace_id": namespace_id,
        "build_id": IDS.new(),
        "record": server.SerializeToString(),
        "create_ms": NOW_MS - LOBBY_RETENTION_MS,
        "destroy_ms": destroy_ms,
        "is_placed": True,
    }


async def add_servers(
    database: Database, namespace_id: str, *ends_ms: int | None, argument: str = ""
) -> list[str]:
    """Adds a server for each time of an end. None stands for a running server."""
    rows = [server_row(namespace_id, end_ms, argument) for end_ms in ends_ms]
    async with database.write() as tx:
        for row in rows:
            await servers.add(tx, row, TAGS, ())
    return [row["server_id"] for row in rows]


class RetentionScene:
    """Retention with chosen leases, and runs that are in use."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now_ms = NOW_MS
        self.leased: list[str] = []
        self.is_unavailable = False
        self.used_runs: set[str] = set()
        self.unreadable_runs: set[str] = set()
        self.removed_runs: list[str] = []
        self.retention = ServerRetention(
            database, self._leased_servers, self._remove_run, lambda: self.now_ms, MAX
        )

    async def _leased_servers(self) -> Sequence[str]:
        if self.is_unavailable:
            raise Unreachable("no data plane")
        return self.leased

    async def _remove_run(self, run_id: str) -> bool:
        if run_id in self.unreadable_runs:
            raise OSError("bad sector")
        if run_id in self.used_runs:
            return False
        self.removed_runs.append(run_id)
        return True

    async def left(self) -> set[str]:
        """Removes expired servers, and returns the servers that are left."""
        await self.retention.remove_expired()
        async with self.database.read() as tx:
            of_tags = {row.server_id for row in await tx.all(select(server_tags))}
            of_servers = {row.server_id for row in await tx.all(select(servers_table))}
        assert of_tags == of_servers
        return of_servers


@pytest.fixture
def scene(database: Database) -> RetentionScene:
    return RetentionScene(database)


@each_database
async def test_destroyed_servers_are_kept_as_long_as_lobby_records(
    scene: RetentionScene, source: Source
) -> None:
    ends_ms = NOW_MS - LOBBY_RETENTION_MS, NOW_MS, None
    old, recent, live = await add_servers(scene.database, await source.namespace(), *ends_ms)
    assert await scene.left() == {old, recent, live}
    scene.now_ms += 1
    assert await scene.left() == {recent, live}
    assert scene.removed_runs == [old]
    scene.now_ms += 2 * LOBBY_RETENTION_MS
    assert await scene.left() == {live}


@each_database
async def test_surplus_servers_of_a_namespace_are_removed_oldest_first(
    scene: RetentionScene, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_retention, "_NAMESPACES_PER_QUERY", 1)
    other, full = await source.namespace("other"), await source.namespace("full")
    # The servers do not end in the order of their creation.
    ends_ms = [NOW_MS - number for number in range(MAX + 3)]
    destroyed = await add_servers(scene.database, full, *ends_ms)
    live = await add_servers(scene.database, full, *[None] * MAX)
    exactly_full = await add_servers(scene.database, other, *ends_ms[:MAX])
    kept = {*live, *exactly_full}
    assert await scene.left() == {*destroyed[:MAX], *kept}
    assert scene.removed_runs == destroyed[:-4:-1]
    [last] = await add_servers(scene.database, full, NOW_MS + 1)
    assert await scene.left() == {last, *destroyed[: MAX - 1], *kept}


@each_database
@pytest.mark.parametrize("age_ms", [2 * LOBBY_RETENTION_MS, MAX], ids=["old", "surplus"])
async def test_servers_in_use_stay_and_others_are_removed(
    scene: RetentionScene, source: Source, age_ms: int
) -> None:
    namespace_id, begin_ms = await source.namespace(), NOW_MS - age_ms
    ends_ms = [*range(begin_ms, begin_ms + MAX), *range(NOW_MS, NOW_MS + MAX)]
    added = await add_servers(scene.database, namespace_id, *ends_ms)
    (leased, in_use, unreadable, *unused), kept = added[:MAX], added[MAX:]
    scene.leased, scene.used_runs, scene.unreadable_runs = [leased], {in_use}, {unreadable}
    assert await scene.left() == {leased, in_use, unreadable, *kept}
    assert scene.removed_runs == unused
    assert scene.retention.job.unexpected_errors == 1
    scene.leased, scene.used_runs, scene.unreadable_runs = [], set(), set()
    assert await scene.left() == set(kept)


@each_database
async def test_unknown_leases_remove_nothing(scene: RetentionScene, source: Source) -> None:
    namespace_id = await source.namespace()
    [old] = await add_servers(scene.database, namespace_id, NOW_MS - 2 * LOBBY_RETENTION_MS)
    scene.is_unavailable = True
    with pytest.raises(Unreachable):
        await scene.left()
    assert scene.removed_runs == []
    scene.is_unavailable = False
    assert await scene.left() == set()
    assert scene.removed_runs == [old]


@each_database
@pytest.mark.parametrize(
    ("count", "argument_bytes", "expected"),
    [(2 * DELETION_BATCH_ROWS + 5, 0, 3), (5, servers.REMOVAL_BYTES * 2 // 5, 3)],
    ids=["rows", "bytes"],
)
async def test_transaction_removes_few_rows_and_bytes(
    scene: RetentionScene,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    argument_bytes: int,
    expected: int,
) -> None:
    ends_ms = [1] * count
    namespace_id = await source.namespace()
    await add_servers(scene.database, namespace_id, *ends_ms, argument="x" * argument_bytes)
    writes = noted_writes(scene.database, monkeypatch)
    assert await scene.left() == set()
    assert len(writes) == expected


@each_database
async def test_removal_between_pages_shifts_no_server(
    scene: RetentionScene, source: Source
) -> None:
    namespace_id = await source.namespace()
    # Every second server is removed after the first page, also the last one of that page.
    ends_ms = [NOW_MS if number % 2 else 1 for number in range(2 * MAX)]
    added = await add_servers(scene.database, namespace_id, *ends_ms)
    newest = added[::-1]

    async def page(cursor: str | None) -> tuple[list[str], str | None]:
        async with scene.database.read() as tx:
            bounds = PageBounds(2, cursor)
            page = await servers.page(tx, namespace_id, TAGS, bounds, with_destroyed=True)
        return [row.server_id for row in page.rows], page.cursor

    listed, cursor = await page(None)
    assert (listed, cursor) == (newest[:2], newest[1])
    left = await scene.left()
    assert left == set(newest[::2])
    for _ in range(2):
        more, cursor = await page(cursor)
        listed += more
    assert cursor is None
    assert listed == [*newest[:2], *newest[2::2]]


async def test_search_for_expired_servers_uses_indexes(database: Database) -> None:
    assert isinstance(database, SqliteDatabase)
    statements = servers._ENDS_OF_NAMESPACES, servers._DESTROYED
    values = {
        "kept_count": MAX,
        "namespace_id": "n",
        "last_ms": 1,
        "page_limit": 1,
        "page_after_0": 1,
        "page_after_1": "s",
    }

    def explain(connection: Connection) -> list[str]:
        steps = []
        for listed in statements:
            for statement in (listed._first, listed._following):
                compiled = database._statements.compile(statement, values)
                text = f"EXPLAIN QUERY PLAN {compiled.text}"
                arguments = tuple(compiled.argument_values(values))
                steps += [row[-1] for row in connection.exec_driver_sql(text, arguments)]
        return steps

    steps = await database.run_sync(explain)
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
    of_servers = [step for step in steps if " servers " in step]
    assert len(of_servers) == 6
    assert all("INDEX ix_servers_destroyed (namespace_id=?" in step for step in of_servers)


def restart_control_plane(service: FullService) -> None:
    """Kills the control plane. Its next process begins with a removal of expired servers."""
    os.kill(service.control_pid(), signal.SIGKILL)


async def ended_server(developer: Developer, game_id: str) -> tuple[str, Path]:
    """Returns a server that has exited, and the marker of the report in its run folder."""
    hosted = Hosted(developer, game_id)
    await hosted.upload()
    server_id = await hosted.server(play="exit:0")
    marker = developer.full_service.data_dir / "servers" / server_id / REPORTED

    async def is_reported() -> bool:
        return marker.exists()

    await eventually(is_reported)
    return server_id, marker


async def listed_servers(developer: Developer, **fields: Any) -> list[str]:
    listed: list[str] = []
    more: dict[str, Any] = {"limit": 256}
    while more:
        page = await developer.good("list_servers", **fields, **more, include_destroyed=True)
        listed += [server["id"] for server in page["servers"]]
        more = {"limit": 256, "cursor": page["cursor"]} if "cursor" in page else {}
    return listed


@each_database
@pytest.mark.full
async def test_running_service_removes_surplus_servers(
    tmp_path: Path, kind: str, databases: Databases
) -> None:
    service = FullService(tmp_path / "s", databases.url(kind), runtime=game_programs.SETTINGS)
    with running(service):
        async with service.open_client("http") as client:
            developer = Developer(service, client)
            game_id = await developer.game()
            found = await developer.good("get_namespace", game_id=game_id, namespace_id="prod")
            first, marker = await ended_server(developer, game_id)
            database = open_database(service.database_url, service.data_dir / "control")
            begin_ms = now_ms() + 1
            ends_ms = range(begin_ms, begin_ms + DESTROYED_SERVERS_MAX + 1)
            added = await add_servers(database, found["namespace"]["namespace_id"], *ends_ms)
            await database.close()
            fields = {"game_id": game_id, "environment_id": "prod"}

            async def is_removed(server_id: str) -> bool:
                answer = await developer.call("get_server", **fields, server_id=server_id)
                return answer.code == "SERVER_NOT_FOUND"

            restart_control_plane(service)
            await eventually(lambda: is_removed(added[0]))
            # The ports of the first server are in quarantine.
            assert await listed_servers(developer, **fields) == [*added[:0:-1], first]
            reported_s = marker.stat().st_mtime - PORT_QUARANTINE_S - 1
            os.utime(marker, (reported_s, reported_s))
            restart_control_plane(service)
            await eventually(lambda: is_removed(first))
            assert not marker.parent.exists()
            assert await listed_servers(developer, **fields) == added[:0:-1]
