"""Outbox of lobby facts and counts for the control plane: `hosting.internal.v1.Facts`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_resources import NO_RESOURCES, Resources
from pyservice.dataplane.native import Fact, Lobby
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.ids import format_uuid
from pyservice.pb.hosting.internal.v1 import facts_pb2 as pb
from pyservice.schema.validation import require_valid

_FACTS_MAX: Final = 1_000
_POLL_INTERVAL_S: Final = 0.25
# Delay that collects facts of many journal batches, which may be thousands a second.
_BATCH_DELAY_S: Final = 0.05
_FACTS_INTERVAL_S: Final = 0.05
_COUNTS_INTERVAL_S: Final = 0.2

_REASONS: Final = {
    "exited": pb.LOBBY_END_REASON_EXITED,
    "start_timeout": pb.LOBBY_END_REASON_START_TIMEOUT,
    "silent": pb.LOBBY_END_REASON_SILENT,
    "removed": pb.LOBBY_END_REASON_REMOVED,
    "stopped": pb.LOBBY_END_REASON_STOPPED,
}

Result = TypeVar("Result")


class FactsOutbox:
    def __init__(
        self,
        source: Engine,
        size_of: Callable[[bytes], Resources] = lambda _: NO_RESOURCES,
        source_of: Callable[[bytes, str], int] = lambda _namespace, _address: 0,
        suspect_slot_ms: int = 60_000,
    ) -> None:
        """`size_of` returns the resources of a lobby, by its id.

        `source_of` returns the hash of a player's address in a namespace. A slot is suspect if its
        player has had no session for `suspect_slot_ms`.
        """
        self._source_of = source_of
        self._suspect_slot_ms = suspect_slot_ms
        self._source = source
        self._size_of = size_of
        self._next_facts_s = 0.0
        self._next_counts_s = 0.0

    async def read(self, request: pb.ReadRequest) -> pb.ReadResponse:
        """Returns the next facts, and deletes the facts that the request acknowledges."""
        require_valid(request)
        source = self._source
        after = request.acknowledged_lsn
        # An unknown LSN comes from another directory, or this directory was restored from a copy.
        is_restarted = request.stream not in ("", source.facts_stream) or (
            after > source.status().durable
        )
        if is_restarted:
            after = 0
        source.acknowledge_facts(after)
        limit = request.limit or _FACTS_MAX
        facts = await self._poll(
            0 if is_restarted else request.wait_ms,
            self._next_facts_s,
            lambda: source.read_facts(after, limit),
            lambda facts: bool(facts.facts),
        )
        is_full = len(facts.facts) == limit
        self._next_facts_s = _now_s() + (0 if is_full else _FACTS_INTERVAL_S)
        return pb.ReadResponse(
            stream=source.facts_stream,
            is_restarted=is_restarted,
            facts=map(self._fact, facts.facts),
            lost=facts.lost,
            oldest_lsn=facts.oldest,
        )

    def _fact(self, fact: Fact) -> pb.Fact:
        message = _fact(fact)
        if message.HasField("made"):
            about, size = message.made.about, self._size_of(fact.lobby)
            about.cpu_millicores, about.memory_mb = size.cpu_millicores, size.memory_mb
        return message

    async def counts(self, request: pb.CountsRequest) -> pb.CountsResponse:
        require_valid(request)
        generation, is_all, rows = await self._poll(
            request.wait_ms,
            self._next_counts_s,
            lambda: self._source.counts(request.after_generation),
            lambda counts: counts[0] != request.after_generation,
        )
        self._next_counts_s = _now_s() + _COUNTS_INTERVAL_S
        return pb.CountsResponse(
            generation=generation,
            is_all=is_all,
            namespaces=(
                pb.NamespaceCounts(
                    namespace_id=format_uuid(namespace), player_count=players, lobby_count=lobbies
                )
                for namespace, players, lobbies in rows
            ),
        )

    async def lobbies(self, request: pb.LobbiesRequest) -> pb.LobbiesResponse:
        """Returns the slot counts of those given lobbies that have not ended.

        A lobby that is missing in the response has ended. The fact of its end is durable, and a
        later read returns it.
        """
        require_valid(request)
        pairs = [(each, self._source.lobby(raw_id(each))) for each in request.lobby_ids]
        if not all(lobby for _, lobby in pairs):
            await self._source.wait_all_durable(None)
        sessions = {one.lobby_id: one for one in request.sessions}
        response = pb.LobbiesResponse()
        for lobby_id, lobby in pairs:
            if lobby is not None:
                suspects = None
                if lobby_id in sessions:
                    suspects = self._suspects(lobby, sessions[lobby_id], request.sessions_age_ms)
                response.lobbies.append(_slot_counts(lobby_id, lobby, suspects))
        return response

    def _suspects(self, lobby: Lobby, sessions: pb.LobbySessions, age_ms: int) -> int | None:
        """Returns the number of suspect slots, or None if it is unknown."""
        by_source = [
            (self._source_of(lobby.namespace, client.address), client.count)
            for client in sessions.clients
        ]
        ages_ms = (self._suspect_slot_ms, age_ms)
        return self._source.suspect_slots(lobby.id, by_source, sessions.others, ages_ms)

    async def _poll(
        self,
        wait_ms: int,
        not_before_s: float,
        read_next: Callable[[], Result],
        is_new: Callable[[Result], bool],
    ) -> Result:
        end_s = _now_s() + wait_ms / 1000
        pause_s = min(end_s, not_before_s) - _now_s()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        while not is_new(result := read_next()) and (left_s := end_s - _now_s()) > 0:
            await self._source.wait_for_change(min(left_s, _POLL_INTERVAL_S))
            await asyncio.sleep(min(left_s, _BATCH_DELAY_S))
        return result


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _fact(fact: Fact) -> pb.Fact:
    message = pb.Fact(
        lsn=fact.lsn,
        ts_ms=fact.ts_ms,
        lobby_id=format_uuid(fact.lobby),
        namespace_id=format_uuid(fact.namespace),
    )
    match fact.kind:
        case "made":
            message.made.about.CopyFrom(_lobby_about(fact))
        case "ready":
            message.ready.SetInParent()
        case "closed" | "opened":
            message.closed.is_closed = fact.kind == "closed"
        case "stopping":
            message.stopping.SetInParent()
        case "ended":
            message.ended.CopyFrom(_lobby_ended(fact))
        case kind:
            raise RuntimeError(f"a fact of an unknown kind: {kind}")
    return message


def _lobby_ended(fact: Fact) -> pb.LobbyEnded:
    reserved_count, connected_count, kept_count = fact.players or (0, 0, 0)
    return pb.LobbyEnded(
        about=_lobby_about(fact),
        reason=_REASONS[fact.reason or ""],
        exit_code=fact.exit_code,
        player_ms=fact.player_ms or 0,
        peak_players=fact.peak_players or 0,
        connections=fact.connections or 0,
        reserved_count=reserved_count,
        connected_count=connected_count,
        kept_count=kept_count,
    )


def _lobby_about(fact: Fact) -> pb.LobbyAbout:
    find, direct, party = fact.max_players or (0, 0, 0)
    return pb.LobbyAbout(
        version_id=format_uuid(fact.version or bytes(16)),
        game_mode=fact.mode or "",
        region=fact.region or "",
        is_public=bool(fact.is_public),
        is_trial=bool(fact.is_trial),
        max_players=find,
        max_players_direct=direct,
        max_players_party=party,
        create_ts_ms=fact.create_ts_ms or 0,
    )


def _slot_counts(lobby_id: str, lobby: Lobby, suspect_count: int | None) -> pb.LobbySlots:
    hold_count, reserved_count, connected_count, kept_count = lobby.players
    return pb.LobbySlots(
        lobby_id=lobby_id,
        reserved_count=hold_count + reserved_count,
        connected_count=connected_count,
        kept_count=kept_count,
        suspect_count=suspect_count,
    )
