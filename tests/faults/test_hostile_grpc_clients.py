"""gRPC clients that never finish a message, or that open and reset calls without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.faults.conftest import MakePlane
from tests.support.killable_plane import Plane
from tests.support.raw_grpc_calls import call
from tests.support.raw_http2 import RawCalls, message_of
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

JOIN = "/hosting.v1.Matchmaker/JoinLobby"
CONNECTED = "/hosting.v1.Matchmaker/PlayerConnected"
UNKNOWN = "/hosting.v1.Matchmaker/Unknown"
TOKEN = {"authorization": "Bearer lobby_x"}
WAITING_CALLS = 1_000
"""Above the part of the smallest budget that one client address may use."""
CALLS_OF_EACH = 20
"""More than the connections to Python."""
GZIP = grpc.Compression.Gzip


@pytest.fixture
async def plane(make_plane: MakePlane) -> Plane:
    limits = {"slow_client_ms": 4_000, "bodies_bytes": 1 << 20}
    plane = make_plane(shim=None, settings={"http_limits": limits})
    await plane.start()
    return plane


@pytest.fixture
async def calls(plane: Plane) -> AsyncIterator[RawCalls]:
    host, port = plane.addresses["grpc"].split(":")
    calls = await RawCalls.open(host, int(port))
    yield calls
    await calls.close()


async def is_serving(plane: Plane) -> bool:
    client = plane.grpc_client()
    try:
        return await client.is_serving(PATIENCE_S)
    finally:
        await client.close()


async def test_calls_that_wait_for_their_messages_are_limited(
    plane: Plane, calls: RawCalls
) -> None:
    for number in range(WAITING_CALLS):
        calls.begin(2 * number + 1, JOIN)
    await calls.wait_ended(1)
    assert len(calls.ended) < WAITING_CALLS / 2
    labels = {"operation": "join", "door": "grpc", "code": "OVERLOADED"}
    assert await plane.metric("hosting_requests_total", **labels) >= 1
    assert await is_serving(plane)
    complete = 2 * WAITING_CALLS + 1
    calls.begin(complete, JOIN)
    await calls.send(complete, message_of(10), is_last=True)
    async with asyncio.timeout(PATIENCE_S):
        while complete not in calls.ended:
            await calls.wait_ended(len(calls.ended) + 1)


@pytest.mark.full
async def test_incomplete_message_ends_after_the_timeout(plane: Plane, calls: RawCalls) -> None:
    calls.begin(1, JOIN)
    await calls.send(1, message_of(1_000)[:500])
    await calls.wait_ended(1)
    assert await is_serving(plane)


async def test_call_without_a_token_ends_before_its_message(plane: Plane, calls: RawCalls) -> None:
    calls.begin(1, CONNECTED)
    calls.begin(3, CONNECTED, TOKEN)
    await calls.wait_ended(1)
    assert calls.ended == {1}


async def test_reset_calls_neither_block_nor_end_others(plane: Plane, calls: RawCalls) -> None:
    for number in range(20_000):
        calls.begin(2 * number + 1, JOIN)
        calls.reset(2 * number + 1)
    assert await is_serving(plane)


async def test_invalid_metadata_breaks_no_call_of_another_client(
    plane: Plane, calls: RawCalls
) -> None:
    """All calls share few connections to Python, each with a table of metadata."""
    for number in range(CALLS_OF_EACH):
        calls.begin(2 * number + 1, UNKNOWN, {"grpc-encoding": "unknown"})
        await calls.send(2 * number + 1, message_of(1), is_last=True)
    await calls.wait_ended(CALLS_OF_EACH)
    async with grpc.aio.insecure_channel(plane.addresses["grpc"], compression=GZIP) as channel:
        others = [await call(channel, UNKNOWN, b"content", ()) for _ in range(CALLS_OF_EACH)]
    assert {other.status for other in others} == {grpc.StatusCode.UNIMPLEMENTED}


async def test_calls_over_the_limit_of_a_connection_are_refused(
    plane: Plane, calls: RawCalls
) -> None:
    for number in range(1_100):
        calls.begin(2 * number + 1, JOIN)
    await calls.wait_ended(1_100 - 1_024)
    assert await is_serving(plane)
