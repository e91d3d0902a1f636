from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from pyservice.observability.metrics import RequestMetrics
from pyservice.rpc import slow_message_limits
from pyservice.transport import KIB, MIB, TransportSettings
from tests.support.forwarding_pair import until
from tests.support.raw_http2 import RawCalls, message_of
from tests.support.sample_service import CONNECTED, GOOD, LOBBY_ID, GrpcApi, SmallService, open_api

pytestmark = pytest.mark.anyio

CONNECTED_PATH = "/hosting.v1.Matchmaker/PlayerConnected"
LARGEST = 256 * KIB
SETTINGS = TransportSettings(message_limit_bytes=64 * KIB, bodies_limit_bytes=512 * KIB)
"""16 permits for slow messages."""
PERMITS = 16
JOIN_PATH = "/hosting.v1.Matchmaker/JoinLobby"
"""Operation that needs no token."""
REFLECTION_PATH = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@dataclass
class Stage:
    api: GrpcApi
    port: int
    service: SmallService
    metrics: RequestMetrics

    def codes(self, slug: str = "connected") -> dict[str, int]:
        return self.metrics.grpc.meters[slug].codes


@pytest.fixture
def settings() -> TransportSettings:
    return SETTINGS


@pytest.fixture
async def stage(settings: TransportSettings) -> AsyncIterator[Stage]:
    service, metrics = SmallService(), RequestMetrics()
    async with open_api("grpc", service, settings, metrics) as api:
        assert isinstance(api, GrpcApi)
        yield Stage(api, api.port, service, metrics)


Open = Callable[[str], Awaitable[RawCalls]]


@pytest.fixture
async def raw(stage: Stage) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def open_calls(client: str) -> RawCalls:
            calls = await RawCalls.open("127.0.0.1", stage.port, client)
            stack.push_async_callback(calls.close)
            return calls

        yield open_calls


async def begin(
    calls: RawCalls,
    number: int,
    path: str = CONNECTED_PATH,
    metadata: Mapping[str, str] = GOOD,
    after: int = 0,
) -> None:
    """Starts this number of calls and sends each large message without its end, on streams after
    the first.
    """
    streams = range(2 * after + 1, 2 * (after + number), 2)
    for stream in streams:
        calls.begin(stream, path, metadata)
    message = message_of(LARGEST)[:-1]
    await asyncio.gather(*(calls.send(stream, message) for stream in streams))


def streams_of(number: int) -> set[int]:
    return set(range(1, 2 * number, 2))


async def test_slowest_message_of_the_busiest_address_is_dropped(stage: Stage, raw: Open) -> None:
    greedy = await raw("127.0.4.1")
    await begin(greedy, PERMITS + 4)
    await greedy.wait_ended(4)
    assert (greedy.ended, stage.codes()["OVERLOADED"]) == (streams_of(4), 4)
    many = [await raw(f"127.0.4.{number}") for number in range(2, 7)]
    await asyncio.gather(*(begin(calls, 2) for calls in many))
    await greedy.wait_ended(14)
    assert greedy.ended == streams_of(14)
    assert (await stage.api.call("PlayerConnected", CONNECTED)).code == "OK"
    # A call with a permit may finish its message.
    for calls in many:
        assert calls.ended == set()
        await calls.send(1, b"x", is_last=True)
        await calls.wait_ended(1)
    assert stage.codes()["BODY_TOO_LARGE"] == len(many)
    for calls in (greedy, *many):
        await calls.close()
    await until(lambda: stage.metrics.grpc.in_flight == 0)


@pytest.mark.parametrize("settings", [TransportSettings()])
async def test_slow_clients_of_one_address_are_all_served(stage: Stage, raw: Open) -> None:
    """Clients behind one wireless network share an address, and each needs a second for a small
    message.
    """
    token, padding = b"some token", b"x" * 6 * KIB
    data = b"\x0a\x0a" + token + b"\xc2\x3e\x80\x30" + padding
    message = b"\0" + len(data).to_bytes(4, "big") + data
    clients = [await raw("127.0.4.1") for _ in range(100)]
    for client in clients:
        client.begin(1, CONNECTED_PATH, GOOD)
    for start in range(0, len(message), 1 * KIB):
        piece, is_last = message[start : start + KIB], start + KIB >= len(message)
        await asyncio.gather(*(client.send(1, piece, is_last=is_last) for client in clients))
        await asyncio.sleep(0.15)
    await asyncio.gather(*(client.wait_ended(1) for client in clients))
    assert stage.codes() == {"OK": 100}


async def test_message_without_a_required_token_is_not_read(stage: Stage, raw: Open) -> None:
    for number, (metadata, code) in enumerate(
        [({}, "TOKEN_MISSING"), ({"authorization": "Bearer nonsense"}, "TOKEN_INVALID")]
    ):
        calls = await raw(f"127.0.4.{number}")
        for stream in streams_of(30):
            calls.begin(stream, CONNECTED_PATH, metadata)
        await calls.send(1, b"")
        await calls.wait_ended(30)
        assert stage.codes()[code] == 30


