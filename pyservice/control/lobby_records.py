"""Lobby records, built from facts of the data plane. A fact is an event in the life of a lobby.

A record is stored for 7 days after the end of its lobby. The position in the fact stream and the
effects of facts are stored in one transaction, so each fact is applied exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.retrying_job import RetryingJob
from pyservice.edge_guard.admin_socket import SessionReading
from pyservice.errors import ServiceError, Unreachable
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import facts_pb2
from pyservice.pb.hosting.v1 import logs_pb2 as pb
from pyservice.pb.hosting.v1.servers_pb2 import ResourceUsage
from pyservice.runtime.run_requests import LobbyProgress
from pyservice.storage import lobbies, service_state
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.timestamps import now_ms, query_milliseconds, rfc3339

LOBBY_RETENTION_MS: Final = 7 * 24 * 3_600_000

STOP_REASONS: Final = {
    facts_pb2.LOBBY_END_REASON_EXITED: "exited",
    facts_pb2.LOBBY_END_REASON_START_TIMEOUT: "start_timeout",
    facts_pb2.LOBBY_END_REASON_SILENT: "silent",
    facts_pb2.LOBBY_END_REASON_REMOVED: "removed",
    facts_pb2.LOBBY_END_REASON_STOPPED: "stopped",
}
UNKNOWN: Final = "unknown"

# Facts of one transaction. SQLite needs a few milliseconds for them on the event loop.
_BATCH: Final = 200
_WAIT_MS: Final = 10_000
_LOBBIES_PER_QUERY: Final = 1_000
_RETRIES_S: Final = (0.05, 1.0)
_PAUSE_S: Final = 0.02
"""Pause after each answer, so that one transaction has all facts of that time."""
_PRUNE_EVERY_MS: Final = 10 * 60_000

_log = get_logger("history")

Row = dict[str, Any]


class FactSource(Protocol):
    async def read_facts(self, request: facts_pb2.ReadRequest) -> facts_pb2.ReadResponse: ...


class FactsClient(FactSource, Protocol):
    async def slot_counts(
        self, lobby_ids: Sequence[str], sessions: SessionReading | None = None
    ) -> dict[str, facts_pb2.LobbySlots]: ...


class LobbyFactReader:
    def __init__(
        self,
        database: Database,
        client: FactsClient,
        on_disconnect: Callable[[], None],
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`on_disconnect` is called when the data plane is unavailable. It must request a
        comparison of configurations, because the data plane may have lost state.
        """
        self._database = database
        self._client = client
        self._on_disconnect = on_disconnect
        self._now_ms = clock_ms
        self._prune_ms = 0
        self._is_gap = True
        """True if facts may be lost. Live lobbies are then compared after the last fact."""
        self.facts_applied = asyncio.Event()
        self.job = RetryingJob("facts", "facts not read", Unreachable, pauses_s=_RETRIES_S)

    async def run(self) -> None:
        await self.job.repeat_forever(self._next, every_s=_PAUSE_S)

    async def _next(self) -> None:
        try:
            await self.step(_WAIT_MS)
        except Unreachable:
            self._on_disconnect()
            raise

    async def step(self, wait_ms: int) -> int:
        """Reads and applies the next facts, and returns their number."""
        # A gap is resolved as soon as no facts wait.
        count, is_all = await self._read(0 if self._is_gap else wait_ms)
        if self._is_gap and is_all:
            count += await self._end_unseen()
        await self._prune()
        return count

    async def _read(self, wait_ms: int) -> tuple[int, bool]:
        async with self._database.read() as tx:
            stream = await service_state.get_text(tx, service_state.FACTS_STREAM) or ""
            lsn = await service_state.get_int(tx, service_state.FACTS_LSN) or 0
        response = await self._client.read_facts(
            facts_pb2.ReadRequest(
                stream=stream, acknowledged_lsn=lsn, limit=_BATCH, wait_ms=wait_ms
            )
        )
        if response.lost or response.is_restarted:
            _log.warning("facts missed", lost=response.lost, is_restarted=response.is_restarted)
            self._is_gap = True
        new = [fact for fact in response.facts if response.is_restarted or fact.lsn > lsn]
        if new or response.is_restarted or stream != response.stream:
            after = new[-1].lsn if new else (0 if response.is_restarted else lsn)
            async with self._database.write() as tx:
                await _apply(tx, new)
                if stream != response.stream:
                    await service_state.put_text(tx, service_state.FACTS_STREAM, response.stream)
                await service_state.put_int(tx, service_state.FACTS_LSN, after)
            previous, self.facts_applied = self.facts_applied, asyncio.Event()
            previous.set()
        return len(new), len(response.facts) < _BATCH

    async def _end_unseen(self) -> int:
        vanished = await self._vanished_lobbies()
        self._is_gap, count, is_all = False, 0, not vanished
        while not is_all:
            number, is_all = await self._read(0)
            count += number
        for start in range(0, len(vanished), _LOBBIES_PER_QUERY):
            async with self._database.write() as tx:
                batch = vanished[start : start + _LOBBIES_PER_QUERY]
                await lobbies.end_missing(tx, batch, UNKNOWN, self._now_ms())
        return count

    async def _vanished_lobbies(self) -> list[str]:
        vanished: list[str] = []
        after = ""
        while True:
            async with self._database.read() as tx:
                ids = await lobbies.live_ids(tx, after, _LOBBIES_PER_QUERY)
            if not ids:
                return vanished
            alive = await self._client.slot_counts(ids)
            vanished += [lobby_id for lobby_id in ids if lobby_id not in alive]
            after = ids[-1]

    async def _prune(self) -> None:
        now = self._now_ms()
        if now < self._prune_ms:
            return
        await lobbies.remove_stopped(self._database, now - LOBBY_RETENTION_MS)
        await lobbies.remove_ended_runs(self._database, now - LOBBY_RETENTION_MS)
        self._prune_ms = now + _PRUNE_EVERY_MS


