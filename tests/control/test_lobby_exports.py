from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.authorization import GrantedScope
from pyservice.control.lobby_exports import EXPORT_URL_EXPIRES_S, LobbyExportOperations
from pyservice.control.lobby_records import LobbyFactReader, LobbyRecordLookup
from pyservice.control.lobby_runs import LobbyProcess
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import logs_pb2 as pb
from pyservice.storage import games, groups, lobbies, namespaces, uploads
from pyservice.storage.local_objects import DiskReserve
from pyservice.storage.signed_urls import PREFIX
from pyservice.storage.tables import versions
from tests.control.test_uploads import IDS, NOW_MS, BuildUploads
from tests.control.test_uploads import builds as builds
from tests.storage.blob_stores import put_whole
from tests.storage.test_batched_deletion import UnusedDataPlane
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

LINES = 400_000
"""Number of log lines. Their table takes seconds and needs several pieces."""


class ExportScenario:
    def __init__(self, builds: BuildUploads, folder: Path) -> None:
        self.builds = builds
        self._folder = folder
        self._versions: dict[str, tuple[str, str]] = {}
        self._groups: tuple[str, ...] = ()
        history = LobbyFactReader(builds.database, UnusedDataPlane(), lambda: None)
        recorded = LobbyRecordLookup(builds.database, UnusedDataPlane(), history)
        self.exports = LobbyExportOperations(
            builds.database, builds.objects, IDS, recorded, self, lambda: builds.now_ms
        )

    def folder_of(self, run_id: str) -> Path:
        return self._folder / run_id

    def processes(self, run_ids: Sequence[str]) -> dict[str, LobbyProcess]:
        return {}

    async def game(self) -> str:
        group_id, game_id, version_id, namespace_id = (IDS.new() for _ in range(4))
        identity_id = self.builds.scope.identity_id
        version = {
            "version_id": version_id,
            "game_id": game_id,
            "display_name": "1.0",
            "create_ms": NOW_MS,
            "config": b"",
            "config_json": b"{}",
        }
        namespace = namespaces.NewNamespace(namespace_id, "prod", "Prod", IDS.new())
        async with self.builds.database.write() as tx:
            await groups.add(tx, group_id, "Group", identity_id, NOW_MS)
            await games.add(tx, game_id, f"g{game_id[-12:]}", "Game", group_id, NOW_MS)
            await tx.run(insert(versions), version)
            await namespaces.add(tx, game_id, version_id, [namespace], (10, 10), NOW_MS)
        self._versions[game_id] = namespace_id, version_id
        self._groups += (group_id,)
        return game_id

    @property
    def caller(self) -> Caller:
        scope = GrantedScope(self.builds.scope.identity_id, IDS.new(), None, None, self._groups)
        return Caller(TokenKind.CLOUD, b"", b"", b"token", Call("0" * 32, b"\x7f\0\0\1"), scope)

    async def ended(self, game_id: str, count: int = 1) -> list[str]:
        namespace_id, version_id = self._versions[game_id]
        ids = [IDS.new() for _ in range(count)]
        about = {
            "namespace_id": namespace_id,
            "game_mode": "duel",
            "region_id": "local",
            "version_id": version_id,
            "publicity": "public",
            "is_closed": False,
            "is_stopping": False,
            "create_ms": NOW_MS,
            "stop_ms": NOW_MS + 1,
        }
        async with self.builds.database.write() as tx:
            await lobbies.add_many(tx, [{**about, "lobby_id": lobby_id} for lobby_id in ids])
        return ids

    async def lobby(self, game_id: str, lines: int = 1) -> str:
        [lobby_id] = await self.ended(game_id)
        log = self.folder_of(lobby_id) / "log"
        log.mkdir(parents=True)
        written = (f"{NOW_MS}000 {stream} line {n}\n" for n in range(lines) for stream in "oe")
        (log / "0").write_text("".join(written))
        return lobby_id

    async def logs(self, game_id: str, lobby_id: str) -> str:
        request = pb.ExportLobbyLogsRequest(game_id=game_id, lobby_id=lobby_id, stream="std_err")
        answer = await self.exports.lobby_logs(request, self.caller)
        return answer.url.split("?")[0].partition(PREFIX)[2]

    def start_export(self, game_id: str, lobby_id: str) -> asyncio.Task[str]:
        return asyncio.create_task(self.logs(game_id, lobby_id))

    async def table(self, key: str) -> list[dict[str, str]]:
        content = b"".join([block async for block in self.builds.objects.read(key)])
        return list(csv.DictReader(io.StringIO(content.decode())))

    async def first_pieces(self) -> Any:
        async def some() -> list[str]:
            return await self.pieces()

        return await eventually(some)

    async def pieces(self) -> list[str]:
        return await self.builds.blobs.names("kept/exports")