async def test_tokenless_attackers_do_not_block_clients_with_tokens(
    stage: Stage, raw: Open
) -> None:
    """The attackers are slower than every client with a token and use the same address."""
    honest = await raw("127.0.4.1")
    await begin(honest, 8, JOIN_PATH)
    hoarders = [await raw(f"127.0.4.{number}") for number in range(2, 8)]
    await asyncio.gather(*(begin(calls, 6, JOIN_PATH, {}) for calls in hoarders))
    refused = 8 + 6 * len(hoarders) - PERMITS
    await until(lambda: sum(len(calls.ended) for calls in hoarders) == refused)
    assert stage.codes("join")["OVERLOADED"] == refused
    assert {len(calls.ended) for calls in hoarders} <= {4, 5}
    assert honest.ended == set()


async def test_idle_streams_are_dropped_first(stage: Stage, raw: Open) -> None:
    calls, stubborn = await raw("127.0.4.1"), await raw("127.0.4.2")
    for stream in streams_of(12):
        calls.begin(stream, REFLECTION_PATH)
        # The message requests a list of the services.
        await calls.send(stream, b"\0\0\0\0\x02\x3a\0")
    await begin(calls, 6, after=12)
    await calls.wait_ended(2)
    assert calls.ended < streams_of(12)
    await begin(stubborn, 10)
    await calls.wait_ended(12)
    assert (calls.ended, stubborn.ended) == (streams_of(12), set())


async def test_calls_over_twice_the_limit_are_rejected_at_once(
    stage: Stage, raw: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_message_limits, "_GRACE_S", 3600.0)
    calls = await raw("127.0.4.1")
    await begin(calls, 2 * PERMITS + 5)
    await calls.wait_ended(5)
    assert calls.ended == streams_of(5)


@pytest.mark.parametrize("settings", [TransportSettings(receive_timeout_ms=1_000)])
async def test_unfinished_message_times_out(stage: Stage, raw: Open) -> None:
    calls = await raw("127.0.4.1")
    calls.begin(1, CONNECTED_PATH, GOOD)
    await calls.send(1, message_of(100)[:-1])
    await calls.wait_ended(1)
    assert stage.codes()["REQUEST_TIMEOUT"] == 1


async def test_call_without_a_message_is_an_error(stage: Stage, raw: Open) -> None:
    calls = await raw("127.0.4.1")
    calls.begin(1, CONNECTED_PATH, GOOD)
    await calls.send(1, b"", is_last=True)
    await calls.wait_ended(1)
    assert stage.codes()["BODY_INVALID"] == 1


@pytest.mark.parametrize(
    "path", ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", REFLECTION_PATH]
)
async def test_unknown_method_has_the_same_limits(stage: Stage, raw: Open, path: str) -> None:
    calls = await raw("127.0.4.1")
    await begin(calls, PERMITS + 4, path)
    await calls.wait_ended(4)
    assert calls.ended == streams_of(4)


async def test_stream_holds_no_large_message(stage: Stage) -> None:
    watching: Any = stage.api.channel.unary_stream("/grpc.health.v1.Health/Watch")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await watching(message_of(100 * KIB)[5:]).read()
    assert "at most 65536 bytes, not 102400" in (raised.value.details() or "")
    assert stage.metrics.grpc.body_bytes == 0


@pytest.mark.parametrize("settings", [TransportSettings(bodies_limit_bytes=2 * MIB)])
async def test_large_messages_count_until_their_response(stage: Stage) -> None:
    """grpcio accepts messages up to 4 MiB, which fit into the budget."""
    padding, size = b"x" * 900 * KIB, 900 * KIB
    # The server ignores the unknown field, but its bytes count as received.
    coded = [size & 127 | 128, size >> 7 & 127 | 128, size >> 14]
    message = b"\x0a\x24" + LOBBY_ID.encode() + b"\xc2\x3e" + bytes(coded) + padding
    method: Any = stage.api.channel.unary_unary("/hosting.v1.Matchmaker/JoinLobby")
    calls = [method(message, metadata=tuple(GOOD.items())) for _ in range(6)]
    body_bytes = 4 * len(message)
    codes = stage.metrics.grpc.meters["join"].codes
    await until(lambda: codes.get("OVERLOADED") == 2)
    assert stage.metrics.grpc.body_bytes == body_bytes
    assert (await stage.api.call("PlayerConnected", CONNECTED)).code == "OK"
    refused = [call for call in calls if call.done()]
    [first, second] = [call for call in calls if not call.done()][:2]
    assert [await call.code() for call in refused] == [grpc.StatusCode.UNAVAILABLE] * 2
    first.cancel()
    await until(lambda: stage.metrics.grpc.body_bytes == body_bytes - len(message))
    stage.service.may_join.set()
    await second
    await until(lambda: stage.metrics.grpc.body_bytes == 0)
