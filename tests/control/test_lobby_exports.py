"""Lobby exports of any length."""

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
from tests.control.test_uploads import IDS, NOW_MS, Desk
from tests.control.test_uploads import desk as desk
from tests.storage.blob_stores import put_whole
from tests.storage.test_batched_deletion import Nobody
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

LINES = 400_000
"""A table of this many lines takes seconds and needs several pieces."""


class Counter:
    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk = desk
        self._folder = folder
        self._places: dict[str, tuple[str, str]] = {}
        self._groups: tuple[str, ...] = ()
        history = LobbyFactReader(desk.database, Nobody(), lambda: None)
        recorded = LobbyRecordLookup(desk.database, Nobody(), history)
        self.exports = LobbyExportOperations(
            desk.database, desk.objects, IDS, recorded, self, lambda: desk.now_ms
        )

    def folder_of(self, run_id: str) -> Path:
        return self._folder / run_id

    def processes(self, run_ids: Sequence[str]) -> dict[str, LobbyProcess]:
        return {}

    async def game(self) -> str:
        group_id, game_id, version_id, namespace_id = (IDS.new() for _ in range(4))
        identity_id = self.desk.scope.identity_id
        version = {
            "version_id": version_id,
            "game_id": game_id,
            "display_name": "1.0",
            "create_ms": NOW_MS,
            "config": b"",
            "config_json": b"{}",
        }
        namespace = namespaces.NewNamespace(namespace_id, "prod", "Prod", IDS.new())
        async with self.desk.database.write() as tx:
            await groups.add(tx, group_id, "Group", identity_id, NOW_MS)
            await games.add(tx, game_id, f"g{game_id[-12:]}", "Game", group_id, NOW_MS)
            await tx.run(insert(versions), version)
            await namespaces.add(tx, game_id, version_id, [namespace], (10, 10), NOW_MS)
        self._places[game_id] = namespace_id, version_id
        self._groups += (group_id,)
        return game_id

    @property
    def caller(self) -> Caller:
        scope = GrantedScope(self.desk.scope.identity_id, IDS.new(), None, None, self._groups)
        return Caller(TokenKind.CLOUD, b"", b"", b"token", Call("0" * 32, b"\x7f\0\0\1"), scope)

    async def ended(self, game_id: str, count: int = 1) -> list[str]:
        namespace_id, version_id = self._places[game_id]
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
        async with self.desk.database.write() as tx:
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

    def asked(self, game_id: str, lobby_id: str) -> asyncio.Task[str]:
        return asyncio.create_task(self.logs(game_id, lobby_id))

    async def table(self, key: str) -> list[dict[str, str]]:
        content = b"".join([block async for block in self.desk.objects.read(key)])
        return list(csv.DictReader(io.StringIO(content.decode())))

    async def begun(self) -> Any:
        async def some() -> list[str]:
            return await self.pieces()

        return await eventually(some)

    async def pieces(self) -> list[str]:
        return await self.desk.blobs.names("kept/exports")


@pytest.fixture
async def counter(desk: Desk, tmp_path: Path) -> AsyncIterator[Counter]:
    created = Counter(desk, tmp_path / "runs")
    yield created
    await created.exports.stop()


async def test_long_log_is_stored_in_pieces_and_read_as_one(counter: Counter) -> None:
    game_id = await counter.game()
    lobby_id = await counter.lobby(game_id, LINES)
    key = await counter.logs(game_id, lobby_id)
    assert len(await counter.pieces()) > 2
    rows = await counter.table(key)
    assert [row["line"] for row in rows] == [f"line {n}" for n in range(LINES)]
    assert {row["stream"] for row in rows} == {"std_err"}


async def test_long_export_does_not_block_others(counter: Counter) -> None:
    game_id, other_id = await counter.game(), await counter.game()
    long_id, short_id = await counter.lobby(game_id, LINES), await counter.lobby(game_id)
    others_id = await counter.lobby(other_id)
    long = counter.asked(game_id, long_id)
    await counter.begun()
    short = counter.asked(f"g{game_id[-12:]}", short_id)
    assert len(await counter.table(await counter.logs(other_id, others_id))) == 1
    assert not short.done(), "of each group one at a time"
    assert not long.done()
    assert len(await counter.table(await long)) == LINES
    assert len(await counter.table(await short)) == 1


async def test_cancelled_export_stops(counter: Counter) -> None:
    game_id = await counter.game()
    long_id, short_id = await counter.lobby(game_id, LINES), await counter.lobby(game_id)
    given_up = counter.asked(game_id, long_id)
    await counter.begun()
    given_up.cancel()
    await asyncio.wait({given_up})
    assert await counter.pieces() == []
    async with asyncio.timeout(PATIENCE_S):
        key = await counter.logs(game_id, short_id)
    folder = key.rpartition("/")[0]
    assert all(name.startswith(f"kept/{folder}/") for name in await counter.pieces())
    counter.desk.now_ms += 3 * EXPORT_URL_EXPIRES_S * 1000
    assert await counter.exports.delete_expired() == 2
    assert await counter.pieces() == []


async def test_failed_export_leaves_nothing(counter: Counter) -> None:
    game_id = await counter.game()
    export = counter.asked(game_id, await counter.lobby(game_id, LINES))
    await counter.begun()
    counter.desk.blobs._disk_reserve = DiskReserve(counter.desk.folder, 1 << 60)
    with pytest.raises(ServiceError, match="STORAGE_FULL"):
        await export
    assert await counter.pieces() == []


async def test_exports_of_an_earlier_version_are_removed(counter: Counter) -> None:
    async with counter.desk.database.write() as tx:
        await uploads.add_export(tx, "of-before", NOW_MS)
    await put_whole(counter.desk.objects, "exports/of-before", b"timestamp")
    counter.desk.now_ms += 1
    assert await counter.exports.delete_expired() == 1
    assert await counter.pieces() == []


async def test_export_does_not_wait_for_new_lines(counter: Counter) -> None:
    game_id = await counter.game()
    lobby_id = await counter.lobby(game_id, LINES)
    export = counter.asked(game_id, lobby_id)
    await counter.begun()
    with (counter.folder_of(lobby_id) / "log" / "0").open("a") as log:
        log.write(f"{NOW_MS}000 e one more\n")
    rows = await counter.table(await export)
    assert rows[-1]["line"] == f"line {LINES - 1}"


async def test_history_of_many_pages_is_complete(counter: Counter) -> None:
    game_id = await counter.game()
    ids = await counter.ended(game_id, 2_500)
    request = pb.ExportLobbyHistoryRequest(game_id=game_id, query_start=0, query_end=NOW_MS)
    answer = await counter.exports.lobby_history(request, counter.caller)
    key = answer.url.split("?")[0].partition(PREFIX)[2]
    assert sorted(row["lobby_id"] for row in await counter.table(key)) == sorted(ids)
