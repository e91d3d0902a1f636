"""Cost of one call through `pyservice._native`: the hot operations without a journal, and a refused command.

Baseline: a call without arguments that returns one number. Each round is a batch of calls with fresh tokens, so that
the clock costs nothing. Run with `python -m bench.run boundary`.
"""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pyservice import _native

CALLS = 1_000
"""Calls per round. `bench/boundary.py` divides the times by this number."""
ROUNDS = 200
SLOTS = 4 * CALLS
NAMESPACE = bytes([1] * 16)
VERSION = bytes([2] * 16)
MODES = ["duel"]
REGIONS = ["local"]


def timed(benchmark: BenchmarkFixture, call: Any, setup: Any = None) -> Any:
    pedantic: Any = benchmark.pedantic
    return pedantic(call, setup=setup, rounds=ROUNDS, iterations=1)


class FilledLobby:
    def __init__(self) -> None:
        assert _native.build_profile == "release"
        self.engine = _native.Engine.open(
            None, mac_keys=[(1, bytes([3] * 32))], current_key=1, hash_key=bytes([4] * 32)
        )
        self.lobby, self.lobby_token, _ = self.engine.attach(
            NAMESPACE,
            VERSION,
            MODES[0],
            REGIONS[0],
            [("game", "127.0.0.1", 7777, False)],
            max_players=(SLOTS, SLOTS, SLOTS),
            player_token_ttl_ms=3_600_000,
            heartbeat_timeout_ms=0,
            heartbeat_grace_ms=10_000,
            is_join_enabled=True,
            create_ts_ms=0,
            lobby_count_max=10,
        )
        self.engine.ready(self.lobby)
        self.source = self.engine.source(NAMESPACE, bytes([127, 0, 0, 1]))

    def fresh_tokens(self) -> list[str]:
        return [self._join() for _ in range(CALLS)]

    def _join(self) -> str:
        return self.engine.join(NAMESPACE, self.lobby, source=self.source).tokens[0]

    def connected_tokens(self) -> list[str]:
        tokens = self.fresh_tokens()
        for token in tokens:
            self.engine.connected(self.lobby, token)
        return tokens

    def empty(self, tokens: list[str]) -> None:
        for token in tokens:
            self.engine.disconnected(self.lobby, token)

    def players(self) -> tuple[int, int, int, int]:
        lobby = self.engine.lobby(self.lobby)
        assert lobby is not None
        return lobby.players


@pytest.fixture
def filled_lobby() -> FilledLobby:
    return FilledLobby()


def test_connected_with_fresh_tokens(
    filled_lobby: FilledLobby, benchmark: BenchmarkFixture
) -> None:
    connected, lobby = filled_lobby.engine.connected, filled_lobby.lobby
    used: list[list[str]] = []

    def fresh() -> tuple[tuple[list[str]], dict[str, object]]:
        while used:
            filled_lobby.empty(used.pop())
        used.append(filled_lobby.fresh_tokens())
        assert filled_lobby.players() == (0, CALLS, 0, 0)
        return (used[0],), {}

    def call(tokens: list[str]) -> None:
        for token in tokens:
            connected(lobby, token)

    timed(benchmark, call, setup=fresh)
    assert filled_lobby.players() == (0, 0, CALLS, 0)


def test_disconnected(filled_lobby: FilledLobby, benchmark: BenchmarkFixture) -> None:
    disconnected, lobby = filled_lobby.engine.disconnected, filled_lobby.lobby

    def connected() -> tuple[tuple[list[str]], dict[str, object]]:
        assert filled_lobby.players() == (0, 0, 0, 0)
        return (filled_lobby.connected_tokens(),), {}

    def call(tokens: list[str]) -> None:
        for token in tokens:
            disconnected(lobby, token)

    timed(benchmark, call, setup=connected)
    assert filled_lobby.players() == (0, 0, 0, 0)


@pytest.mark.parametrize("operation", ["join", "find"])
def test_reservation(
    filled_lobby: FilledLobby, benchmark: BenchmarkFixture, operation: str
) -> None:
    join, find, lobby, source = (
        filled_lobby.engine.join,
        filled_lobby.engine.find,
        filled_lobby.lobby,
        filled_lobby.source,
    )
    placements: list[_native.Placed] = []

    def empty() -> None:
        filled_lobby.empty([placed.tokens[0] for placed in placements])
        placements.clear()
        assert filled_lobby.players() == (0, 0, 0, 0)

    def call_join() -> None:
        for _ in range(CALLS):
            placements.append(join(NAMESPACE, lobby, source=source))

    def call_find() -> None:
        for _ in range(CALLS):
            placements.append(find(NAMESPACE, VERSION, MODES, REGIONS, (), source=source))

    call = call_join if operation == "join" else call_find
    timed(benchmark, call, setup=empty)
    assert filled_lobby.players() == (0, CALLS, 0, 0)
    assert len({placed.tokens[0] for placed in placements}) == CALLS


def test_refusal(filled_lobby: FilledLobby, benchmark: BenchmarkFixture) -> None:
    connected, lobby = filled_lobby.engine.connected, filled_lobby.lobby
    (token, *_) = filled_lobby.connected_tokens()
    with pytest.raises(_native.Refused) as refused:
        connected(lobby, token)
    assert refused.value.slug == "PLAYER_TOKEN_CONSUMED"

    def call() -> int:
        count = 0
        for _ in range(CALLS):
            try:
                connected(lobby, token)
            except _native.Refused:
                count += 1
        return count

    assert timed(benchmark, call) == CALLS


def test_nothing(filled_lobby: FilledLobby, benchmark: BenchmarkFixture) -> None:
    """Measures the baseline: a call without arguments that returns a number."""
    wake_fd = filled_lobby.engine.wake_fd
    assert wake_fd() == -1

    def call() -> None:
        for _ in range(CALLS):
            wake_fd()

    timed(benchmark, call)
