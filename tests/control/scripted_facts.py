"""Facts of a scripted data plane, as a reader of facts receives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from pyservice.errors import Unreachable
from pyservice.pb.hosting.internal.v1 import facts_pb2 as pb
from pyservice.timestamps import now_ms

NAMESPACE = str(uuid4())
VERSION = str(uuid4())


class ScriptedFacts:
    def __init__(self) -> None:
        self.stream = "one"
        self.facts: list[pb.Fact] = []
        self.alive: set[str] = set()
        self.lost = 0
        self.is_unavailable = False
        self.reads: list[tuple[str, int]] = []
        self.on_slot_counts: Callable[[], None] = lambda: None

    async def read_facts(self, request: pb.ReadRequest) -> pb.ReadResponse:
        if self.is_unavailable:
            raise Unreachable("unavailable")
        self.reads.append((request.stream, request.acknowledged_lsn))
        is_restarted = request.stream not in ("", self.stream)
        after = 0 if is_restarted else request.acknowledged_lsn
        new = [fact for fact in self.facts if fact.lsn > after][: request.limit]
        return pb.ReadResponse(
            stream=self.stream, is_restarted=is_restarted, facts=new, lost=self.lost
        )

    async def slot_counts(
        self, lobby_ids: Sequence[str], sessions: Any = None
    ) -> dict[str, pb.LobbySlots]:
        self.on_slot_counts()
        return {one: pb.LobbySlots(lobby_id=one) for one in lobby_ids if one in self.alive}

    def add_lobby(self, *, is_alive: bool = True) -> str:
        lobby_id = str(uuid4())
        if is_alive:
            self.alive.add(lobby_id)
        self.add_fact(lobby_id, made=pb.LobbyMade(about=about()))
        return lobby_id

    def add_fact(self, lobby_id: str, **fields: Any) -> None:
        lsn = 10 * (len(self.facts) + 1)
        fact = pb.Fact(lsn=lsn, ts_ms=now_ms(), lobby_id=lobby_id, namespace_id=NAMESPACE, **fields)
        self.facts.append(fact)


def about() -> pb.LobbyAbout:
    return pb.LobbyAbout(version_id=VERSION, game_mode="arena", region="local", create_ts_ms=1_000)


def ended(exit_code: int | None = None) -> pb.LobbyEnded:
    slots = {"reserved_count": 2, "connected_count": 1, "kept_count": 4}
    players = {"player_ms": 7, "peak_players": 3, "connections": 9, **slots}
    reason = pb.LOBBY_END_REASON_EXITED
    return pb.LobbyEnded(about=about(), reason=reason, exit_code=exit_code, **players)
