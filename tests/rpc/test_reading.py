"""Messages that come slowly or not at all, and large ones: how many of them the gRPC door holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from pyservice.doors import KIB, MIB, DoorSettings
from pyservice.observability.metrics import RequestMetrics
from tests.rpc.raw_http2 import RawCalls, message_of
from tests.small_service import CONNECTED, GOOD, LOBBY_ID, GrpcDoor, SmallService, open_door
from tests.two_doors import until

pytestmark = pytest.mark.anyio

CONNECTED_PATH = "/hosting.v1.Matchmaker/PlayerConnected"
LARGEST = 256 * KIB
SETTINGS = DoorSettings(message_limit_bytes=64 * KIB, bodies_limit_bytes=2 * MIB)
"""8 places for messages that take their time, 2 of them for one address."""
PLACES, OF_ONE = 8, 2


@dataclass
class Stage:
    door: GrpcDoor
    port: int
    service: SmallService
    metrics: RequestMetrics

    def codes(self) -> dict[str, int]:
        return self.metrics.grpc.meters["connected"].codes


@pytest.fixture
def settings() -> DoorSettings:
    return SETTINGS


@pytest.fixture
async def stage(settings: DoorSettings) -> AsyncIterator[Stage]:
    service, metrics = SmallService(), RequestMetrics()
    async with open_door("grpc", service, settings, metrics) as door:
        assert isinstance(door, GrpcDoor)
        yield Stage(door, door.port, service, metrics)


Open = Callable[[str], Awaitable[RawCalls]]


@pytest.fixture
async def raw(stage: Stage) -> AsyncIterator[Open]:
    """Opens a connection from an address."""
    async with AsyncExitStack() as stack:

        async def opened(client: str) -> RawCalls:
            calls = await RawCalls.open("127.0.0.1", stage.port, client)
            stack.push_async_callback(calls.close)
            return calls

        yield opened


async def begin(calls: RawCalls, number: int, path: str = CONNECTED_PATH) -> None:
    """So many calls that send all of a large message but its end."""
    for stream in range(1, 2 * number, 2):
        calls.begin(stream, path, GOOD)
    message = message_of(LARGEST)[:-1]
    await asyncio.gather(*(calls.send(stream, message) for stream in range(1, 2 * number, 2)))


async def test_messages_that_do_not_end_have_few_places_and_others_are_served(
    stage: Stage, raw: Open
) -> None:
    greedy = await raw("127.0.4.1")
    await begin(greedy, 20)
    await greedy.wait_ended(20 - OF_ONE)
    assert stage.codes()["OVERLOADED"] == 20 - OF_ONE
    many = [await raw(f"127.0.4.{number}") for number in range(2, 10)]
    await asyncio.gather(*(begin(calls, OF_ONE) for calls in many))
    refused = 20 + OF_ONE * len(many) - PLACES
    await until(lambda: stage.codes().get("OVERLOADED", 0) == refused)
    assert (await stage.door.call("PlayerConnected", CONNECTED)).code == "OK"
    # Who has a place may end his message, whatever it says.
    kept = min({1, 3} - many[0].ended, default=0)
    if kept:
        await many[0].send(kept, b"x", is_last=True)
        await until(lambda: kept in many[0].ended)
    for calls in (greedy, *many):
        await calls.close()
    await until(lambda: stage.metrics.grpc.in_flight == 0)


@pytest.mark.parametrize("settings", [DoorSettings(receive_timeout_ms=1_000)])
async def test_a_message_that_does_not_end_in_time_is_given_up(stage: Stage, raw: Open) -> None:
    calls = await raw("127.0.4.1")
    calls.begin(1, CONNECTED_PATH, GOOD)
    await calls.send(1, message_of(100)[:-1])
    await calls.wait_ended(1)
    assert stage.codes()["REQUEST_TIMEOUT"] == 1


async def test_a_call_without_a_message_is_told_so(stage: Stage, raw: Open) -> None:
    calls = await raw("127.0.4.1")
    calls.begin(1, CONNECTED_PATH, GOOD)
    await calls.send(1, b"", is_last=True)
    await calls.wait_ended(1)
    assert stage.codes()["BODY_INVALID"] == 1


@pytest.mark.parametrize(
    "path",
    [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_what_is_not_an_operation_is_read_alike(stage: Stage, raw: Open, path: str) -> None:
    calls = await raw("127.0.4.1")
    await begin(calls, 10, path)
    await calls.wait_ended(10 - OF_ONE)


@pytest.mark.parametrize("settings", [DoorSettings(bodies_limit_bytes=2 * MIB)])
async def test_large_messages_count_until_their_answer_and_have_a_budget(stage: Stage) -> None:
    """The largest that grpcio takes is 4 MiB, for which there is room."""
    padding, size = b"x" * 900 * KIB, 900 * KIB
    # A field that nobody knows is ignored, and was received all the same.
    coded = [size & 127 | 128, size >> 7 & 127 | 128, size >> 14]
    message = b"\x0a\x24" + LOBBY_ID.encode() + b"\xc2\x3e" + bytes(coded) + padding
    method: Any = stage.door.channel.unary_unary("/hosting.v1.Matchmaker/JoinLobby")
    calls = [method(message, metadata=tuple(GOOD.items())) for _ in range(6)]
    held = 4 * len(message)
    codes = stage.metrics.grpc.meters["join"].codes
    await until(lambda: codes.get("OVERLOADED") == 2)
    assert stage.metrics.grpc.body_bytes == held
    assert (await stage.door.call("PlayerConnected", CONNECTED)).code == "OK"
    told = [call for call in calls if call.done()]
    [first, second] = [call for call in calls if not call.done()][:2]
    assert [await call.code() for call in told] == [grpc.StatusCode.UNAVAILABLE] * 2
    first.cancel()
    await until(lambda: stage.metrics.grpc.body_bytes == held - len(message))
    stage.service.may_join.set()
    await second
    await until(lambda: stage.metrics.grpc.body_bytes == 0)