async def _apply(tx: Transaction, facts: Sequence[facts_pb2.Fact]) -> None:
    ids = sorted({fact.lobby_id for fact in facts})
    stored = {row.lobby_id: dict(row._mapping) for row in await lobbies.find_many(tx, ids)}
    rows = {lobby_id: dict(row) for lobby_id, row in stored.items()}
    apply_facts(rows, facts)
    await lobbies.add_many(tx, [row for lobby_id, row in rows.items() if lobby_id not in stored])
    changed_rows = [
        row for lobby_id, row in rows.items() if lobby_id in stored and row != stored[lobby_id]
    ]
    await lobbies.change_many(tx, changed_rows)


def apply_facts(rows: dict[str, Row], facts: Iterable[facts_pb2.Fact]) -> None:
    """Applies facts to the lobby records in `rows`. A fact that was applied before changes nothing.

    Facts of a lobby without a record are skipped, except the facts of its creation and its end.
    """
    for fact in facts:
        row = rows.get(fact.lobby_id)
        what = fact.WhichOneof("what")
        if row is None:
            if what not in ("made", "ended"):
                continue
            lobby = fact.made.about if what == "made" else fact.ended.about
            row = rows[fact.lobby_id] = _new_row(fact, lobby)
        match what:
            case "ready":
                row["ready_ms"] = row["ready_ms"] or fact.ts_ms
            case "closed":
                row["is_closed"] = fact.closed.is_closed
            case "stopping":
                row["is_stopping"] = True
            case "ended":
                _end(row, fact)


def _new_row(fact: facts_pb2.Fact, lobby: facts_pb2.LobbyAbout) -> Row:
    return {
        "lobby_id": fact.lobby_id,
        "namespace_id": fact.namespace_id,
        "game_mode": lobby.game_mode,
        "region_id": lobby.region,
        "version_id": lobby.version_id,
        "publicity": "public" if lobby.is_public else "private",
        "is_closed": False,
        "is_stopping": False,
        "create_ms": lobby.create_ts_ms or fact.ts_ms,
        "ready_ms": None,
        "stop_ms": None,
        "stop_reason": None,
        "exit_code": None,
        "peak_players": 0,
        "player_ms": 0,
        "connections": 0,
        "reserved_count": 0,
        "connected_count": 0,
        "cpu_millicores": lobby.cpu_millicores,
        "memory_mb": lobby.memory_mb,
        "is_trial": lobby.is_trial,
    }


def _end(row: Row, fact: facts_pb2.Fact) -> None:
    end = fact.ended
    row["stop_ms"] = fact.ts_ms
    row["stop_reason"] = STOP_REASONS.get(end.reason, UNKNOWN)
    row["exit_code"] = end.exit_code if end.HasField("exit_code") else None
    row["peak_players"] = end.peak_players
    row["player_ms"] = end.player_ms
    row["connections"] = end.connections
    row["reserved_count"] = end.reserved_count
    row["connected_count"] = end.connected_count


async def read_unapplied_facts(
    database: Database, client: FactSource, count_max: int
) -> Sequence[facts_pb2.Fact]:
    """Returns the oldest facts that are not applied to the lobby records yet."""
    async with database.read() as tx:
        stream = await service_state.get_text(tx, service_state.FACTS_STREAM) or ""
        lsn = await service_state.get_int(tx, service_state.FACTS_LSN) or 0
    request = facts_pb2.ReadRequest(stream=stream, acknowledged_lsn=lsn, limit=count_max)
    return (await client.read_facts(request)).facts


