"""Record of requests and responses under load, with checks of the service's guarantees.

Times are on the monotonic clock of the test process. A slot counts as taken only while the service
must hold it, so a reported violation is always real.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

# Deadlines are exact to 10 ms. The test process adds its own delay.
SLACK_S = 0.5


@dataclass(slots=True)
class Lobby:
    id: str
    token: str
    limit: int


@dataclass(slots=True)
class Ticket:
    token: str
    lobby_id: str
    ttl_s: float
    asked_at: float
    answered_at: float
    connect_asked_at: float | None = None
    connected_at: float | None = None
    freed_at: float | None = None

    @property
    def surely_until(self) -> float:
        end = float("inf") if self.connected_at is not None else self.asked_at + self.ttl_s
        return end if self.freed_at is None else min(end, self.freed_at)


@dataclass(slots=True)
class Ledger:
    lobbies: dict[str, Lobby] = field(default_factory=dict)
    tickets: dict[str, Ticket] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _clear_at: float = 0.0

    def record(
        self, tokens: list[str], lobby_id: str, ttl_s: float, asked_at: float
    ) -> list[Ticket]:
        now = time.monotonic()
        self._clear_at = max(self._clear_at, now + ttl_s)
        created = []
        for token in tokens:
            assert token not in self.tickets, f"one token for two requests: {token[-12:]}"
            ticket = Ticket(token, lobby_id, ttl_s, asked_at, now)
            self.tickets[token] = ticket
            created.append(ticket)
        self.counts["tokens"] += len(created)
        return created

    def lost(self, ttl_s: float) -> None:
        self.counts["lost without key"] += 1
        self._clear_at = max(self._clear_at, time.monotonic() + ttl_s)

    def check_connected(self, ticket: Ticket, code: str, *, is_repeat: bool, has_key: bool) -> None:
        now = time.monotonic()
        if code == "PLAYER_TOKEN_EXPIRED":
            assert now >= ticket.asked_at + ticket.ttl_s, "an answered token expired early"
            self.counts["expired"] += 1
            return
        if code == "PLAYER_TOKEN_CONSUMED":
            assert is_repeat, "an unused token is consumed"
            assert not has_key, "a repeat under its key did not replay the response"
            self.counts["consumed by a lost call"] += 1
        else:
            assert code == "OK", f"an answered token is refused: {code}"
        ticket.connected_at = now
        self.counts["connected"] += 1
        assert ticket.connect_asked_at is not None
        latest = ticket.answered_at + ticket.ttl_s + SLACK_S
        assert ticket.connect_asked_at <= latest, "a token was valid after its deadline"

    def clear_at(self) -> float:
        return self._clear_at + SLACK_S

    def check_limits(self) -> None:
        """Checks that the number of taken slots never exceeded the limit of a lobby."""
        changes: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        for ticket in self.tickets.values():
            if ticket.surely_until > ticket.answered_at:
                changes[ticket.lobby_id].append((ticket.answered_at, 1))
                changes[ticket.lobby_id].append((ticket.surely_until, -1))
        for lobby_id, moments in changes.items():
            slot_counts = itertools.accumulate(change for _, change in sorted(moments))
            most = max(slot_counts)
            limit = self.lobbies[lobby_id].limit
            assert most <= limit, f"{most} slots of {limit} were taken at once"

    def still_connected(self) -> list[Ticket]:
        return [
            ticket
            for ticket in self.tickets.values()
            if ticket.connected_at is not None and ticket.freed_at is None
        ]
