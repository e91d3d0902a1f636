from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, cast

from pyservice.calls import Caller
from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.concurrency.fair_queue import FairQueue
from pyservice.control import authorization
from pyservice.control.audit_log import AuditLog
from pyservice.control.fair_thread_pool import FairThreadPool
from pyservice.control.lobby_records import LobbyRecordLookup
from pyservice.control.lobby_runs import LobbyProcess
from pyservice.control.name_rules import require_valid
from pyservice.control.quotas import QuotaChecks, Room
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError, field_problem
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import logs_pb2 as pb
from pyservice.runtime.run_folder import LogLine, LogStream, RunFolder
from pyservice.storage import lobbies, uploads
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.objects import Objects, ObjectWriter, RunStep
from pyservice.timestamps import now_ms, rfc3339

EXPORT_URL_EXPIRES_S: Final = 3_600
_EXPORTS_AT_ONCE: Final = 4
_CLEANUP_INTERVAL_S: Final = 600.0
_RETRIES_S: Final = (5.0, _CLEANUP_INTERVAL_S)
_LATE_MS: Final = 3_600_000
_STEP_S: Final = 0.05
"""A step yields to other tenants after this time."""
_INERT: Final = ("=", "+", "-", "@", "\t", "\r")
_PAGE_ROWS: Final = 1_000
HISTORY_COLUMNS: Final = (
    *("lobby_id", "namespace_id", "namespace_name", "region_id", "tier", "version_id"),
    *("version_name", "game_mode", "start_ts", "stop_ts", "total_uptime_ms", "query_uptime_ms"),
    *("peak_players", "stop_reason"),
)


class LocalRuns(Protocol):
    def folder_of(self, run_id: str) -> Path: ...
    def processes(self, run_ids: Sequence[str]) -> dict[str, LobbyProcess]:
        """Returns the processes of runs that have not ended, by run id. Blocks."""
        ...


class LobbyExportOperations:
    def __init__(
        self,
        database: Database,
        objects: Objects,
        ids: RecordIds,
        record_lookup: LobbyRecordLookup,
        node: LocalRuns,
        clock_ms: Callable[[], int] = now_ms,
        quotas: QuotaChecks | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._quotas = quotas or QuotaChecks()
        self._audit = audit or AuditLog()
        self._database = database
        self._objects = objects
        self._ids = ids
        self._record_lookup = record_lookup
        self._node = node
        self._now_ms = clock_ms
        self._threads = FairThreadPool(1, "exports")
        self._permits = FairQueue(_EXPORTS_AT_ONCE, 1)
        self.job = RetryingJob("exports", "exports not removed", pauses_s=_RETRIES_S)

    async def stop(self) -> None:
        await asyncio.to_thread(self._threads.close)

    async def lobby_logs(
        self, request: pb.ExportLobbyLogsRequest, caller: Caller
    ) -> pb.ExportLobbyLogsResponse:
        row = await self._record_lookup.find_in_game(caller, request.game_id, request.lobby_id)
        async with self._database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
        stream = cast(LogStream, request.stream)
        folder = RunFolder(self._node.folder_of(row.lobby_id))

        async def write(writer: _BoundedWriter, run: RunStep) -> None:
            end = await run(folder.end)
            turn = partial(_write_log_page, folder.lines(), end, stream)
            await writer.write(csv_rows([_LOG_COLUMNS]))
            is_more = True
            while is_more:
                content, is_more = await run(turn)
                await writer.write(content)

        record = partial(self._audit.add, caller=caller, request=request)
        filename = f"{row.lobby_id}-{stream}.csv"
        url = await self._write_export(game.group_id, filename, write, record)
        return pb.ExportLobbyLogsResponse(url=url)

    async def lobby_history(
        self, request: pb.ExportLobbyHistoryRequest, caller: Caller
    ) -> pb.ExportLobbyHistoryResponse:
        if request.query_end < request.query_start:
            require_valid(
                [field_problem(["query_end"], "too-low", "must not be before query_start")]
            )
        span = (request.query_start, request.query_end)
        async with self._database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)

        async def write(writer: _BoundedWriter, run: RunStep) -> None:
            await writer.write(csv_rows([HISTORY_COLUMNS]))
            after, is_more = "", True
            while is_more:
                async with self._database.read() as tx:
                    page = await lobbies.alive_between(tx, game.game_id, *span, after, _PAGE_ROWS)
                runs = await self._runs([row.lobby_id for row in page])
                turn = partial(_write_history_page, page, runs, span, self._now_ms())
                await writer.write(await run(turn))
                is_more = len(page) == _PAGE_ROWS
                after = page[-1].lobby_id if page else after

        record = partial(self._audit.add, caller=caller, request=request)
        filename = f"{game.name_id}-lobbies.csv"
        url = await self._write_export(game.group_id, filename, write, record)
        return pb.ExportLobbyHistoryResponse(url=url)

    async def _runs(self, lobby_ids: list[str]) -> Mapping[str, LobbyProcess | Record]:
        # Processes are read before records: a lobby that ends between the reads already has its record.
        processes = await asyncio.to_thread(self._node.processes, lobby_ids)
        async with self._database.read() as tx:
            return {**processes, **await lobbies.find_ended_runs(tx, lobby_ids)}

    async def run(self) -> None:
        await self.job.repeat_forever(self.delete_expired, every_s=_CLEANUP_INTERVAL_S)

    async def delete_expired(self) -> int:
        count = 0
        while True:
            async with self._database.read() as tx:
                ids = await uploads.expired_exports(tx, self._now_ms())
            if not ids:
                return count
            for export_id in ids:
                await self._objects.delete_prefix(_folder(export_id))
                await self._objects.delete(_folder(export_id))
            async with self._database.write() as tx:
                await uploads.remove_exports(tx, ids)
            count += len(ids)

    async def _write_export(
        self,
        group_id: str,
        filename: str,
        write: Callable[[_BoundedWriter, RunStep], Awaitable[None]],
        record: Callable[[Transaction], Awaitable[None]],
    ) -> str:
        async with self._permits.permit(None, group_id):
            export_id = self._ids.new()
            expires_ms = self._now_ms() + EXPORT_URL_EXPIRES_S * 1000 + _LATE_MS
            # The record comes first, because files without a record are never deleted.
            async with self._database.write() as tx:
                room = await self._quotas.room(tx, group_id, "export_bytes")
                await uploads.add_export(tx, export_id, expires_ms, group_id)
            key = f"{_folder(export_id)}/csv"
            writer = self._objects.writer(key)
            bounded = _BoundedWriter(writer, room)
            try:
                await write(bounded, partial(self._threads.run, group_id))
                # The audit log says that the export exists, so the file comes first.
                await writer.commit()
                async with self._database.write() as tx:
                    added = {"export_bytes": bounded.written}
                    await self._quotas.require(tx, group_id, added)
                    await uploads.set_export_length(tx, export_id, bounded.written)
                    await record(tx)
            except BaseException:
                with contextlib.suppress(ServiceError):
                    await await_despite_cancel(self._objects.delete_prefix(_folder(export_id)))
                raise
        return self._objects.presign_get(
            key, EXPORT_URL_EXPIRES_S, filename=filename, content_type="text/csv; charset=utf-8"
        )