_FACT_TIMEOUT_S: Final = 1.0
_UNAPPLIED_MAX: Final = 1_000

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class LobbyRecordLookup:
    database: Database
    client: FactsClient
    history: LobbyFactReader
    start_limit_ms: int
    """Time until a lobby that is not ready fails."""

    async def find(
        self, lobby_id: str, read_record: Callable[[], Awaitable[_Found | None]]
    ) -> _Found | None:
        """Returns a lobby's record, or None. If a live lobby has no record yet, waits up to one
        second for the record.
        """
        record = await read_record()
        if record is not None or not await self._is_alive(lobby_id):
            return record
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FACT_TIMEOUT_S):
                while record is None:
                    # Taken before the read, so that no facts are missed.
                    facts_applied = self.history.facts_applied
                    record = await read_record()
                    if record is None:
                        await facts_applied.wait()
        return record

    async def find_in_game(self, caller: Caller, game_id: str, lobby_id: str) -> Record:

        async def read() -> Record | None:
            async with self.database.read() as tx:
                game = await authorization.find_game(tx, caller, game_id)
                return await lobbies.of_game(tx, game.game_id, lobby_id)

        record = await self.find(lobby_id, read)
        if record is None:
            raise ServiceError("MATCHMAKER_LOBBY_NOT_FOUND")
        return record

    async def progress(self, lobby_id: str) -> LobbyProgress | None:
        """Returns what a lobby has reached, or None if that is unknown.

        Facts that are not applied to its record yet count too.
        """
        try:
            # Read before the record, so that no fact is missed.
            facts = await read_unapplied_facts(self.database, self.client, _UNAPPLIED_MAX)
            async with self.database.read() as tx:
                stored = await lobbies.find_many(tx, [lobby_id])
        except (ServiceError, Unreachable):
            return None
        rows = {row.lobby_id: dict(row._mapping) for row in stored}
        apply_facts(rows, (fact for fact in facts if fact.lobby_id == lobby_id))
        row = rows.get(lobby_id)
        if row is None:
            return None
        timeout_s = None
        if row["stop_reason"] == "start_timeout":
            # The measured time can be longer. The error of a waiting request has the same number.
            timeout_s = self.start_limit_ms / 1000
            if row["is_trial"]:
                # No request waits for a trial, which has a limit of its own.
                timeout_s = min(timeout_s, (row["stop_ms"] - row["create_ms"]) / 1000)
        return LobbyProgress(row["ready_ms"] is not None, timeout_s)

    async def _is_alive(self, lobby_id: str) -> bool:
        try:
            return lobby_id in await self.client.slot_counts([lobby_id])
        except Unreachable:
            return False


PAGE: Final = 64
_COUNTED_PER_QUERY: Final = 1_000
RUN_FAILURE_CODES: Final = {
    "exec_failed": "EXEC_FAILED",
    "out_of_memory": "OUT_OF_MEMORY",
    "out_of_disk": "OUT_OF_DISK",
    "build_unusable": "BUILD_UNUSABLE",
    "capacity": "CAPACITY_EXHAUSTED",
    "no_ports": "PORTS_UNAVAILABLE",
    "tier_unknown": "TIER_UNKNOWN",
    "lost": "LOST",
}

_FAILURES: Final = {"start_timeout": "START_TIMEOUT", "silent": "SILENT", "unknown": "UNKNOWN"}