@pytest.fixture
async def export_scenario(builds: BuildUploads, tmp_path: Path) -> AsyncIterator[ExportScenario]:
    created = ExportScenario(builds, tmp_path / "runs")
    yield created
    await created.exports.stop()


async def test_long_log_is_stored_in_pieces_and_read_as_one(
    export_scenario: ExportScenario,
) -> None:
    game_id = await export_scenario.game()
    lobby_id = await export_scenario.lobby(game_id, LINES)
    key = await export_scenario.logs(game_id, lobby_id)
    assert len(await export_scenario.pieces()) > 2
    rows = await export_scenario.table(key)
    assert [row["line"] for row in rows] == [f"line {n}" for n in range(LINES)]
    assert {row["stream"] for row in rows} == {"std_err"}


async def test_long_export_does_not_block_others(export_scenario: ExportScenario) -> None:
    game_id, other_id = await export_scenario.game(), await export_scenario.game()
    long_id, short_id = (
        await export_scenario.lobby(game_id, LINES),
        await export_scenario.lobby(game_id),
    )
    others_id = await export_scenario.lobby(other_id)
    long = export_scenario.start_export(game_id, long_id)
    await export_scenario.first_pieces()
    short = export_scenario.start_export(f"g{game_id[-12:]}", short_id)
    assert len(await export_scenario.table(await export_scenario.logs(other_id, others_id))) == 1
    assert not short.done(), "of each group one at a time"
    assert not long.done()
    assert len(await export_scenario.table(await long)) == LINES
    assert len(await export_scenario.table(await short)) == 1


async def test_cancelled_export_stops(export_scenario: ExportScenario) -> None:
    game_id = await export_scenario.game()
    long_id, short_id = (
        await export_scenario.lobby(game_id, LINES),
        await export_scenario.lobby(game_id),
    )
    given_up = export_scenario.start_export(game_id, long_id)
    await export_scenario.first_pieces()
    given_up.cancel()
    await asyncio.wait({given_up})
    assert await export_scenario.pieces() == []
    async with asyncio.timeout(PATIENCE_S):
        key = await export_scenario.logs(game_id, short_id)
    folder = key.rpartition("/")[0]
    assert all(name.startswith(f"kept/{folder}/") for name in await export_scenario.pieces())
    export_scenario.builds.now_ms += 3 * EXPORT_URL_EXPIRES_S * 1000
    assert await export_scenario.exports.delete_expired() == 2
    assert await export_scenario.pieces() == []


async def test_failed_export_leaves_nothing(export_scenario: ExportScenario) -> None:
    game_id = await export_scenario.game()
    export = export_scenario.start_export(game_id, await export_scenario.lobby(game_id, LINES))
    await export_scenario.first_pieces()
    export_scenario.builds.blobs._disk_reserve = DiskReserve(export_scenario.builds.folder, 1 << 60)
    with pytest.raises(ServiceError, match="STORAGE_FULL"):
        await export
    assert await export_scenario.pieces() == []


async def test_exports_of_an_earlier_version_are_removed(export_scenario: ExportScenario) -> None:
    async with export_scenario.builds.database.write() as tx:
        await uploads.add_export(tx, "of-before", NOW_MS)
    await put_whole(export_scenario.builds.objects, "exports/of-before", b"timestamp")
    export_scenario.builds.now_ms += 1
    assert await export_scenario.exports.delete_expired() == 1
    assert await export_scenario.pieces() == []


async def test_export_does_not_wait_for_new_lines(export_scenario: ExportScenario) -> None:
    game_id = await export_scenario.game()
    lobby_id = await export_scenario.lobby(game_id, LINES)
    export = export_scenario.start_export(game_id, lobby_id)
    await export_scenario.first_pieces()
    with (export_scenario.folder_of(lobby_id) / "log" / "0").open("a") as log:
        log.write(f"{NOW_MS}000 e one more\n")
    rows = await export_scenario.table(await export)
    assert rows[-1]["line"] == f"line {LINES - 1}"


async def test_history_of_many_pages_is_complete(export_scenario: ExportScenario) -> None:
    game_id = await export_scenario.game()
    ids = await export_scenario.ended(game_id, 2_500)
    request = pb.ExportLobbyHistoryRequest(game_id=game_id, query_start=0, query_end=NOW_MS)
    answer = await export_scenario.exports.lobby_history(request, export_scenario.caller)
    key = answer.url.split("?")[0].partition(PREFIX)[2]
    assert sorted(row["lobby_id"] for row in await export_scenario.table(key)) == sorted(ids)
