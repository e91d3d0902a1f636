"""Cost of one call through `pyservice._native`: decisions about usual requests, without a journal.

Baseline: a call without arguments that returns one number. Each round is a batch of calls with fresh tokens, so that
the clock costs nothing. Run with `python -m bench.run boundary`.
"""

from __future__ import annotations

from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pyservice import _native
from pyservice.calls import Call, EncodedRequest
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

CALLS = 1_000
"""Calls per round. `bench/boundary.py` divides the times by this number."""
ROUNDS = 200
SLOTS = 4 * CALLS
NAMESPACE = bytes([1] * 16)
VERSION = bytes([2] * 16)
MODE, REGION = "duel", "local"
CLIENT = ip_address("127.0.0.1")


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
            MODE,
            REGION,
            [("game", "127.0.0.1", 7777, False)],
            max_players=(SLOTS, SLOTS, SLOTS),
            player_token_ttl_ms=3_600_000,
            heartbeat_timeout_ms=0,
            heartbeat_grace_ms=10_000,
            is_join_enabled=True,
            create_ts_ms=0,
            lobby_count_max=10,
        )
        self.decide = self._matchmaker().decide
        public = self.engine.public_token(NAMESPACE, bytes([5] * 16))
        join = pb.JoinLobbyRequest(lobby_id=format_uuid(self.lobby))
        find = pb.FindLobbyRequest(game_modes=[MODE])
        self.placement = {
            "join": request("join", public, join.SerializeToString()),
            "find": request("find", public, find.SerializeToString()),
        }
        self.decide(request("ready", self.lobby_token, b""))

    def _matchmaker(self) -> _native.Matchmaker:
        mode: Any = SimpleNamespace(
            name=MODE,
            max_players=SLOTS,
            max_players_direct=SLOTS,
            max_players_party=SLOTS,
            is_find_enabled=True,
            is_taggable=False,
            is_listable=False,
            is_max_players_dynamic=False,
            regions=None,
            create_publicities=frozenset(),
            port_ranges={},
        )
        namespaces = _native.Namespaces()
        namespaces.put(
            _native.Namespace(
                NAMESPACE,
                label="game/live",
                version=VERSION,
                group=NAMESPACE,
                source_limit=SLOTS,
                needs_admission=False,
                modes=[mode],
                hosts=(),
                service_tokens=(),
                revoked=(),
            )
        )
        unlimited = _native.Buckets(0, 1, 1)
        return _native.Matchmaker(
            self.engine,
            namespaces,
            [(REGION, "Self-hosted", "Local", 0.0, 0.0)],
            _native.PlayerAddresses(None, "127.0.0.1", "local", False),
            (unlimited, unlimited, unlimited, unlimited, unlimited),
        )

    def of_server(self, operation: str, player_token: str) -> EncodedRequest:
        message = pb.PlayerConnectedRequest(player_token=player_token)
        return request(operation, self.lobby_token, message.SerializeToString())

    def fresh_tokens(self) -> list[str]:
        return [player_token(self.decide(self.placement["join"])) for _ in range(CALLS)]

    def connected_tokens(self) -> list[str]:
        tokens = self.fresh_tokens()
        for token in tokens:
            self.decide(self.of_server("connected", token))
        return tokens

    def empty(self, tokens: list[str]) -> None:
        for token in tokens:
            self.decide(self.of_server("disconnected", token))

    def players(self) -> tuple[int, int, int, int]:
        lobby = self.engine.lobby(self.lobby)
        assert lobby is not None
        return lobby.players


def request(operation: str, token: str, message: bytes) -> EncodedRequest:
    call = Call("0" * 32, CLIENT.packed, f"Bearer {token}", client=CLIENT)
    return EncodedRequest(operation, call, "proto", message)


def player_token(decision: _native.Decision) -> str:
    assert decision.reply is not None
    return pb.JoinLobbyResponse.FromString(decision.reply.proto()).player.token


@pytest.fixture
def filled_lobby() -> FilledLobby:
    return FilledLobby()


def test_connected_with_fresh_tokens(
    filled_lobby: FilledLobby, benchmark: BenchmarkFixture
) -> None:
    decide = filled_lobby.decide
    used: list[list[str]] = []

    def fresh() -> tuple[tuple[list[EncodedRequest]], dict[str, object]]:
        while used:
            filled_lobby.empty(used.pop())
        used.append(filled_lobby.fresh_tokens())
        assert filled_lobby.players() == (0, CALLS, 0, 0)
        return ([filled_lobby.of_server("connected", token) for token in used[0]],), {}

    def call(requests: list[EncodedRequest]) -> None:
        for one in requests:
            decide(one)

    timed(benchmark, call, setup=fresh)
    assert filled_lobby.players() == (0, 0, CALLS, 0)


def test_disconnected(filled_lobby: FilledLobby, benchmark: BenchmarkFixture) -> None:
    decide = filled_lobby.decide

    def connected() -> tuple[tuple[list[EncodedRequest]], dict[str, object]]:
        assert filled_lobby.players() == (0, 0, 0, 0)
        tokens = filled_lobby.connected_tokens()
        return ([filled_lobby.of_server("disconnected", token) for token in tokens],), {}

    def call(requests: list[EncodedRequest]) -> None:
        for one in requests:
            decide(one)

    timed(benchmark, call, setup=connected)
    assert filled_lobby.players() == (0, 0, 0, 0)


@pytest.mark.parametrize("operation", ["join", "find"])
def test_reservation(
    filled_lobby: FilledLobby, benchmark: BenchmarkFixture, operation: str
) -> None:
    decide, placement = filled_lobby.decide, filled_lobby.placement[operation]
    decisions: list[_native.Decision] = []

    def empty() -> None:
        filled_lobby.empty([player_token(decision) for decision in decisions])
        decisions.clear()
        assert filled_lobby.players() == (0, 0, 0, 0)

    def call() -> None:
        for _ in range(CALLS):
            decisions.append(decide(placement))

    timed(benchmark, call, setup=empty)
    assert filled_lobby.players() == (0, CALLS, 0, 0)
    assert len({player_token(decision) for decision in decisions}) == CALLS


def test_refusal(filled_lobby: FilledLobby, benchmark: BenchmarkFixture) -> None:
    decide = filled_lobby.decide
    (token, *_) = filled_lobby.connected_tokens()
    repeated = filled_lobby.of_server("connected", token)
    error = decide(repeated).error
    assert error is not None
    assert error.code == "PLAYER_TOKEN_CONSUMED"

    def call() -> int:
        return sum(decide(repeated).error is not None for _ in range(CALLS))

    assert timed(benchmark, call) == CALLS


def test_nothing(filled_lobby: FilledLobby, benchmark: BenchmarkFixture) -> None:
    """Measures the baseline: a call without arguments that returns a number."""
    wake_fd = filled_lobby.engine.wake_fd
    assert wake_fd() == -1

    def call() -> None:
        for _ in range(CALLS):
            wake_fd()

    timed(benchmark, call)
