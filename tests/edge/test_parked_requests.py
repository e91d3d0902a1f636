"""Parked requests of the HTTP server: stored, woken, sent once for equal requests, removed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from pyservice.calls import Caller, WaitForChange
from pyservice.pb.hosting.v1 import groups_pb2
from pyservice.transport.rate_limits import Limits, Rate, Rates
from pyservice.watch import WAKE_UPS_PER_TURN
from tests.support.forwarded_watches import close_all, read_index, watch, watch_many
from tests.support.forwarding_pair import (
    BILLING,
    CLOUD,
    GROUP,
    OTHER_GROUP,
    VALIDATE,
    Servers,
    SmallControl,
    open_servers,
    until,
)
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_service import CONNECTED, HttpConnection, Response, code_of
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

MANY = 300
"""Number of parked requests, above the limit of concurrent requests. Each request uses two file
descriptors.
"""
UNLIMITED = Limits(Rates(*[Rate(0, 1)] * 6))


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path, limits=UNLIMITED) as servers:
        yield servers


async def test_watch_waits_for_a_change_and_returns_it(servers: Servers) -> None:
    index = await read_index(servers)
    connection = await watch(servers, index)
    await until(lambda: len(servers.long_polls) == 1)
    servers.control.pay(GROUP, "now")
    response = await asyncio.wait_for(connection.read(), PATIENCE_S)
    assert response.json["group"] == {"payment_succeeded_ts": "now"}
    assert response.json["watch"]["index"] != index
    assert (await connection.ask("GET", BILLING, None, CLOUD)).status == 200
    assert servers.metrics.http.in_flight == 0
    await connection.close()


async def test_change_of_another_topic_wakes_no_watch(servers: Servers) -> None:
    connection = await watch(servers, await read_index(servers))
    await until(lambda: len(servers.long_polls) == 1)
    servers.control.pay(OTHER_GROUP, "now")
    other = await watch(servers, "another", f"/cloud/groups/{OTHER_GROUP}/billing")
    assert (await other.read()).json["group"] == {"payment_succeeded_ts": "now"}
    assert len(servers.long_polls) == 1
    assert servers.control.parks == 1
    await close_all([connection, other])


async def test_timeout_returns_the_current_state_with_the_same_index(tmp_path: Path) -> None:
    async with open_servers(tmp_path, long_poll_wait_ms=200) as servers:
        servers.control.pay(GROUP, "before")
        index = await read_index(servers)
        loop = asyncio.get_running_loop()
        began = loop.time()
        connection = await watch(servers, index)
        response = await asyncio.wait_for(connection.read(), PATIENCE_S)
        assert loop.time() - began >= 0.19
        assert response.json == {
            "group": {"payment_succeeded_ts": "before"},
            "watch": {"index": index},
        }
        await connection.close()


async def test_foreign_index_is_answered_at_once(servers: Servers) -> None:
    for index in ("x", "0000000000000000.0", "1"):
        connection = await watch(servers, index)
        assert (await asyncio.wait_for(connection.read(), PATIENCE_S)).status == 200
        await connection.close()


async def test_equal_requests_are_read_once_with_separate_ray_ids(servers: Servers) -> None:
    """Equal requests are combined if they wake in the same loop iteration."""
    watching = await watch_many(servers, await read_index(servers), MANY)
    reads = servers.control.reads
    servers.control.pay(GROUP, "now")
    responses = [await asyncio.wait_for(one.read(), PATIENCE_S) for one in watching]
    assert reads < servers.control.reads <= reads + MANY // WAKE_UPS_PER_TURN
    assert len({response.body for response in responses}) == 1
    assert responses[0].json["group"] == {"payment_succeeded_ts": "now"}
    assert len({response.headers["x-ray-id"] for response in responses}) == MANY
    await close_all(watching)


async def test_equal_requests_that_fail_have_separate_ray_ids(servers: Servers) -> None:
    watching = await watch_many(servers, await read_index(servers), 10)
    servers.control.revoked.add("cloud_c")
    servers.control.pay(GROUP, "now")
    responses = [await asyncio.wait_for(one.read(), PATIENCE_S) for one in watching]
    assert {(response.status, code_of(response)) for response in responses} == {
        (401, "TOKEN_REVOKED")
    }
    assert len({response.headers["x-ray-id"] for response in responses}) == 10
    await close_all(watching)


async def test_requests_with_different_tokens_are_read_separately(servers: Servers) -> None:
    watching = await watch_many(servers, await read_index(servers), MANY, tokens=True)
    servers.control.revoked.add("7")
    reads, calls_before = servers.control.reads, len(servers.control.calls)
    servers.control.pay(GROUP, "now")
    responses = [await asyncio.wait_for(one.read(), PATIENCE_S) for one in watching]
    statuses = [response.status for response in responses]
    assert statuses == [200] * 6 + [401] + [200] * (MANY - 7)
    assert servers.control.reads == reads + MANY - 1
    tokens = {call.authorization for call in servers.control.calls[calls_before:]}
    assert tokens == {f"Bearer {number}" for number in range(1, MANY + 1)}
    await close_all(watching)


async def test_wake_does_not_count_for_the_rate_limit(tmp_path: Path) -> None:
    async with open_servers(tmp_path, limits=Limits(Rates(operator=Rate(0.001, 2)))) as servers:
        connection = await watch(servers, await read_index(servers))
        await until(lambda: len(servers.long_polls) == 1)
        servers.control.pay(GROUP, "now")
        assert (await asyncio.wait_for(connection.read(), PATIENCE_S)).status == 200
        assert code_of(await connection.ask("GET", BILLING, None, CLOUD)) == "RATE_LIMITED"
        await connection.close()


async def test_disconnected_client_is_removed(servers: Servers) -> None:
    watching = await watch_many(servers, await read_index(servers), 20)
    for connection in watching[:10]:
        connection.writer.transport.abort()
    await until(lambda: len(servers.long_polls) == 10)
    assert servers.metrics.http.meters["get_billing"].codes["CANCELLED"] == 10
    servers.control.pay(GROUP, "now")
    for connection in watching[10:]:
        assert (await asyncio.wait_for(connection.read(), PATIENCE_S)).status == 200
    assert servers.metrics.http.in_flight == 0
    await close_all(watching)


async def test_client_may_disconnect_while_its_request_is_repeated(servers: Servers) -> None:
    index = await read_index(servers)
    for _ in range(30):
        watching = await watch_many(servers, index, 2)
        servers.control.pay(GROUP, "now")
        watching[0].writer.transport.abort()
        response = await asyncio.wait_for(watching[1].read(), PATIENCE_S)
        index = response.json["watch"]["index"]
        await close_all(watching)
    await until(lambda: servers.metrics.http.in_flight == 0)
    assert len(servers.long_polls) == 0


@pytest.mark.parametrize("is_parked", [True, False])
async def test_pipelined_request_ends_the_parked_one_early(
    servers: Servers, is_parked: bool
) -> None:
    """The server continues to read behind a parked request. Otherwise it would not notice that the
    client disconnects.
    """
    index = await read_index(servers)
    connection = await watch(servers, index)
    if is_parked:
        await until(lambda: len(servers.long_polls) == 1)
    connection.say("POST", VALIDATE, b" " * 300_000, {"authorization": "Bearer cloud_a"})
    connection.say("GET", "/nowhere")
    first = await asyncio.wait_for(connection.read(), PATIENCE_S)
    assert (first.status, first.json["watch"]["index"]) == (200, index)
    assert code_of(await connection.read()) == "BODY_INVALID"
    assert code_of(await connection.read()) == "NOT_FOUND"
    await connection.close()


async def test_disconnect_after_a_pipelined_request_is_noticed(servers: Servers) -> None:
    connection = await watch(servers, await read_index(servers))
    await until(lambda: len(servers.long_polls) == 1)
    connection.say("POST", VALIDATE, b" " * 300_000, {"authorization": "Bearer cloud_a"})
    await connection.writer.drain()
    await connection.close()
    await until(lambda: servers.metrics.http.in_flight == 0 and not servers.metrics.http.body_bytes)
    assert len(servers.long_polls) == 0


async def test_shutdown_answers_parked_requests_with_the_current_state(servers: Servers) -> None:
    index = await read_index(servers)
    watching = await watch_many(servers, index, 10)
    await asyncio.wait_for(servers.server.stop(4 * PATIENCE_S), PATIENCE_S)
    responses = [await one.read() for one in watching]
    assert {response.status for response in responses} == {200}
    assert {response.headers["connection"] for response in responses} == {"close"}
    assert {response.json["watch"]["index"] for response in responses} == {index}
    await close_all(watching)


async def test_shutdown_without_time_rejects_parked_requests(servers: Servers) -> None:
    watching = await watch_many(servers, await read_index(servers), 10)
    await servers.server.stop(0.0)
    for connection in watching:
        assert code_of(await connection.read()) == "SHUTTING_DOWN"
    await close_all(watching)


async def test_restarted_control_plane_answers_every_watch(servers: Servers) -> None:
    watching = await watch_many(servers, await read_index(servers), 10)
    await servers.behind.stop()
    anew = SmallControl(paid={GROUP: "anew"})
    await servers.behind.start(anew)
    responses = [await asyncio.wait_for(one.read(), PATIENCE_S) for one in watching]
    assert {response.json["group"]["payment_succeeded_ts"] for response in responses} == {"anew"}
    assert responses[0].json["watch"]["index"].startswith(anew.topics.run)
    await close_all(watching)


async def test_control_plane_outage_ends_watches_as_unavailable(tmp_path: Path) -> None:
    async with open_servers(tmp_path, long_poll_wait_ms=300) as servers:
        connection = await watch(servers, await read_index(servers))
        await until(lambda: len(servers.long_polls) == 1)
        await servers.behind.stop()
        assert (await servers.http.call("PlayerConnected", CONNECTED)).code == "OK"
        response = await asyncio.wait_for(connection.read(), PATIENCE_S)
        assert (response.status, code_of(response)) == (503, "CONTROL_PLANE_UNAVAILABLE")
        await connection.close()


async def test_invalid_park_response_fails_and_others_are_answered(tmp_path: Path) -> None:
    control = WrongParks()
    async with open_servers(tmp_path, control, limits=UNLIMITED) as servers:
        paths = [f"/cloud/groups/{group}/billing" for group in (GROUP, OTHER_GROUP)]
        index = await read_index(servers)
        watching = [await watch(servers, index, path) for path in paths * 2]
        await until(lambda: len(servers.long_polls) == 4)
        control.paid[OTHER_GROUP] = "now"
        control.is_wrong = True
        control.topics.bump(f"group/{GROUP}", f"group/{OTHER_GROUP}")
        responses = [await asyncio.wait_for(one.read(), PATIENCE_S) for one in watching]
        assert [response.status for response in responses] == [500, 200] * 2
        assert {code_of(response) for response in responses[::2]} == {"INTERNAL"}
        assert {response.json["group"]["payment_succeeded_ts"] for response in responses[1::2]} == {
            "now"
        }
        assert servers.metrics.http.meters["get_billing"].codes["INTERNAL"] == 2
        assert (servers.metrics.http.in_flight, len(servers.long_polls)) == (0, 0)
        await close_all(watching)


class WrongParks(SmallControl):
    """Parks a group's request with an invalid run id."""

    is_wrong = False

    async def get_billing(
        self, message: groups_pb2.GetGroupBillingRequest, caller: Caller
    ) -> Message | WaitForChange:
        if self.is_wrong and message.group_id == GROUP:
            return WaitForChange((f"group/{GROUP}",), 1, "not.a.run")
        return await super().get_billing(message, caller)


