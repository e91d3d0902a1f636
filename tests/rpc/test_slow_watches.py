"""gRPC watches that wake together: a slow database read of one watch does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from pyservice.pb.hosting.v1 import groups_pb2
from pyservice.rpc.error_status import read_error
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits, Rate, Rates
from tests.support.forwarding_pair import GROUP, GROUPS, Servers, open_servers, until
from tests.support.sample_service import CONNECTED
from tests.support.slow_control import SlowRecords
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

UNLIMITED = Limits(Rates(*[Rate(0, 1)] * 6))
PROXY = TransportSettings(trusted_proxies=("127.0.0.0/8",))
AT_ONCE = 32
OF_TOKEN = 64
Answered = asyncio.Task[groups_pb2.GetGroupBillingResponse]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def control() -> SlowRecords:
    return SlowRecords()


@pytest.fixture
async def servers(tmp_path: Path, control: SlowRecords) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path, control, limits=UNLIMITED, settings=PROXY) as servers:
        yield servers


async def ask(
    servers: Servers, token: str, index: str = "", address: str = "192.0.2.1"
) -> groups_pb2.GetGroupBillingResponse:
    method = servers.grpc.channel.unary_unary(
        f"/{GROUPS}/GetGroupBilling",
        request_serializer=groups_pb2.GetGroupBillingRequest.SerializeToString,
        response_deserializer=groups_pb2.GetGroupBillingResponse.FromString,
    )
    request = groups_pb2.GetGroupBillingRequest(group_id=GROUP, watch_index=index or None)
    metadata = (("authorization", f"Bearer {token}"), ("x-forwarded-for", address))
    answer: groups_pb2.GetGroupBillingResponse = await method(request, metadata=metadata)
    return answer


async def watch(servers: Servers, tokens: list[str]) -> list[Answered]:
    index = (await ask(servers, "cloud_anybody")).watch.index
    parked = len(servers.long_polls)
    watching = []
    for number, token in enumerate(tokens, 1):
        watching.append(asyncio.create_task(ask(servers, token, index)))
        await until(partial(_are_parked, servers, parked + number))
    return watching


def _are_parked(servers: Servers, number: int) -> bool:
    return len(servers.long_polls) == number


async def read_soon(watching: list[Answered]) -> None:
    answers = await asyncio.wait_for(asyncio.gather(*watching), PATIENCE_S)
    assert {answer.group.payment_succeeded_ts for answer in answers} == {"now"}


async def test_fast_watches_are_answered_before_slow_ones(
    servers: Servers, control: SlowRecords
) -> None:
    slow = [f"cloud_slow{number}" for number in range(3 * AT_ONCE)]
    watching = await watch(servers, [*slow, *(f"cloud_quick{number}" for number in range(AT_ONCE))])
    control.slow |= set(slow)
    control.pay(GROUP, "now")
    await read_soon(watching[len(slow) :])
    assert not any(call.done() for call in watching[: len(slow)])
    control.may_end.set()
    await read_soon(watching)
    await until(lambda: servers.metrics.grpc.in_flight == 0)
    assert servers.metrics.grpc.meters["get_billing"].codes["OK"] == len(watching) + 1


async def test_slow_reads_of_one_token_do_not_delay_other_tokens(
    servers: Servers, control: SlowRecords
) -> None:
    watching = await watch(servers, ["cloud_slow"] * (2 * OF_TOKEN) + ["cloud_quick"] * AT_ONCE)
    control.slow.add("cloud_slow")
    slow = watching[: 2 * OF_TOKEN]
    control.pay(GROUP, "now")
    await read_soon(watching[len(slow) :])
    await until(lambda: control.reading == OF_TOKEN)
    # A call that is cancelled before or during its slow read frees its permit.
    reads = control.reads
    for call in (slow[-1], slow[0]):
        call.cancel()
    await until(lambda: servers.metrics.grpc.in_flight == len(slow) - 2)
    await until(lambda: (control.reads, control.reading) == (reads + 1, OF_TOKEN))
    control.may_end.set()
    await read_soon(slow[1:-1])
    await until(lambda: servers.metrics.grpc.in_flight == 0)


async def test_all_watches_that_wake_together_are_answered(
    servers: Servers, control: SlowRecords
) -> None:
    watching = await watch(servers, [f"cloud_t{number % 7}" for number in range(500)])
    control.pay(GROUP, "now")
    await read_soon(watching)


async def test_control_plane_outage_fails_slow_watches(
    servers: Servers, control: SlowRecords
) -> None:
    slow = [f"cloud_slow{number}" for number in range(3 * AT_ONCE)]
    watching = await watch(servers, slow)
    control.slow |= set(slow)
    control.pay(GROUP, "now")
    await until(lambda: control.reading == len(slow))
    await servers.behind.stop()
    for call in watching:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await asyncio.wait_for(call, PATIENCE_S)
        error = read_error(raised.value)
        assert error is not None
        assert error.code in ("CONTROL_PLANE_UNAVAILABLE", "SHUTTING_DOWN")
    again = SlowRecords()
    await servers.behind.start(again)
    assert (await servers.grpc.call("PlayerConnected", CONNECTED)).code == "OK"
    await until(partial(_are_parked, servers, 0))
    watching = await watch_anew(servers)
    again.pay(GROUP, "now")
    await read_soon(watching)


async def watch_anew(servers: Servers) -> list[Answered]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await ask(servers, "cloud_anybody")
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)
            else:
                break
    return await watch(servers, [f"cloud_new{number}" for number in range(3 * AT_ONCE)])
