"""Batches of watches that wake together: each gets its own response and does not wait for the
whole batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from pyservice.calls import Call, Caller, WaitForChange
from pyservice.edge import woken_batch_format
from pyservice.edge.http_messages import HttpResponse
from pyservice.edge.unix_http_client import Reply
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import groups_pb2
from pyservice.transport.rate_limits import Limits, Rate, Rates
from tests.support.forwarded_watches import TRACE, ParkingEndpoint, message, read_index, watch_many
from tests.support.forwarding_pair import (
    BILLING,
    CLOUD,
    GROUP,
    Servers,
    SmallControl,
    open_servers,
    until,
)
from tests.support.sample_service import CONNECTED, GOOD, HttpConnection, Response, code_of
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

MANY = 300
UNLIMITED = Limits(Rates(*[Rate(0, 1)] * 6))


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path, limits=UNLIMITED) as servers:
        yield servers


class LargeAnswers(SmallControl):
    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.filling = "x" * size_bytes

    async def get_billing(
        self, message: groups_pb2.GetGroupBillingRequest, caller: Caller
    ) -> Message | WaitForChange:
        answer = await super().get_billing(message, caller)
        if isinstance(answer, groups_pb2.GetGroupBillingResponse):
            answer.group.payment_failed_ts = caller.identity.decode() + self.filling
        return answer


class NotingControl(SmallControl):
    messages: list[Message]

    async def get_billing(
        self, message: groups_pb2.GetGroupBillingRequest, caller: Caller
    ) -> Message | WaitForChange:
        self.messages.append(message)
        return await super().get_billing(message, caller)


class HangingControl(SmallControl):
    async def authorize(self, call: Call) -> Caller:
        self.calls.append(call)
        await asyncio.Event().wait()
        raise AssertionError("this event is never set")


async def test_player_request_is_served_between_batches(servers: Servers) -> None:
    watching = await watch_many(servers, await read_index(servers), MANY, tokens=True)
    player = await HttpConnection.open(servers.http.address)
    order: list[str] = []

    async def note(name: str, connection: HttpConnection) -> Response:
        response = await connection.read()
        order.append(name)
        return response

    reading = [asyncio.create_task(note("watch", one)) for one in watching]
    servers.control.pay(GROUP, "now")
    await until(lambda: len(order) > 0)
    player.say("POST", "/matchmaker/players/connected", b'{"player_token":"t"}', GOOD)
    assert (await note("player", player)).status == 200
    responses = await asyncio.wait_for(asyncio.gather(*reading), PATIENCE_S)
    assert {response.status for response in responses} == {200}
    assert order.index("player") < MANY // 2
    for connection in (*watching, player):
        await connection.close()


@pytest.mark.parametrize(("size_bytes", "is_made_once"), [(1 << 17, True), (1 << 20, False)])
async def test_long_responses_span_several_messages(
    tmp_path: Path, size_bytes: int, is_made_once: bool
) -> None:
    """Responses that do not fit into the batch are computed again."""
    control = LargeAnswers(size_bytes)
    async with open_servers(tmp_path, control, limits=UNLIMITED) as servers:
        watching = await watch_many(servers, await read_index(servers), 100, tokens=True)
        reads = control.reads
        control.pay(GROUP, "now")
        for number, connection in enumerate(watching, 1):
            response = await asyncio.wait_for(connection.read(), 60)
            assert response.json["group"]["payment_failed_ts"] == str(number) + control.filling
            await connection.close()
        assert (control.reads == reads + 100) == is_made_once


async def test_failed_request_reports_its_error_and_others_are_answered(servers: Servers) -> None:
    watching = await watch_many(servers, await read_index(servers), 70, tokens=True)
    servers.control.revoked |= {"1", "33", "70"}
    servers.control.pay(GROUP, "now")
    responses = [await asyncio.wait_for(one.read(), PATIENCE_S) for one in watching]
    refused = {number for number, one in enumerate(responses, 1) if one.status == 401}
    assert refused == {1, 33, 70}
    assert {code_of(responses[number - 1]) for number in refused} == {"TOKEN_REVOKED"}
    assert {one.status for one in responses} == {200, 401}
    rays = {one.headers["x-ray-id"] for one in responses}
    assert len(rays) == 70
    assert servers.metrics.http.in_flight == 0
    for connection in watching:
        await connection.close()


async def test_public_server_does_not_accept_batches(servers: Servers) -> None:
    connection = await HttpConnection.open(servers.http.address)
    response = await connection.ask("POST", woken_batch_format.PATH.decode(), b"[]", CLOUD)
    assert (response.status, code_of(response)) == (404, "NOT_FOUND")
    assert (await servers.http.call("PlayerConnected", CONNECTED)).code == "OK"
    await connection.close()


def replies_of(answer: HttpResponse) -> list[Reply]:
    replies = woken_batch_format.WokenReplyReader()
    numbered = replies.feed(answer.body)
    replies.end()
    assert [number for number, _ in numbered] == list(range(len(numbered)))
    return [reply for _, reply in numbered]


async def test_each_request_has_its_own_token_client_and_ray() -> None:
    endpoint = ParkingEndpoint()
    answer = await endpoint.open(message("1", "2", is_over=True)).finish()
    assert [reply.status for reply in replies_of(answer)] == [200, 200]
    calls: list[Call] = endpoint.control.calls
    assert [call.authorization for call in calls] == ["Bearer 1", "Bearer 2"]
    assert {str(call.client) for call in calls} == {"192.0.2.1"}
    assert {call.ray_id for call in calls} == {TRACE[3:35]}
    assert all(call.long_poll_expired for call in calls)
    assert endpoint.counts() == {"OK": 2}
    assert endpoint.metrics.http.in_flight == 0


async def test_equal_requests_are_read_once() -> None:
    control = NotingControl()
    control.messages = []
    endpoint = ParkingEndpoint(control)
    await endpoint.open(message("1", "2", "3")).finish()
    assert len(control.messages) == 3
    assert len({id(one) for one in control.messages}) == 1


async def test_unknown_path_or_rule_error_is_reported_per_request() -> None:
    endpoint = ParkingEndpoint()
    for target, status in (("/cloud/nowhere", 404), (f"{BILLING}?x=1", 400)):
        answer = await endpoint.open(message("1", "2", target=target)).finish()
        assert [reply.status for reply in replies_of(answer)] == [status, status]
    assert endpoint.metrics.http.in_flight == 0


async def test_disconnect_of_the_public_server_cancels_the_batch() -> None:
    endpoint = ParkingEndpoint(HangingControl())
    exchange = endpoint.open(message("1", "2", "3"))
    finishing = asyncio.create_task(exchange.finish())
    await until(lambda: len(endpoint.control.calls) == 3)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    exchange.abandon()
    assert endpoint.counts() == {"CANCELLED": 3}
    assert endpoint.metrics.http.in_flight == 0


async def test_invalid_batch_is_rejected() -> None:
    endpoint = ParkingEndpoint()
    request = message("1")
    request.body = b"nonsense"
    answer = endpoint.edge.open(request)
    assert isinstance(answer, HttpResponse)
    assert answer.status == 500
    request = message("1")
    request.failure = ServiceError("BODY_TOO_LARGE")
    answer = endpoint.edge.open(request)
    assert isinstance(answer, HttpResponse)
    assert answer.status == 413
    assert endpoint.metrics.http.in_flight == 0
