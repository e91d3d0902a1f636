"""Exports of lobby logs and of the lobby history."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.authorization import GrantedScope
from pyservice.control.lobby_exports import EXPORT_URL_EXPIRES_S, LobbyExportOperations
from pyservice.control.lobby_records import LobbyFactReader, LobbyRecordLookup
from pyservice.control.lobby_runs import LobbyProcess
from pyservice.control.quotas import QuotaChecks
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import logs_pb2 as pb
from pyservice.settings.quotas import QuotaSettings
from pyservice.storage import audit_log, objects, uploads
from pyservice.storage.local_objects import DiskReserve
from pyservice.storage.signed_urls import PREFIX
from tests.control.build_uploads import IDS, NOW_MS, BuildUploads
from tests.control.build_uploads import builds as builds
from tests.control.lobby_record_rows import LobbyRecords
from tests.control.service_fixtures import each_database
from tests.support.blob_stores import put_whole
from tests.support.unused_data_plane import UnusedDataPlane
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

LINES = 100_000
"""Number of log lines. Their table needs several pieces."""


class ExportScenario(LobbyRecords):
    def __init__(self, builds: BuildUploads, folder: Path) -> None:
        super().__init__(builds)
        self._folder = folder
        history = LobbyFactReader(builds.database, UnusedDataPlane(), lambda: None)
        recorded = LobbyRecordLookup(builds.database, UnusedDataPlane(), history, 300_000)
        self.quotas = QuotaChecks()
        self.exports = LobbyExportOperations(
            builds.database,
            builds.objects,
            IDS,
            recorded,
            self,
            lambda: builds.now_ms,
            self.quotas,
        )

    def folder_of(self, run_id: str) -> Path:
        return self._folder / run_id

    def processes(self, run_ids: Sequence[str]) -> dict[str, LobbyProcess]:
        return {}

    @property
    def caller(self) -> Caller:
        scope = GrantedScope(self.builds.scope.identity_id, IDS.new(), None, None, self.group_ids)
        return Caller(TokenKind.CLOUD, b"", b"", b"token", Call("0" * 32, b"\x7f\0\0\1"), scope)

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

    async def blocks(self, key: str) -> list[bytes]:
        return [block async for block in self.builds.objects.read(key)]

    async def table(self, key: str) -> list[dict[str, str]]:
        content = b"".join(await self.blocks(key))
        return list(csv.DictReader(io.StringIO(content.decode())))

    async def entries(self) -> list[tuple[str, str, str]]:
        """Returns operation, outcome and object of each entry of the audit log."""
        async with self.builds.database.read() as tx:
            rows = await audit_log.newest(tx, 0, 100, None, None)
        return [(row.operation, row.outcome, row.object_id) for row in rows]

    async def first_pieces(self) -> None:
        await eventually(self.pieces)

    async def pieces(self) -> list[str]:
        return await self.builds.blobs.names("kept/exports")


@pytest.fixture
async def exports(
    builds: BuildUploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ExportScenario]:
    monkeypatch.setattr(objects, "_PIECE_BYTES", 1 << 16)
    exports = ExportScenario(builds, tmp_path / "runs")
    yield exports
    await exports.exports.stop()


async def test_long_log_is_stored_in_pieces_and_read_as_one(exports: ExportScenario) -> None:
    game_id = await exports.game()
    lobby_id = await exports.lobby(game_id, LINES)
    export = exports.start_export(game_id, lobby_id)
    await exports.first_pieces()
    with (exports.folder_of(lobby_id) / "log" / "0").open("a") as log:
        log.write(f"{NOW_MS}000 e a line that the export does not wait for\n")
    key = await export
    assert len(await exports.pieces()) > 2
    rows = await exports.table(key)
    assert [row["line"] for row in rows] == [f"line {n}" for n in range(LINES)]
    assert {row["stream"] for row in rows} == {"std_err"}


async def test_long_export_does_not_block_other_groups(exports: ExportScenario) -> None:
    game_id, other_id = await exports.game(), await exports.game()
    long_id, short_id = await exports.lobby(game_id, LINES), await exports.lobby(game_id)
    others_id = await exports.lobby(other_id)
    long = exports.start_export(game_id, long_id)
    await exports.first_pieces()
    short = exports.start_export(f"g{game_id[-12:]}", short_id)
    assert len(await exports.table(await exports.logs(other_id, others_id))) == 1
    assert not short.done(), "of each group one at a time"
    assert not long.done()
    assert len(await exports.table(await long)) == LINES
    assert len(await exports.table(await short)) == 1


async def test_cancelled_export_stops(exports: ExportScenario) -> None:
    game_id = await exports.game()
    long_id, short_id = await exports.lobby(game_id, LINES), await exports.lobby(game_id)
    cancelled = exports.start_export(game_id, long_id)
    await exports.first_pieces()
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert await exports.pieces() == []
    async with asyncio.timeout(PATIENCE_S):
        key = await exports.logs(game_id, short_id)
    folder, pieces = key.rpartition("/")[0], await exports.pieces()
    assert pieces
    assert all(name.startswith(f"kept/{folder}/") for name in pieces)
    exports.builds.now_ms += 3 * EXPORT_URL_EXPIRES_S * 1000
    assert await exports.exports.delete_expired() == 2
    assert await exports.pieces() == []


async def test_failed_export_leaves_nothing(exports: ExportScenario) -> None:
    game_id = await exports.game()
    export = exports.start_export(game_id, await exports.lobby(game_id, LINES))
    await exports.first_pieces()
    exports.builds.blobs._disk_reserve = DiskReserve(exports.builds.folder, 1 << 60)
    with pytest.raises(ServiceError, match="STORAGE_FULL"):
        await export
    assert await exports.pieces() == []


async def test_audit_log_has_exactly_the_stored_exports(exports: ExportScenario) -> None:
    game_id = await exports.game()
    lobby_id = await exports.lobby(game_id)
    reserve = exports.builds.blobs._disk_reserve
    exports.builds.blobs._disk_reserve = DiskReserve(exports.builds.folder, 1 << 60)
    with pytest.raises(ServiceError, match="STORAGE_FULL"):
        await exports.logs(game_id, lobby_id)
    assert await exports.entries() == []
    exports.builds.blobs._disk_reserve = reserve
    await exports.logs(game_id, lobby_id)
    assert await exports.entries() == [("export_lobby_logs", "OK", lobby_id)]


@each_database
async def test_export_beyond_the_quota_of_its_group_is_refused(exports: ExportScenario) -> None:
    game_id = await exports.game()
    large, small = await exports.lobby(game_id, LINES), await exports.lobby(game_id)
    kept = await exports.logs(game_id, small)
    pieces = await exports.pieces()
    exports.quotas.defaults = QuotaSettings(export_bytes=2_000)
    with pytest.raises(ServiceError, match="QUOTA_EXCEEDED"):
        await exports.logs(game_id, large)
    assert await exports.pieces() == pieces
    exports.quotas.defaults = QuotaSettings(export_bytes=len(b"".join(await exports.blocks(kept))))
    with pytest.raises(ServiceError, match="QUOTA_EXCEEDED"):
        await exports.logs(game_id, small)
    # Exports of other groups do not count.
    other_id = await exports.game()
    await exports.logs(other_id, await exports.lobby(other_id))
    exports.builds.now_ms += 2 * EXPORT_URL_EXPIRES_S * 1_000 + 1
    assert await exports.exports.delete_expired() > 0
    await exports.logs(game_id, small)


@each_database
async def test_exports_of_an_earlier_version_are_removed(exports: ExportScenario) -> None:
    async with exports.builds.database.write() as tx:
        await uploads.add_export(tx, "of-before", NOW_MS)
    await put_whole(exports.builds.objects, "exports/of-before", b"timestamp")
    exports.builds.now_ms += 1
    assert await exports.exports.delete_expired() == 1
    assert await exports.pieces() == []


@each_database
async def test_history_of_many_pages_is_complete(exports: ExportScenario) -> None:
    game_id = await exports.game()
    ids = await exports.ended(game_id, 2_500)
    request = pb.ExportLobbyHistoryRequest(game_id=game_id, query_start=0, query_end=NOW_MS)
    answer = await exports.exports.lobby_history(request, exports.caller)
    rows = await exports.table(answer.url.split("?")[0].partition(PREFIX)[2])
    assert sorted(row["lobby_id"] for row in rows) == sorted(ids)
