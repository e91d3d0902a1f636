"""What became of lobbies, from the data plane's facts: each applied once, lobbies that ended kept for 7 days.

How far the facts were applied is in the same transaction as what they changed, so neither a crash of this process nor
one of the data plane applies a fact twice or loses one. What is told of lobbies to others is `lobbies`' matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from pyservice.control.changes import now_ms
from pyservice.control.feeder import Away
from pyservice.control.going_on import GoingOn
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import facts_pb2 as pb
from pyservice.storage import lobbies, lobby_runs, numbers
from pyservice.storage.database import Database, Transaction

KEPT_MS: Final = 7 * 24 * 3_600_000
"""How long a lobby that ended is told of (decisions 8.3)."""

REASONS: Final = {
    pb.LOBBY_END_REASON_EXITED: "exited",
    pb.LOBBY_END_REASON_START_TIMEOUT: "start_timeout",
    pb.LOBBY_END_REASON_SILENT: "silent",
    pb.LOBBY_END_REASON_REMOVED: "removed",
    pb.LOBBY_END_REASON_STOPPED: "stopped",
}
UNKNOWN: Final = "unknown"
"""The data plane forgot the lobby, or its end was among facts that were lost."""

# A batch is applied between two turns of the loop on SQLite: this many take a few milliseconds.
_BATCH: Final = 200
_WAIT_MS: Final = 10_000
_LOOKED_FOR: Final = 1_000
_RETRIES_S: Final = (0.05, 1.0)
_PRUNE_EVERY_MS: Final = 10 * 60_000

_log = get_logger("history")

Row = dict[str, Any]


class FactsClient(Protocol):
    """The data plane, as a reader of facts sees it. Raises Away, ServiceError."""

    async def read_facts(self, request: pb.ReadRequest) -> pb.ReadResponse: ...
    async def lobby_places(self, lobby_ids: Sequence[str]) -> dict[str, pb.LobbyPlaces]: ...


class History:
    """Reads facts as long as `run` runs."""

    def __init__(
        self,
        database: Database,
        client: FactsClient,
        doubt: Callable[[], None],
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`doubt` is called when the data plane was away: it may hold something else than it did."""
        self._database = database
        self._client = client
        self._doubt = doubt
        self._now_ms = clock_ms
        self._prune_ms = 0
        self._is_gap = True
        """Ends may have been missed: what is alive here is compared with the data plane once it told all it has."""
        self.applied = asyncio.Event()
        """Of the next facts: set when they are in the records."""
        self.going = GoingOn("facts", "facts not read", Away, pauses_s=_RETRIES_S)

    async def run(self) -> None:
        """Until cancelled. What cannot be read now is read again, nothing is lost by that."""
        await self.going.for_ever(self._next)

    async def _next(self) -> None:
        try:
            await self.step(_WAIT_MS)
        except Away:
            self._doubt()
            raise

    async def step(self, wait_ms: int) -> int:
        """Reads and applies the next facts; how many there were. Raises Away, ServiceError."""
        # What may have been missed is looked for at once when nothing new comes.
        count, is_all = await self._read(0 if self._is_gap else wait_ms)
        if self._is_gap and is_all:
            count += await self._end_unseen()
        await self._prune()
        return count

    async def _read(self, wait_ms: int) -> tuple[int, bool]:
        """Applies the next facts: how many, and whether there were no more."""
        async with self._database.read() as tx:
            stream = await numbers.get_text(tx, numbers.FACTS_STREAM) or ""
            lsn = await numbers.get(tx, numbers.FACTS_LSN) or 0
        answer = await self._client.read_facts(
            pb.ReadRequest(stream=stream, acknowledged_lsn=lsn, limit=_BATCH, wait_ms=wait_ms)
        )
        if answer.lost or answer.is_restarted:
            _log.warning("facts missed", lost=answer.lost, is_restarted=answer.is_restarted)
            self._is_gap = True
        new = [fact for fact in answer.facts if answer.is_restarted or fact.lsn > lsn]
        if new or answer.is_restarted or stream != answer.stream:
            after = new[-1].lsn if new else (0 if answer.is_restarted else lsn)
            async with self._database.write() as tx:
                await _apply(tx, new)
                if stream != answer.stream:
                    await numbers.put_text(tx, numbers.FACTS_STREAM, answer.stream)
                await numbers.put(tx, numbers.FACTS_LSN, after)
            applied, self.applied = self.applied, asyncio.Event()
            applied.set()
        return len(new), len(answer.facts) < _BATCH

    async def _end_unseen(self) -> int:
        """Lobbies that are alive here and unknown there ended without anybody having been told; or they ended since
        the facts were read, so those are read first. How many facts there were.
        """
        gone = await self._gone()
        self._is_gap, count, is_all = False, 0, not gone
        while not is_all:
            read, is_all = await self._read(0)
            count += read
        for start in range(0, len(gone), _LOOKED_FOR):
            async with self._database.write() as tx:
                few = gone[start : start + _LOOKED_FOR]
                await lobbies.end_unseen(tx, few, UNKNOWN, self._now_ms())
        return count

    async def _gone(self) -> list[str]:
        """Those that are alive here and not there."""
        gone: list[str] = []
        after = ""
        while True:
            async with self._database.read() as tx:
                ids = await lobbies.live(tx, after, _LOOKED_FOR)
            if not ids:
                return gone
            alive = await self._client.lobby_places(ids)
            gone += [one for one in ids if one not in alive]
            after = ids[-1]

    async def _prune(self) -> None:
        now = self._now_ms()
        if now < self._prune_ms:
            return
        await lobbies.forget_stopped(self._database, now - KEPT_MS)
        await lobby_runs.forget(self._database, now - KEPT_MS)
        self._prune_ms = now + _PRUNE_EVERY_MS


