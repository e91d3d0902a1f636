"""Memory limit for the metadata of parked gRPC calls, which the library stores until the call
ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from pyservice.observability.metrics import RequestMetrics
from pyservice.pb.hosting.v1 import groups_pb2
from pyservice.rpc import RpcServer
from pyservice.rpc.error_status import read_error
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from pyservice.watch import LongPolls
from tests.support.forwarding_pair import GROUP, GROUPS, SmallControl, open_servers, until
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

CLOUD = ("authorization", "Bearer cloud_c")
Channel = grpc.aio.Channel


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def control() -> SmallControl:
    return SmallControl()


@pytest.fixture(params=["passed on", "answered here"])
async def parking(
    request: pytest.FixtureRequest, tmp_path: Path, control: SmallControl
) -> AsyncIterator[tuple[Channel, LongPolls]]:
    """Yields a channel to a server and the object that holds its parked calls. One server forwards
    its calls, and the other handles them itself.
    """
    if request.param == "passed on":
        async with open_servers(tmp_path, control) as servers:
            yield servers.grpc.channel, servers.long_polls
    else:
        async with served_here(control) as parking:
            yield parking


@asynccontextmanager
async def served_here(control: SmallControl) -> AsyncIterator[tuple[Channel, LongPolls]]:
    long_polls = LongPolls()
    control.topics.listen(partial(long_polls.take, control.topics.run))
    server = RpcServer(
        control.operations(),
        TransportSettings(),
        RequestMetrics(),
        Limits(),
        "127.0.0.1:0",
        long_polls=long_polls,
    )
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel, long_polls
    await server.stop(0.0)


def billing(
    channel: Channel, filling_bytes: int, index: str | None = None, entries: int = 1
) -> grpc.aio.UnaryUnaryCall[Any, groups_pb2.GetGroupBillingResponse]:
    method = channel.unary_unary(
        f"/{GROUPS}/GetGroupBilling",
        request_serializer=groups_pb2.GetGroupBillingRequest.SerializeToString,
        response_deserializer=groups_pb2.GetGroupBillingResponse.FromString,
    )
    request = groups_pb2.GetGroupBillingRequest(group_id=GROUP, watch_index=index)
    filling = [("x-filling", "x" * (filling_bytes // entries))] * entries
    return method(request, metadata=(CLOUD, *filling), timeout=PATIENCE_S)


def _is_parked(long_polls: LongPolls, number: int) -> bool:
    return len(long_polls) == number


@pytest.mark.parametrize(("filling_bytes", "entries"), [(4_096, 1), (30_000, 1), (200, 200)])
async def test_call_with_large_metadata_is_not_parked(
    parking: tuple[Channel, LongPolls], filling_bytes: int, entries: int
) -> None:
    channel, long_polls = parking
    index = (await billing(channel, 0)).watch.index
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await billing(channel, filling_bytes, index, entries)
    error = read_error(raised.value)
    assert error is not None
    assert error.code == "HEADERS_TOO_LARGE"
    assert "at most 4096 bytes of metadata with watch_index" in error.detail
    assert len(long_polls) == 0


async def test_call_with_tracing_metadata_is_parked(
    parking: tuple[Channel, LongPolls], control: SmallControl
) -> None:
    channel, long_polls = parking
    index = (await billing(channel, 0)).watch.index
    call = asyncio.ensure_future(billing(channel, 3_500, index))
    await until(partial(_is_parked, long_polls, 1))
    control.pay(GROUP, "now")
    assert (await call).group.payment_succeeded_ts == "now"


async def test_call_that_need_not_wait_may_have_large_metadata(
    parking: tuple[Channel, LongPolls], control: SmallControl
) -> None:
    channel, _ = parking
    index = (await billing(channel, 30_000)).watch.index
    control.pay(GROUP, "now")
    assert (await billing(channel, 30_000, index)).group.payment_succeeded_ts == "now"