async def test_no_change_is_missed_between_reading_and_watching(servers: Servers) -> None:
    """Makes a hundred rapid changes. The follower must receive the last one."""
    follower = await HttpConnection.open(servers.http.address)

    async def follow() -> None:
        path, value = BILLING, ""
        while value != "99":
            response: Response = await follower.ask("GET", path, None, CLOUD)
            value = response.json["group"].get("payment_succeeded_ts", "")
            path = f"{BILLING}?watch_index={response.json['watch']['index']}"

    following = asyncio.create_task(follow())
    for number in range(100):
        servers.control.pay(GROUP, str(number))
        await asyncio.sleep(0.001 * (number % 7))
    await asyncio.wait_for(following, PATIENCE_S)
    await follower.close()


@pytest.mark.full
async def test_parked_request_needs_no_task_and_little_memory(servers: Servers) -> None:
    """The measured memory includes both ends of each connection and both servers. The benchmark
    measures the service alone.
    """
    index = await read_index(servers)
    watching = await watch_many(servers, index, 100)
    tasks, before = len(asyncio.all_tasks()), _resident_bytes()
    watching += [await watch(servers, index) for _ in range(1000)]
    await until(lambda: len(servers.long_polls) == 1100)
    assert len(asyncio.all_tasks()) == tasks
    assert (_resident_bytes() - before) / 1000 < 60_000
    servers.control.pay(GROUP, "now")
    for connection in watching:
        assert (await asyncio.wait_for(connection.read(), PATIENCE_S)).status == 200
    await close_all(watching)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