class _BoundedWriter:
    """Writer that raises QUOTA_EXCEEDED as soon as an export exceeds its room."""

    def __init__(self, writer: ObjectWriter, room: Room) -> None:
        self._writer = writer
        self._room = room
        self.written = 0

    async def write(self, content: bytes) -> None:
        self.written += len(content)
        self._room.require(self.written)
        await self._writer.write(content)


def _folder(export_id: str) -> str:
    return f"exports/{export_id}"


_LOG_COLUMNS: Final = ("timestamp", "stream", "line")


def _write_log_page(lines: Iterator[LogLine], end: int, stream: LogStream) -> tuple[bytes, bool]:
    until = time.perf_counter() + _STEP_S
    is_more = False

    def rows() -> Iterator[Sequence[object]]:
        nonlocal is_more
        for line in lines:
            if line.position > end:
                return
            if line.stream == stream:
                yield rfc3339(line.time_us // 1000), stream, line.text
            if is_more := time.perf_counter() >= until:
                return

    return csv_rows(rows()), is_more


def _write_history_page(
    page: Iterable[Record],
    runs: Mapping[str, LobbyProcess | Record],
    span: tuple[int, int],
    now: int,
) -> bytes:
    return csv_rows(_history_row(row, runs.get(row.lobby_id), span, now) for row in page)


def _history_row(
    row: Record, run: LobbyProcess | Record | None, span: tuple[int, int], now: int
) -> Sequence[object]:
    # Attached lobbies run from their creation, others from the start of their process.
    start_ms = row.create_ms if run is None else run.start_ms
    end_ms = now if row.stop_ms is None else row.stop_ms
    since_ms = end_ms if start_ms is None else start_ms
    within_ms = min(end_ms, span[1]) - max(since_ms, span[0])
    return (
        row.lobby_id,
        row.namespace_id,
        row.namespace_name,
        row.region_id,
        "" if run is None else run.tier,
        row.version_id,
        row.version_name or "",
        row.game_mode,
        "" if start_ms is None else rfc3339(start_ms),
        "" if row.stop_ms is None else rfc3339(row.stop_ms),
        max(0, end_ms - since_ms),
        max(0, within_ms),
        row.peak_players,
        row.stop_reason or "",
    )


def csv_rows(rows: Iterable[Sequence[object]]) -> bytes:
    """Returns rows as CSV. Makes cells inert that a spreadsheet would run as formulas."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerows([_inert(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def _inert(cell: object) -> object:
    if isinstance(cell, str) and cell.startswith(_INERT):
        return "'" + cell
    return cell
