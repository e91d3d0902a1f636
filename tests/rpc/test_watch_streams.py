"""A stream repeats a watched operation: it sends the current response, then each newer one until
the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pyservice.calls import Call, Caller, Operation, TokenKind
from pyservice.errors import ServiceError
from pyservice.observability.metrics import RequestMetrics
from pyservice.pb.hosting.v1 import events_pb2 as pb
from pyservice.rpc import RpcServer
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

GET = "hosting.v1.Events.GetLiveEvents"


class Counter:
    """Responds with its number. A request with the same number waits for the next one."""

    def __init__(self) -> None:
        self.number = 0
        self.watch_indexes: list[str] = []
        self.left_count = 0
        self._changed = asyncio.Condition()
        self.impatient = 0

    async def raise_to(self, number: int) -> None:
        async with self._changed:
            self.number = number
            self._changed.notify_all()

    def authorize(self, call: Call) -> Caller:
        if call.authorization != "Bearer pub_good":
            raise ServiceError("TOKEN_INVALID")
        return Caller(TokenKind.CHANNEL, b"", b"", b"", call)

    async def run(
        self, request: pb.GetLiveEventsRequest, caller: Caller
    ) -> pb.GetLiveEventsResponse:
        self.watch_indexes.append(request.watch_index)
        try:
            if self.impatient:
                self.impatient -= 1
            else:
                async with self._changed:
                    await self._changed.wait_for(lambda: str(self.number) != request.watch_index)
        except asyncio.CancelledError:
            self.left_count += 1
            raise
        await asyncio.sleep(0)
        return pb.GetLiveEventsResponse(watch={"index": str(self.number)})


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture(params=[False, True], ids=["public", "internal"])
async def channel(
    counter: Counter, request: pytest.FixtureRequest
) -> AsyncIterator[grpc.aio.Channel]:
    settings = TransportSettings(is_internal=request.param)
    operations = {GET: Operation(GET, counter.authorize, counter.run)}
    limit_of = Limits().data_plane_limit
    server = RpcServer(operations, settings, RequestMetrics(), limit_of, "127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0.0)


def _stream(
    channel: grpc.aio.Channel, token: str = "pub_good", watch_index: str | None = None
) -> grpc.aio.UnaryStreamCall[Any, pb.StreamLiveEventsResponse]:
    method = channel.unary_stream(
        "/hosting.v1.Events/StreamLiveEvents",
        request_serializer=pb.StreamLiveEventsRequest.SerializeToString,
        response_deserializer=pb.StreamLiveEventsResponse.FromString,
    )
    request = pb.StreamLiveEventsRequest(watch_index=watch_index)
    return method(request, metadata=(("authorization", f"Bearer {token}"),))


async def _next_index(
    stream: grpc.aio.UnaryStreamCall[Any, pb.StreamLiveEventsResponse],
) -> str:
    answer = await stream.read()
    assert isinstance(answer, pb.StreamLiveEventsResponse)
    return answer.watch.index


async def test_stream_sends_the_current_and_each_newer_response(
    channel: grpc.aio.Channel, counter: Counter
) -> None:
    stream = _stream(channel)
    for number in (0, 5, 6):
        await counter.raise_to(number)
        assert await _next_index(stream) == str(number)
    assert counter.watch_indexes[:3] == ["", "0", "5"]
    stream.cancel()


async def test_stream_starts_at_the_clients_index(
    channel: grpc.aio.Channel, counter: Counter
) -> None:
    await counter.raise_to(3)
    stream = _stream(channel, watch_index="3")
    reading = asyncio.ensure_future(_next_index(stream))
    await until_met(lambda: counter.watch_indexes == ["3"])
    assert not reading.done()
    await counter.raise_to(4)
    assert await reading == "4"
    stream.cancel()


async def test_equal_response_is_not_sent_twice(
    channel: grpc.aio.Channel, counter: Counter
) -> None:
    counter.impatient = 20
    stream = _stream(channel)
    assert await _next_index(stream) == "0"
    await until_met(lambda: len(counter.watch_indexes) >= 20)
    await counter.raise_to(1)
    assert await _next_index(stream) == "1"
    stream.cancel()


async def test_disconnect_ends_the_waiting_request(
    channel: grpc.aio.Channel, counter: Counter
) -> None:
    stream = _stream(channel)
    await stream.read()
    await until_met(lambda: len(counter.watch_indexes) >= 2)
    stream.cancel()
    await until_met(lambda: counter.left_count)


async def test_error_ends_the_stream_with_its_code(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _stream(channel, token="bad").read()
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
