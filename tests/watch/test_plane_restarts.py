"""Watches at the public servers after a restart of the control plane while no watch was open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from pyservice.pb.hosting.v1 import groups_pb2
from tests.support.forwarded_watches import close_all, read_index, watch
from tests.support.forwarding_pair import (
    BILLING,
    CLOUD,
    GROUP,
    GROUPS,
    Servers,
    SmallControl,
    open_servers,
    until,
)
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    """Servers after a watch of the previous run of the plane. Their own long poll has arrived."""
    async with open_servers(tmp_path) as servers:
        connection = await watch(servers, await read_index(servers))
        await until(lambda: (len(servers.long_polls), servers.control.polls) == (1, 1))
        await close_all([connection])
        await until(lambda: len(servers.long_polls) == 0)
        await servers.behind.stop()
        servers.control = SmallControl()
        await servers.behind.start(servers.control)
        yield servers


def _are(servers: Servers, waiting: int, parks: int) -> bool:
    return (len(servers.long_polls), servers.control.parks) == (waiting, parks)


async def test_first_watch_after_a_restart_is_repeated_once(servers: Servers) -> None:
    index = await read_index(servers)
    watching = []
    for waiting, parks in ((1, 2), (2, 3)):
        watching.append(await watch(servers, index))
        await until(partial(_are, servers, waiting, parks))
    servers.control.pay(GROUP, "now")
    for connection in watching:
        answer = await asyncio.wait_for(connection.read(), PATIENCE_S)
        assert answer.json["group"] == {"payment_succeeded_ts": "now"}
    assert servers.control.parks == 3
    await close_all(watching)


async def test_grpc_watch_after_a_restart_is_repeated_once(servers: Servers) -> None:
    method = servers.grpc.channel.unary_unary(
        f"/{GROUPS}/GetGroupBilling",
        request_serializer=groups_pb2.GetGroupBillingRequest.SerializeToString,
        response_deserializer=groups_pb2.GetGroupBillingResponse.FromString,
    )
    request = groups_pb2.GetGroupBillingRequest(
        group_id=GROUP, watch_index=await read_index(servers)
    )
    call = method(request, metadata=tuple(CLOUD.items()))
    await until(partial(_are, servers, 1, 2))
    servers.control.pay(GROUP, "now")
    assert (await asyncio.wait_for(call, PATIENCE_S)).group.payment_succeeded_ts == "now"
    assert servers.control.parks == 2


async def test_watch_ended_during_its_repetition_is_not_parked(servers: Servers) -> None:
    index = await read_index(servers)
    connection = await watch(servers, index)
    connection.say("GET", BILLING, None, CLOUD)
    for _ in range(2):
        answer = await asyncio.wait_for(connection.read(), PATIENCE_S)
        assert answer.json["watch"]["index"] == index
    assert len(servers.long_polls) == 0
    await close_all([connection])