@dataclass(frozen=True, slots=True)
class LobbyRecordOperations:
    database: Database
    client: FactsClient
    record_lookup: LobbyRecordLookup
    started_ms: Callable[[str], int | None]
    problem: Callable[[str], str | None]
    usage: Callable[[str], ResourceUsage | None]
    read_sessions: Callable[[Sequence[str]], Awaitable[SessionReading | None]]
    """Reads the sessions of lobbies at edge-guard. Returns None if it does not respond in time."""
    clock_ms: Callable[[], int] = now_ms

    async def list_(
        self, request: pb.ListLobbyRecordsRequest, caller: Caller
    ) -> pb.ListLobbyRecordsResponse:
        before_ms = None
        if request.HasField("before_create_ts"):
            text, reason = request.before_create_ts, "must be a valid time"
            before_ms = query_milliseconds(text, "before_create_ts", reason)
        kept_since_ms = self.clock_ms() - LOBBY_RETENTION_MS
        async with self.database.read() as tx:
            namespace = await authorization.find_namespace(tx, caller, request)
            page = await lobbies.page(
                tx,
                namespace.namespace_id,
                before_ms,
                kept_since_ms,
                PageBounds.of(request, PAGE),
                # Clients that page by time miss no lobby of the last millisecond.
                is_whole_ms=not (request.HasField("limit") or request.HasField("cursor")),
            )
            runs = await lobbies.find_ended_runs(tx, [row.lobby_id for row in page.rows])
        records = await self._records(page.rows, runs, namespace.version_id)
        return pb.ListLobbyRecordsResponse(lobbies=records, cursor=page.cursor)

    async def get(
        self, request: pb.GetLobbyRecordRequest, caller: Caller
    ) -> pb.GetLobbyRecordResponse:
        kept_since_ms = self.clock_ms() - LOBBY_RETENTION_MS

        async def read() -> tuple[Record, dict[str, Record], str] | None:
            async with self.database.read() as tx:
                namespace = await authorization.find_namespace(tx, caller, request)
                row = await lobbies.get(tx, namespace.namespace_id, request.lobby_id, kept_since_ms)
                runs = await lobbies.find_ended_runs(tx, [request.lobby_id])
            return None if row is None else (row, runs, namespace.version_id)

        found = await self.record_lookup.find(request.lobby_id, read)
        if found is None:
            raise ServiceError("MATCHMAKER_LOBBY_NOT_FOUND")
        row, runs, version_id = found
        [record] = await self._records([row], runs, version_id)
        return pb.GetLobbyRecordResponse(lobby=record)

    async def _records(
        self, rows: Sequence[Record], runs: Mapping[str, Record], version_id: str
    ) -> list[pb.LobbyRecord]:
        live = [row.lobby_id for row in rows if row.stop_ms is None]
        slot_counts: dict[str, facts_pb2.LobbySlots] = {}
        try:
            for start in range(0, len(live), _COUNTED_PER_QUERY):
                lobby_ids = live[start : start + _COUNTED_PER_QUERY]
                sessions = await self.read_sessions(lobby_ids)
                slot_counts |= await self.client.slot_counts(lobby_ids, sessions)
        except Unreachable:
            raise ServiceError(
                "CONTROL_PLANE_UNAVAILABLE",
                "The data plane, which counts players, does not answer; try again.",
            ) from None
        records = []
        for row in rows:
            run = runs.get(row.lobby_id)
            start_ms = self.started_ms(row.lobby_id) if run is None else run.start_ms
            record = _record(row, slot_counts.get(row.lobby_id), version_id, _failure(row, run))
            if record.status.HasField("stopped"):
                record.status.stopped.exit_code = _exit_code(row, run)
            if start_ms is not None:
                record.start_ts = rfc3339(start_ms)
            problem = self.problem(row.lobby_id) if run is None else run.message
            if problem:
                record.problem = problem
            usage = self.usage(row.lobby_id) if row.stop_ms is None else None
            if usage is not None:
                usage.player_count = record.connected_count
                record.usage.CopyFrom(usage)
            records.append(record)
        return records


def _record(
    row: Record,
    slot_counts: facts_pb2.LobbySlots | None,
    current_version_id: str,
    failure: str | None,
) -> pb.LobbyRecord:
    is_over = row.stop_ms is not None
    # A lobby that just ended has no counts until its end fact is applied.
    counts = row if is_over else slot_counts or facts_pb2.LobbySlots()
    stopped = None
    if is_over:
        stopped = pb.LobbyStopped(stop_ts=rfc3339(row.stop_ms), failed=failure is not None)
    is_old = row.is_stopping or row.version_id != current_version_id
    return pb.LobbyRecord(
        lobby_id=row.lobby_id,
        namespace_id=row.namespace_id,
        lobby_group_name_id=row.game_mode,
        region_id=row.region_id,
        create_ts=rfc3339(row.create_ms),
        ready_ts=None if row.ready_ms is None else rfc3339(row.ready_ms),
        status=pb.LobbyRecordStatus(running=pb.LobbyRunning(), stopped=stopped),
        publicity=row.publicity,
        version_id=row.version_id,
        is_closed=row.is_closed,
        is_draining=is_old and not is_over and not row.is_trial,
        is_trial=row.is_trial or None,
        reserved_count=counts.reserved_count,
        connected_count=counts.connected_count,
        suspect_count=_suspect_count(slot_counts) if not is_over else None,
        failure=failure,
        state=_state(row, failure),
    )


def _suspect_count(slot_counts: facts_pb2.LobbySlots | None) -> int | None:
    if slot_counts is None or not slot_counts.HasField("suspect_count"):
        return None
    return slot_counts.suspect_count


def _state(row: Record, failure: str | None) -> str:
    if row.stop_ms is not None:
        return "stopped" if failure is None else "failed"
    return "starting" if row.ready_ms is None else "running"


def _exit_code(row: Record, run: Record | None) -> int:
    if row.exit_code is None and run is not None:
        return run.exit_code or 0
    return row.exit_code or 0


def _failure(row: Record, run: Record | None) -> str | None:
    if row.stop_ms is None:
        return None
    if row.stop_reason == "exited":
        if run is not None and run.reason in RUN_FAILURE_CODES:
            return RUN_FAILURE_CODES[run.reason]
        return "EXITED" if row.exit_code or row.ready_ms is None else None
    return _FAILURES.get(row.stop_reason)
