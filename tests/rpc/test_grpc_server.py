from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from pyservice.observability.metrics import CANCELLED, RequestMetrics
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.rpc import RpcServer
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from tests.support.rate_limits import rates
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_connections import service as service
from tests.support.sample_service import (
    LOBBY_ID,
    MATCHMAKER,
    GrpcApi,
    SmallService,
    open_api,
)
from tests.support.waiting import PATIENCE_S, until_met

pytestmark = pytest.mark.anyio

AUTHORIZED = (("authorization", "Bearer pub_good"),)
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics()


@pytest.fixture
async def api(service: SmallService, metrics: RequestMetrics) -> AsyncIterator[GrpcApi]:
    limits = Limits(rates(client=(0.001, 1), operator=(1, 1)))
    async with open_api("grpc", service, metrics=metrics, limits=limits) as api:
        assert isinstance(api, GrpcApi)
        yield api


def raw_call(api: GrpcApi, name: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return api.channel.unary_unary(f"/{MATCHMAKER}/{name}")


async def failure_of(
    api: GrpcApi, name: str, data: bytes, metadata: Any = AUTHORIZED, timeout: float | None = None
) -> grpc.aio.AioRpcError:
    call = raw_call(api, name)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(data, metadata=metadata, timeout=timeout)
    return raised.value


def details_of(failure: grpc.aio.AioRpcError) -> dict[str, Any]:
    trailers = dict(failure.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert status.code == failure.code().value[0]
    assert status.message == failure.details()
    details = {}
    for kind in (
        error_details_pb2.ErrorInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.RetryInfo,
    ):
        for detail in status.details:
            if detail.Is(kind.DESCRIPTOR):
                details[kind.DESCRIPTOR.name] = kind.FromString(detail.value)
    return details


async def test_error_is_a_status_with_its_code_as_reason(api: GrpcApi) -> None:
    data = pb.PlayerConnectedRequest(player_token="used").SerializeToString()
    failure = await failure_of(api, "PlayerConnected", data)
    assert failure.code() is grpc.StatusCode.FAILED_PRECONDITION
    info = details_of(failure)["ErrorInfo"]
    assert (info.reason, info.domain) == ("PLAYER_TOKEN_CONSUMED", "hosting")
    assert dict(info.metadata) == {"since_ms": "5"}
    assert set(details_of(failure)) == {"ErrorInfo"}


async def test_problems_over_the_limit_are_counted(api: GrpcApi) -> None:
    modes = [f"mode number {number}!" for number in range(32)]
    regions = [f"Region {number}!" for number in range(64)]
    data = pb.FindLobbyRequest(game_modes=modes, regions=regions).SerializeToString()
    failure = await failure_of(api, "FindLobby", data)
    *_, last = details_of(failure)["BadRequest"].field_violations
    assert last.description.startswith("and ")
    assert last.description.endswith(" more problems")


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x02\xff\xfe"], ids=["framing", "utf-8"])
async def test_invalid_message_bytes_are_rejected(api: GrpcApi, data: bytes) -> None:
    failure = await failure_of(api, "PlayerConnected", data)
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(failure)["ErrorInfo"].reason == "BODY_INVALID"


async def test_unknown_fields_are_ignored(api: GrpcApi) -> None:
    data = pb.PlayerConnectedRequest(player_token="some token").SerializeToString()
    call = raw_call(api, "PlayerConnected")
    assert await call(data + b"\xfa\x3f\x03new", metadata=AUTHORIZED) == b""


async def test_message_far_over_the_limit_is_rejected(service: SmallService) -> None:
    settings = TransportSettings(message_limit_bytes=1000)
    async with open_api("grpc", service, settings) as api:
        assert isinstance(api, GrpcApi)
        # The front rejects those above the limit, and grpcio what no front has checked.
        failure = await failure_of(api, "PlayerConnected", b"x" * 70_000)
        assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert service.calls == []


async def test_unknown_method_is_unimplemented(api: GrpcApi) -> None:
    failure = await failure_of(api, "Nonsense", b"")
    assert failure.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_deadline_reaches_the_operation(api: GrpcApi, service: SmallService) -> None:
    call = raw_call(api, "PlayerConnected")
    data = pb.PlayerConnectedRequest(player_token="some token").SerializeToString()
    before = asyncio.get_running_loop().time()
    await call(data, metadata=AUTHORIZED, timeout=30)
    await call(data, metadata=AUTHORIZED)
    deadline = service.calls[0].deadline
    assert deadline is not None
    assert before + 29 < deadline < before + 31
    assert service.calls[1].deadline is None


async def test_operation_past_its_deadline_is_cancelled(
    api: GrpcApi, service: SmallService, metrics: RequestMetrics
) -> None:
    data = pb.JoinLobbyRequest(lobby_id=LOBBY_ID).SerializeToString()
    failure = await failure_of(api, "JoinLobby", data, timeout=1.0)
    assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(service.disconnected.wait(), PATIENCE_S)
    codes = metrics.grpc.meters["join"].codes
    await until_met(lambda: sum(codes.values()) != 0)
    # The client's deadline ends at the same time, and its cancellation may arrive first.
    assert codes.get("DEADLINE_EXCEEDED", 0) + codes.get(CANCELLED, 0) == 1


async def test_occupied_port_is_named(service: SmallService) -> None:
    limit_of = Limits().data_plane_limit
    parts = (service.operations(), TransportSettings(), RequestMetrics(), limit_of)
    first = RpcServer(*parts, "127.0.0.1:0")
    port = await first.start()
    second = RpcServer(*parts, f"127.0.0.1:{port}")
    with pytest.raises(OSError, match=str(port)):
        await second.start()
    await second.stop(0.0)
    await first.stop(0.0)


@pytest.mark.parametrize("is_internal", [False, True])
async def test_front_gets_the_code_of_an_error(service: SmallService, is_internal: bool) -> None:
    async with open_api("grpc", service, TransportSettings(is_internal=is_internal)) as api:
        assert isinstance(api, GrpcApi)
        used = pb.PlayerConnectedRequest(player_token="used").SerializeToString()
        failure = await failure_of(api, "PlayerConnected", used)
    code = dict(failure.trailing_metadata() or ()).get("x-hosting-code")
    assert code == ("PLAYER_TOKEN_CONSUMED" if is_internal else None)


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_covers_the_server_and_each_service(api: GrpcApi) -> None:
    stub = health_pb2_grpc.HealthStub(api.channel)
    for name in ("", MATCHMAKER):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == SERVING
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_watch_sees_every_change_and_the_end(api: GrpcApi) -> None:
    stub = health_pb2_grpc.HealthStub(api.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=MATCHMAKER))
    other = stub.Watch(health_pb2.HealthCheckRequest(service="other"))
    assert (await other.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    assert (await watch.read()).status == SERVING
    api.server.health.set_serving(False)
    assert (await watch.read()).status == NOT_SERVING
    api.server.health.set_serving(True)
    assert (await watch.read()).status == SERVING
    stopping = asyncio.create_task(api.stop(60))
    assert (await watch.read()).status == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await watch.read()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    # A health watch does not delay the shutdown.
    await asyncio.wait_for(stopping, PATIENCE_S)


async def reflect(api: GrpcApi, **request: str) -> Any:
    call = api.channel.stream_stream(
        REFLECTION,
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await call.write(reflection_pb2.ServerReflectionRequest(**request))
    await call.done_writing()
    return await call.read()


async def test_reflection_v1_lists_the_services(api: GrpcApi) -> None:
    answer = await reflect(api, list_services="")
    names = {service.name for service in answer.list_services_response.service}
    assert {MATCHMAKER, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= names


@pytest.mark.parametrize("symbol", [MATCHMAKER, "grpc.reflection.v1.ServerReflection"])
async def test_reflection_v1_describes_the_listed_services(api: GrpcApi, symbol: str) -> None:
    answer = await reflect(api, file_containing_symbol=symbol)
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in answer.file_descriptor_response.file_descriptor_proto
    ]
    package, _, name = symbol.rpartition(".")
    assert any(
        file.package == package and name in {service.name for service in file.service}
        for file in files
    )
    # Reflection returns a file with all files that it imports.
    names = {file.name for file in files}
    assert all(set(file.dependency) <= names for file in files)
