"""gRPC calls that the public server forwards to the control plane, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pyservice.observability.metrics import RequestMetrics
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.pb.hosting.v1 import games_pb2, groups_pb2
from pyservice.rpc import InternalClient, RpcServer
from pyservice.rpc.error_status import read_error
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits, Rate, Rates
from tests.support.forwarding_pair import (
    GAMES,
    GROUP,
    GROUPS,
    Servers,
    SmallControl,
    open_servers,
    until,
)
from tests.support.sample_service import CONNECTED, SmallService
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

CLOUD = (("authorization", "Bearer cloud_c"),)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path) as servers:
        yield servers


Metadata = tuple[tuple[str, str], ...]


def billing(
    servers: Servers, index: str = "", metadata: Metadata = CLOUD, timeout: float | None = None
) -> grpc.aio.UnaryUnaryCall[Any, groups_pb2.GetGroupBillingResponse]:
    method = servers.grpc.channel.unary_unary(
        f"/{GROUPS}/GetGroupBilling",
        request_serializer=groups_pb2.GetGroupBillingRequest.SerializeToString,
        response_deserializer=groups_pb2.GetGroupBillingResponse.FromString,
    )
    request = groups_pb2.GetGroupBillingRequest(group_id=GROUP, watch_index=index or None)
    return method(request, metadata=metadata, timeout=timeout)


async def raw(
    servers: Servers, path: str, data: bytes = b"", metadata: Metadata = CLOUD, timeout: float = 10
) -> bytes:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    method = servers.grpc.channel.unary_unary(path)
    return await method(data, metadata=metadata, timeout=timeout)


async def code_of(call: object) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call  # type: ignore[misc]
    error = read_error(raised.value)
    assert error is not None, raised.value
    assert dict(raised.value.trailing_metadata() or ())["x-ray-id"]
    return error.code


def create_group(servers: Servers, timeout: float = 10) -> asyncio.Task[bytes]:
    data = groups_pb2.CreateGroupRequest(display_name="a").SerializeToString()
    return asyncio.ensure_future(raw(servers, f"/{GROUPS}/CreateGroup", data, CLOUD, timeout))


async def test_response_has_one_ray_id_for_both_servers(servers: Servers) -> None:
    servers.control.pay(GROUP, "now")
    call = billing(servers)
    assert (await call).group.payment_succeeded_ts == "now"
    trailers = dict(await call.trailing_metadata())
    assert trailers["x-ray-id"] == servers.control.calls[0].ray_id
    assert "x-hosting-park" not in trailers


async def test_status_and_details_are_forwarded_unchanged(servers: Servers) -> None:
    data = groups_pb2.GetGroupRequest(group_id=GROUP).SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await raw(servers, f"/{GROUPS}/GetGroup", data)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    error = read_error(raised.value)
    assert error is not None
    assert (error.code, error.detail) == ("GROUP_NOT_FOUND", raised.value.details())
    assert await code_of(raw(servers, f"/{GROUPS}/GetGroup", b"\xff")) == "BODY_INVALID"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await raw(servers, f"/{GAMES}/ValidateGame")
    error = read_error(raised.value)
    assert error is not None
    assert [problem.path for problem in error.errors] == [("display_name", "required")]
    assert await code_of(billing(servers, metadata=())) == "TOKEN_MISSING"


async def test_client_address_trace_and_key_are_forwarded(tmp_path: Path) -> None:
    settings = TransportSettings(trusted_proxies=("127.0.0.0/8",))
    async with open_servers(tmp_path, settings=settings) as servers:
        metadata = (
            *CLOUD,
            ("x-forwarded-for", "192.0.2.7"),
            ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"),
            ("idempotency-key", "once"),
        )
        data = games_pb2.ValidateGameRequest(display_name="a").SerializeToString()
        await raw(servers, f"/{GAMES}/ValidateGame", data, metadata)
        (call,) = servers.control.calls
        assert (call.ray_id, call.idempotency_key, str(call.client)) == (TRACE, "once", "192.0.2.7")
        assert call.deadline is not None
        # grpc rounds the deadline that it writes into the header.
        assert 0 < call.deadline - asyncio.get_running_loop().time() < 11


async def test_client_cannot_set_internal_metadata(servers: Servers) -> None:
    forged = (*CLOUD, ("x-hosting-client", "10.9.8.7"), ("x-hosting-held", "over"))
    await billing(servers, metadata=forged)
    (call,) = servers.control.calls
    assert (str(call.client), call.long_poll_expired) == ("127.0.0.1", False)


async def test_reflection_and_health_cover_both_planes(servers: Servers) -> None:
    stub = health_pb2_grpc.HealthStub(servers.grpc.channel)
    for service in ("hosting.v1.Matchmaker", GROUPS, GAMES):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_call_is_counted_by_operation_and_code(servers: Servers) -> None:
    await billing(servers)
    data = groups_pb2.GetGroupRequest(group_id=GROUP).SerializeToString()
    await code_of(raw(servers, f"/{GROUPS}/GetGroup", data))
    meters = servers.metrics.grpc.meters
    assert meters["get_billing"].codes == {"OK": 1}
    assert meters["get_group"].codes == {"OK": 0, "GROUP_NOT_FOUND": 1}
    assert servers.metrics.grpc.in_flight == 0


async def test_large_messages_are_forwarded_and_oversized_ones_rejected(servers: Servers) -> None:
    request = games_pb2.ValidateGameRequest(display_name="x" * 1_000_000)
    data = await raw(servers, f"/{GAMES}/ValidateGame", request.SerializeToString())
    assert games_pb2.ValidateGameResponse.FromString(data).errors[0].path == ["1000000"]
    request = games_pb2.ValidateGameRequest(display_name="x" * 1_100_000)
    too_large = raw(servers, f"/{GAMES}/ValidateGame", request.SerializeToString())
    assert await code_of(too_large) == "BODY_TOO_LARGE"
    assert len(servers.control.calls) == 1


async def test_operations_are_limited_per_token(tmp_path: Path) -> None:
    async with open_servers(tmp_path, limits=Limits(Rates(operator=Rate(0.5, 2)))) as servers:
        await billing(servers)
        await billing(servers)
        assert await code_of(billing(servers)) == "RATE_LIMITED"


async def test_control_plane_outage_affects_only_its_operations(tmp_path: Path) -> None:
    async with open_servers(tmp_path, is_started=False) as servers:
        assert await code_of(billing(servers)) == "CONTROL_PLANE_UNAVAILABLE"
        assert await code_of(create_group(servers)) == "CONTROL_PLANE_UNAVAILABLE"
        assert (await servers.grpc.call("PlayerConnected", CONNECTED)).code == "OK"
        await servers.behind.start(servers.control)
        async with asyncio.timeout(PATIENCE_S):
            while not await _is_answered(servers):
                await asyncio.sleep(0.02)


async def _is_answered(servers: Servers) -> bool:
    try:
        await billing(servers)
    except grpc.aio.AioRpcError:
        return False
    return True


async def test_restarted_control_plane_serves_the_next_call(servers: Servers) -> None:
    await billing(servers)
    await servers.behind.stop()
    assert await code_of(billing(servers)) == "CONTROL_PLANE_UNAVAILABLE"
    await servers.behind.start(servers.control)
    async with asyncio.timeout(PATIENCE_S):
        while not await _is_answered(servers):
            await asyncio.sleep(0.02)


async def test_client_cancellation_is_forwarded(servers: Servers) -> None:
    servers.control.is_slow = True
    calling = create_group(servers)
    await servers.control.begun.wait()
    calling.cancel()
    await asyncio.wait_for(servers.control.disconnected.wait(), PATIENCE_S)
    await until(lambda: servers.metrics.grpc.meters["create_group"].codes.get("CANCELLED") == 1)


async def test_expired_deadline_ends_the_call_on_both_servers(servers: Servers) -> None:
    servers.control.is_slow = True
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await create_group(servers, timeout=1.5)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(servers.control.disconnected.wait(), PATIENCE_S)


async def test_call_without_a_response_times_out(tmp_path: Path) -> None:
    async with open_servers(tmp_path, answer_timeout_ms=1_000) as servers:
        servers.control.is_slow = True
        assert await code_of(create_group(servers)) == "DEADLINE_EXCEEDED"
        await asyncio.wait_for(servers.control.disconnected.wait(), PATIENCE_S)


async def test_calls_over_the_limit_are_rejected(tmp_path: Path) -> None:
    settings = TransportSettings(trusted_proxies=("127.0.0.0/8",))
    async with open_servers(tmp_path, at_once=8, wait_ms=50, settings=settings) as servers:
        servers.control.is_slow = True

        def bearer(token: str, host: int) -> Metadata:
            return (
                ("authorization", f"Bearer cloud_{token}"),
                ("x-forwarded-for", f"192.0.2.{host}"),
            )

        data = groups_pb2.CreateGroupRequest(display_name="a").SerializeToString()
        slow: list[asyncio.Task[bytes]] = []
        for number, token in enumerate("aabbccdd"):
            if token not in "ab":
                await billing(servers, metadata=bearer(token, number))
            metadata = bearer(token, number)
            call = raw(servers, f"/{GROUPS}/CreateGroup", data, metadata)
            slow.append(asyncio.ensure_future(call))
            await until(partial(_is_creating, servers, number + 1))
            if number == 1:
                assert await code_of(billing(servers, metadata=bearer("a", 9))) == "OVERLOADED"
        assert await code_of(billing(servers, metadata=bearer("e", 9))) == "OVERLOADED"
        servers.control.go_on.set()
        await asyncio.gather(*slow)
        await billing(servers, metadata=bearer("a", 9))


async def test_back_end_with_many_calls_queues_and_is_served(tmp_path: Path) -> None:
    async with open_servers(tmp_path, at_once=8, wait_ms=60_000) as servers:
        servers.control.is_slow = True
        calls = [create_group(servers) for _ in range(2)]
        await until(lambda: servers.control.waiting == 2)
        calls += [create_group(servers) for _ in range(4)]
        await until(lambda: servers.metrics.grpc.in_flight == 6)
        calls.pop().cancel()
        await until(lambda: servers.metrics.grpc.in_flight == 5)
        servers.control.go_on.set()
        await asyncio.gather(*calls)
        assert len(servers.control.calls) == 5


def _is_creating(servers: Servers, number: int) -> bool:
    return servers.control.waiting == number


async def test_watch_waits_for_a_change_and_returns_it(servers: Servers) -> None:
    index = (await billing(servers)).watch.index
    call = billing(servers, index)
    await until(lambda: len(servers.long_polls) == 1)
    servers.control.pay(GROUP, "now")
    answer = await asyncio.wait_for(call, PATIENCE_S)
    assert answer.group.payment_succeeded_ts == "now"
    assert answer.watch.index != index


async def test_watch_timeout_returns_the_same_index(tmp_path: Path) -> None:
    async with open_servers(tmp_path, long_poll_wait_ms=200) as servers:
        index = (await billing(servers)).watch.index
        answer = await asyncio.wait_for(billing(servers, index), PATIENCE_S)
        assert answer.watch.index == index
        assert servers.control.parks == 1


async def test_parked_calls_take_no_permits(tmp_path: Path) -> None:
    async with open_servers(tmp_path, at_once=2) as servers:
        index = (await billing(servers)).watch.index
        watching = []
        for number in range(1, 6):
            watching.append(billing(servers, index))
            await until(partial(_is_parked, servers, number))
        await billing(servers)
        servers.control.pay(GROUP, "now")
        for call in watching:
            assert (await call).group.payment_succeeded_ts == "now"


def _is_parked(servers: Servers, number: int) -> bool:
    return len(servers.long_polls) == number


async def test_cancelled_parked_call_is_removed(servers: Servers) -> None:
    index = (await billing(servers)).watch.index
    call = billing(servers, index)
    await until(lambda: len(servers.long_polls) == 1)
    call.cancel()
    await until(lambda: len(servers.long_polls) == 0)
    await until(lambda: servers.metrics.grpc.in_flight == 0)


async def test_restarted_control_plane_answers_a_watch(servers: Servers) -> None:
    index = (await billing(servers)).watch.index
    call = billing(servers, index)
    await until(lambda: len(servers.long_polls) == 1)
    await servers.behind.stop()
    await servers.behind.start(SmallControl(paid={GROUP: "anew"}))
    answer = await asyncio.wait_for(call, PATIENCE_S)
    assert answer.group.payment_succeeded_ts == "anew"


async def test_watches_end_together_when_the_control_plane_is_down(tmp_path: Path) -> None:
    """A queue would answer this number of watches in three groups, each one poll interval later."""
    async with open_servers(tmp_path, long_poll_wait_ms=2_000) as servers:
        index = (await billing(servers)).watch.index
        watching = [asyncio.ensure_future(_ended_at(billing(servers, index))) for _ in range(70)]
        await until(partial(_is_parked, servers, 70))
        await servers.behind.stop()
        ended_s = await asyncio.gather(*watching)
        assert max(ended_s) - min(ended_s) < 2


async def _ended_at(call: object) -> float:
    """Returns the loop time in seconds at which the call ended with UNAVAILABLE."""
    assert await code_of(call) == "CONTROL_PLANE_UNAVAILABLE"
    return asyncio.get_running_loop().time()


async def test_watches_that_end_before_a_restart_are_answered(tmp_path: Path) -> None:
    async with open_servers(tmp_path, long_poll_wait_ms=2_000) as servers:
        index = (await billing(servers)).watch.index
        watching = [billing(servers, index) for _ in range(70)]
        await until(partial(_is_parked, servers, 70))
        await servers.behind.stop()
        watching[0].cancel()
        await until(partial(_is_parked, servers, 0))
        await servers.behind.start(SmallControl(paid={GROUP: "anew"}))
        for call in watching[1:]:
            assert (await asyncio.wait_for(call, PATIENCE_S)).group.payment_succeeded_ts == "anew"


async def test_long_message_is_answered_but_not_parked(servers: Servers) -> None:
    path, read = f"/{GROUPS}/GetGroupBilling", groups_pb2.GetGroupBillingResponse.FromString
    index = (await billing(servers)).watch.index
    request = groups_pb2.GetGroupBillingRequest(group_id=GROUP, watch_index=index)
    assert await code_of(raw(servers, path, _padded(request, 4097))) == "BODY_TOO_LARGE"
    parked = asyncio.ensure_future(raw(servers, path, _padded(request, 4096)))
    await until(partial(_is_parked, servers, 1))
    servers.control.pay(GROUP, "now")
    # A response that needs no wait may be long too.
    for call in (parked, raw(servers, path, _padded(request, 60_000))):
        assert read(await asyncio.wait_for(call, PATIENCE_S)).group.payment_succeeded_ts == "now"


def _padded(request: Message, size_bytes: int) -> bytes:
    data = request.SerializeToString()
    length = size_bytes - len(data) - 5
    return (
        data
        + b"\xfa\x3f%c%c%c" % (length & 127 | 128, length >> 7 & 127 | 128, length >> 14)
        + (b"x" * length)
    )


async def test_public_and_internal_calls_share_the_socket(servers: Servers) -> None:
    servers.control.pay(GROUP, "now")
    async with InternalClient(servers.behind.grpc_path) as client:
        request = control_pb2.NextChangesRequest(run=servers.control.topics.run, wait_ms=0)
        news = await client.call("hosting.internal.v1.Control.NextChanges", request)
    assert [(change.topic, change.sequence) for change in news.changes] == [(f"group/{GROUP}", 1)]
    assert news.is_complete


async def test_server_without_a_control_plane_forwards_nothing() -> None:
    with pytest.raises(ValueError, match="need a forwarder"):
        RpcServer(
            SmallService().operations(),
            TransportSettings(),
            RequestMetrics(),
            Limits(),
            "127.0.0.1:0",
            forwarded=(f"{GROUPS}.GetGroup",),
        )
