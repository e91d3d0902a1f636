"""Each request has the same outcome over HTTP and gRPC, over the front and directly to Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.faults.conftest import MakePlane
from tests.support.four_ways import WAYS, Ways
from tests.support.front_metrics import answers_of_front, passed_besides_creation
from tests.support.generated_messages import CallGenerator, GeneratedCall
from tests.support.generated_requests import PATHS, PLACEMENTS
from tests.support.killable_plane import Plane
from tests.support.twin_namespaces import SETTINGS, TwinNamespaces, start_twins

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

RENEW_EVERY: Final = 250
"""Requests after which the lobbies are replaced, so that some have free slots."""
SHARE_MIN: Final = 0.3
"""Part of the requests that the front answers itself, over each transport."""
DIFFERENCES_MAX: Final = 5


@dataclass
class Comparison:
    ways: Ways
    namespaces: TwinNamespaces
    front: Plane
    codes: Counter[str] = field(default_factory=Counter)
    native: Counter[str] = field(default_factory=Counter)
    """Number of calls that the front has answered itself, by transport."""
    differences: list[str] = field(default_factory=list)

    async def run(self, draw: Callable[[], GeneratedCall], count: int) -> None:
        """Compares generated calls. Stops after a few differences."""
        while self.codes.total() < count and len(self.differences) < DIFFERENCES_MAX:
            await self.namespaces.renew()
            before = await self._native()
            for _ in range(min(RENEW_EVERY, count - self.codes.total())):
                if not await self.compare(draw()):
                    break
            else:
                await self._compare_slots()
            self.native += await self._native() - before
        print(self.codes, self.native)
        self.check()
        assert self.codes.total() == count

    async def compare(self, call: GeneratedCall) -> str | None:
        """Returns the code if the ways have one outcome."""
        compared = await self.ways.compare(call)
        self.codes[compared.code] += 1
        if compared.difference is not None:
            self.differences.append(compared.difference)
            return None
        if compared.code == "OK" and call.operation in PLACEMENTS:
            self.namespaces.add_placed_players(compared.bodies)
        return compared.code

    def check(self) -> None:
        assert not self.differences, "\n\n".join(self.differences)

    async def _compare_slots(self) -> None:
        first, *others = await self.namespaces.slots()
        self.differences += [f"slots: {first} and {other}" for other in others if other != first]

    async def _native(self) -> Counter[str]:
        doors = ("http", "grpc")
        return Counter(
            {door: await answers_of_front(self.front, *PATHS, door=door) for door in doors}
        )


StartComparison = Callable[[Sequence[str]], Awaitable[Comparison]]


@pytest.fixture
async def start(make_plane: MakePlane) -> AsyncIterator[StartComparison]:
    async with AsyncExitStack() as stack:

        async def start_ways(names: Sequence[str]) -> Comparison:
            front = make_plane(shim=None, settings=SETTINGS)
            python = make_plane(shim=None, settings=SETTINGS | {"front": "off"})
            planes = {way: front if way.startswith("front") else python for way in names}
            namespaces = await start_twins(planes)
            addresses = {way: plane.addresses["grpc"] for way, plane in planes.items()}
            ways = Ways(namespaces.twins, addresses)
            stack.push_async_callback(ways.close)
            return Comparison(ways, namespaces, front)

        yield start_ways


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 300), pytest.param(2, 5_000, marks=pytest.mark.full)]
)
@pytest.mark.full
async def test_generated_calls_have_one_outcome(
    start: StartComparison, seed: int, count: int
) -> None:
    comparison = await start(WAYS)
    generator = CallGenerator(seed, comparison.namespaces.players)
    await comparison.run(generator.draw, count)
    assert all(comparison.native[door] >= SHARE_MIN * count for door in ("http", "grpc"))


@pytest.mark.parametrize(
    ("seed", "count"), [(3, 100), pytest.param(4, 2_000, marks=pytest.mark.full)]
)
async def test_unusual_encodings_have_one_outcome(
    start: StartComparison, seed: int, count: int
) -> None:
    """They exist over gRPC alone."""
    comparison = await start([way for way in WAYS if way.endswith("grpc")])
    players = comparison.namespaces.players
    await comparison.run(CallGenerator(seed, players, changes_percent=40).draw, count)


def _case(operation: str, token: str, *metadata: tuple[str, str], **fields: Any) -> GeneratedCall:
    return GeneratedCall(operation, fields, (("authorization", f"Bearer <<{token}>>"), *metadata))


KEY: Final = ("idempotency-key", "key-1")
GONE: Final = "0001aaaa-0000-4000-8000-000000000000"
CASES: Final = [
    ("OK", _case("connected", "lobby-1.token", player_token="<<of-lobby-1>>")),
    ("PLAYER_TOKEN_CONSUMED", _case("connected", "lobby-1.token", player_token="<<of-lobby-1>>")),
    (
        "PLAYER_TOKEN_WRONG_LOBBY",
        _case("connected", "lobby-1.token", player_token="<<of-lobby-2>>"),
    ),
    (
        "PLAYER_TOKEN_INVALID",
        _case("connected", "lobby-1.token", player_token="<<of-lobby-1|tampered>>"),
    ),
    ("PLAYER_REMOVED", _case("connected", "ended.token", player_token="<<of-ended>>")),
    ("BODY_INVALID", _case("connected", "lobby-1.token")),
    ("PLAYER_TOKEN_INVALID", _case("connected", "lobby-1.token", player_token="x")),
    ("FORBIDDEN", _case("connected", "own.pub", player_token="<<of-lobby-1>>")),
    ("OK", _case("disconnected", "lobby-1.token", player_token="<<of-lobby-1>>", hold_ms=1_000)),
    (
        "BODY_INVALID",
        _case("disconnected", "lobby-1.token", player_token="<<of-lobby-1>>", hold_ms=600_001),
    ),
    ("OK", _case("heartbeat", "lobby-1.token")),
    ("OK", _case("heartbeat", "lobby-1.token", player_tokens=["<<of-lobby-1>>"])),
    ("OK", _case("join", "own.env", lobby_id="<<lobby-1.id>>", party_size=3)),
    ("OK", _case("join", "own.pub", lobby_id="<<lobby-1.id>>")),
    ("OK", _case("join", "own.pub", KEY, lobby_id="<<lobby-1.id>>")),
    ("OK", _case("join", "own.pub", KEY, lobby_id="<<lobby-1.id>>")),
    ("IDEMPOTENCY_KEY_REUSED", _case("join", "own.pub", KEY, lobby_id="<<lobby-2.id>>")),
    (
        "HEADER_INVALID",
        _case("join", "own.pub", ("idempotency-key", "a b"), lobby_id="<<lobby-1.id>>"),
    ),
    ("BODY_INVALID", _case("join", "own.env", lobby_id="x", party_size=65, client_address="x")),
    ("MATCHMAKER_LOBBY_NOT_FOUND", _case("join", "own.env", lobby_id=GONE)),
    ("MATCHMAKER_LOBBY_NOT_FOUND", _case("join", "own.env", lobby_id="<<far-lobby.id>>")),
    ("MATCHMAKER_LOBBY_STOPPED", _case("join", "own.env", lobby_id="<<ended.id>>")),
    ("MATCHMAKER_LOBBY_CLOSED", _case("join", "own.env", lobby_id="<<closed.id>>")),
    ("MATCHMAKER_LOBBY_FULL", _case("join", "own.env", lobby_id="<<lobby-4.id>>", party_size=3)),
    ("MATCHMAKER_JOIN_DISABLED", _case("join", "own.env", lobby_id="<<unjoinable.id>>")),
    (
        "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
        _case("join", "far.pub", lobby_id="<<far-lobby.id>>", party_size=4),
    ),
    ("OK", _case("find", "own.env", game_modes=["hall"], regions=["west"], client_address="::1")),
    (
        "MATCHMAKER_NO_AVAILABLE_LOBBIES",
        _case("find", "own.env", game_modes=["small"], regions=["east"]),
    ),
    ("MATCHMAKER_GAME_MODE_NOT_FOUND", _case("find", "own.pub", game_modes=["none"])),
    ("MATCHMAKER_FIND_DISABLED", _case("find", "own.pub", game_modes=["unfindable"])),
    (
        "MATCHMAKER_REGION_NOT_ENABLED",
        _case("find", "own.pub", game_modes=["western"], regions=["east"]),
    ),
    (
        "MATCHMAKER_REGION_NOT_FOUND",
        _case("find", "own.pub", game_modes=["hall"], regions=["none"]),
    ),
    ("BODY_INVALID", _case("find", "own.pub")),
    ("TOKEN_EXPIRED", _case("find", "own.expired", game_modes=["hall"])),
    ("TOKEN_REVOKED", _case("find", "own.revoked", game_modes=["hall"])),
    ("TOKEN_INVALID", _case("find", "own.env|tampered", game_modes=["hall"])),
    (
        "TOKEN_INVALID",
        GeneratedCall("find", {"game_modes": ["hall"]}, (("authorization", "Bearer x"),)),
    ),
    ("TOKEN_INVALID", GeneratedCall("regions", {}, (("authorization", "Basic x"),))),
    ("TOKEN_MISSING", GeneratedCall("heartbeat", {}, ())),
    ("OK", _case("regions", "own.pub")),
    ("OK", _case("list", "own.pub")),
    ("OK", _case("statistics", "own.env")),
    ("OK", _case("ready", "lobby-1.token")),
    ("OK", _case("set_state", "lobby-1.token", state=b"[1]")),
    ("OK", _case("get_state", "own.env", lobby_id="<<lobby-1.id>>")),
    ("OK", _case("closed", "lobby-1.token", is_closed=True)),
    ("MATCHMAKER_LOBBY_CLOSED", _case("join", "own.env", lobby_id="<<lobby-1.id>>")),
]


async def test_cases_have_one_outcome(start: StartComparison) -> None:
    comparison = await start(WAYS)
    namespaces = comparison.namespaces
    await namespaces.renew()
    first_players = {lobby: name for name, lobby in reversed(namespaces.players)}
    for lobby, name in first_players.items():
        for twin in namespaces.twins:
            twin.put(f"of-{lobby}", twin.values[name])
    for expected, case in CASES:
        code = await comparison.compare(case)
        if code not in (expected, None):
            comparison.differences.append(f"{code} instead of {expected}: {case}")
    comparison.check()
    _, metrics = await comparison.front.look("/metrics")
    assert passed_besides_creation(metrics) == set()