async def _apply(tx: Transaction, facts: Sequence[pb.Fact]) -> None:
    """All of them, with one statement each for what is new and what changes."""
    ids = sorted({fact.lobby_id for fact in facts})
    known = {row.lobby_id: dict(row._mapping) for row in await lobbies.find_many(tx, ids)}
    rows = {one: dict(row) for one, row in known.items()}
    fold(rows, facts)
    await lobbies.add_many(tx, [row for one, row in rows.items() if one not in known])
    changed = [row for one, row in rows.items() if one in known and row != known[one]]
    await lobbies.change_many(tx, changed)


def fold(rows: dict[str, Row], facts: Iterable[pb.Fact]) -> None:
    """What the lobbies are after these facts. A fact that comes again changes nothing; of a lobby whose beginning was
    lost nothing is known before its end, which tells it again.
    """
    for fact in facts:
        row = rows.get(fact.lobby_id)
        what = fact.WhichOneof("what")
        if row is None:
            if what not in ("made", "ended"):
                continue
            about = fact.made.about if what == "made" else fact.ended.about
            row = rows[fact.lobby_id] = _new(fact, about)
        match what:
            case "ready":
                row["ready_ms"] = row["ready_ms"] or fact.ts_ms
            case "closed":
                row["is_closed"] = fact.closed.is_closed
            case "stopping":
                row["is_stopping"] = True
            case "ended":
                _end(row, fact)


def _new(fact: pb.Fact, about: pb.LobbyAbout) -> Row:
    return {
        "lobby_id": fact.lobby_id,
        "namespace_id": fact.namespace_id,
        "game_mode": about.game_mode,
        "region_id": about.region,
        "version_id": about.version_id,
        "publicity": "public" if about.is_public else "private",
        "is_closed": False,
        "is_stopping": False,
        "create_ms": about.create_ts_ms or fact.ts_ms,
        "ready_ms": None,
        "stop_ms": None,
        "stop_reason": None,
        "exit_code": None,
        "peak_players": 0,
        "player_ms": 0,
        "connections": 0,
        "reserved_count": 0,
        "connected_count": 0,
    }


def _end(row: Row, fact: pb.Fact) -> None:
    ended = fact.ended
    row["stop_ms"] = fact.ts_ms
    row["stop_reason"] = REASONS.get(ended.reason, UNKNOWN)
    row["exit_code"] = ended.exit_code if ended.HasField("exit_code") else None
    row["peak_players"] = ended.peak_players
    row["player_ms"] = ended.player_ms
    row["connections"] = ended.connections
    row["reserved_count"] = ended.reserved_count
    row["connected_count"] = ended.connected_count
