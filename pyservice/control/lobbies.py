"""Records of lobbies for those who run them (decisions 8.3): what the facts told, with the places of now. Of a lobby
that is over the places are those of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from pyservice.calls import Caller
from pyservice.control import access
from pyservice.control.changes import now_ms
from pyservice.control.feeder import Away
from pyservice.control.history import KEPT_MS
from pyservice.control.recorded import Recorded
from pyservice.control.timestamps import milliseconds, rfc3339
from pyservice.errors import ServiceError, field_problem
from pyservice.pb.hosting.internal.v1 import facts_pb2
from pyservice.pb.hosting.v1 import logs_pb2 as pb
from pyservice.storage import lobbies, lobby_runs
from pyservice.storage.database import Database, Record

PAGE: Final = 64
_PLACES_AT_ONCE: Final = 1_000
FAILURES_OF_RUNS: Final = {
    "exec_failed": "EXEC_FAILED",
    "out_of_memory": "OUT_OF_MEMORY",
    "build_unusable": "BUILD_UNUSABLE",
    "capacity": "CAPACITY_EXHAUSTED",
    "no_ports": "PORTS_UNAVAILABLE",
    "tier_unknown": "TIER_UNKNOWN",
    "lost": "LOST",
}
"""What the runtime says of processes, in the words of records."""

_FAILURES: Final = {"start_timeout": "START_TIMEOUT", "silent": "SILENT", "unknown": "UNKNOWN"}


class PlacesClient(Protocol):
    """The data plane, as far as it knows the places of lobbies. Raises Away, ServiceError."""

    async def lobby_places(self, lobby_ids: Sequence[str]) -> dict[str, facts_pb2.LobbyPlaces]: ...


class Lobbies:
    """The operations on records of lobbies."""

    def __init__(
        self,
        database: Database,
        client: PlacesClient,
        recorded: Recorded,
        started_ms: Callable[[str], int | None],
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`started_ms`: of the process of a lobby that is not over, None where there is none."""
        self._started_ms = started_ms
        self._database = database
        self._client = client
        self._recorded = recorded
        self._now_ms = clock_ms

    async def list_(
        self, request: pb.ListLobbyRecordsRequest, caller: Caller
    ) -> pb.ListLobbyRecordsResponse:
        """Raises GAME_, NAMESPACE_NOT_FOUND, QUERY_INVALID, CONTROL_PLANE_UNAVAILABLE."""
        before_ms = None
        if request.HasField("before_create_ts"):
            before_ms = _moment(request.before_create_ts)
        kept_since_ms = self._now_ms() - KEPT_MS
        async with self._database.read() as tx:
            namespace = await access.namespace(tx, caller, request.game_id, request.namespace_id)
            rows = await lobbies.page(tx, namespace.namespace_id, before_ms, kept_since_ms, PAGE)
            runs = await lobby_runs.find_many(tx, [row.lobby_id for row in rows])
        records = await self._told(rows, runs, namespace.version_id)
        return pb.ListLobbyRecordsResponse(lobbies=records)

    async def get(
        self, request: pb.GetLobbyRecordRequest, caller: Caller
    ) -> pb.GetLobbyRecordResponse:
        """Raises GAME_, NAMESPACE_, MATCHMAKER_LOBBY_NOT_FOUND, CONTROL_PLANE_UNAVAILABLE."""
        kept_since_ms = self._now_ms() - KEPT_MS

        async def look() -> tuple[Record, dict[str, Record], str] | None:
            async with self._database.read() as tx:
                namespace = await access.namespace(
                    tx, caller, request.game_id, request.namespace_id
                )
                row = await lobbies.get(tx, namespace.namespace_id, request.lobby_id, kept_since_ms)
                runs = await lobby_runs.find_many(tx, [request.lobby_id])
            return None if row is None else (row, runs, namespace.version_id)

        there = await self._recorded.found(request.lobby_id, look)
        if there is None:
            raise ServiceError("MATCHMAKER_LOBBY_NOT_FOUND")
        row, runs, version_id = there
        [record] = await self._told([row], runs, version_id)
        return pb.GetLobbyRecordResponse(lobby=record)

    async def _told(
        self, rows: Sequence[Record], runs: Mapping[str, Record], version_id: str
    ) -> list[pb.LobbyRecord]:
        live = [row.lobby_id for row in rows if row.stop_ms is None]
        places: dict[str, facts_pb2.LobbyPlaces] = {}
        try:
            for start in range(0, len(live), _PLACES_AT_ONCE):
                places |= await self._client.lobby_places(live[start : start + _PLACES_AT_ONCE])
        except Away:
            raise ServiceError(
                "CONTROL_PLANE_UNAVAILABLE",
                "The data plane counts the players and does not answer; try again.",
            ) from None
        records = []
        for row in rows:
            run = runs.get(row.lobby_id)
            start_ms = self._started_ms(row.lobby_id) if run is None else run.start_ms
            record = _record(row, places.get(row.lobby_id), version_id, _failure(row, run))
            if record.status.HasField("stopped"):
                record.status.stopped.exit_code = _exit_code(row, run)
            if start_ms is not None:
                record.start_ts = rfc3339(start_ms)
            records.append(record)
        return records


def _record(
    row: Record,
    places: facts_pb2.LobbyPlaces | None,
    current_version_id: str,
    failure: str | None,
) -> pb.LobbyRecord:
    is_over = row.stop_ms is not None
    # One that ended between two looks has no places any more, and its end is not told yet.
    at = row if is_over else places or facts_pb2.LobbyPlaces()
    stopped = None
    if is_over:
        stopped = pb.LobbyStopped(
            stop_ts=rfc3339(row.stop_ms),
            failed=failure is not None,
        )
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
        is_draining=is_old and not is_over,
        reserved_count=at.reserved_count,
        connected_count=at.connected_count,
        failure=failure,
    )


def _exit_code(row: Record, run: Record | None) -> int:
    """As it was when the lobby ended by it, or when the process ended after the lobby."""
    if row.exit_code is None and run is not None:
        return run.exit_code or 0
    return row.exit_code or 0


def _failure(row: Record, run: Record | None) -> str | None:
    """Why a lobby that is over failed; None: it did not, or is not over."""
    if row.stop_ms is None:
        return None
    if row.stop_reason == "exited":
        if run is not None and run.reason in FAILURES_OF_RUNS:
            return FAILURES_OF_RUNS[run.reason]
        return "EXITED" if row.exit_code or row.ready_ms is None else None
    return _FAILURES.get(row.stop_reason)


def _moment(text: str) -> int:
    try:
        return milliseconds(text)
    except ValueError:
        problem = field_problem(["before_create_ts"], "invalid", "must be a time that exists")
        raise ServiceError("QUERY_INVALID", errors=[problem]) from None
