"""The front answers gRPC calls of the matchmaker, and passes all other calls on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.support.front_metrics import answers_of_front
from tests.support.generated_messages import METHOD_OF
from tests.support.killable_plane import GAME, Plane
from tests.support.lobby_setup import ApiSession, AttachedLobby
from tests.support.raw_grpc_calls import Channel, call
from tests.support.stopped_thread import stopped_thread
from tests.support.twin import player_tokens

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

UNKNOWN: Final = ("x-unknown", "1")
"""Metadata that changes no answer, and not the way to it."""
OVER_GRPC: Final = {"door": "grpc"}
CONNECTED: Final = "/hosting.v1.Matchmaker/PlayerConnected"
DETACH: Final = "/hosting.v1.Matchmaker/DetachLobby"


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


@pytest.fixture
async def lobby(session: ApiSession) -> AttachedLobby:
    return await session.attach("large")


@pytest.fixture
async def channel(plane: Plane) -> AsyncIterator[Channel]:
    async with grpc.aio.insecure_channel(plane.addresses["grpc"]) as channel:
        yield channel


def connected(player_token: str) -> bytes:
    return pb.PlayerConnectedRequest(player_token=player_token).SerializeToString()


def detach(lobby: AttachedLobby) -> bytes:
    return pb.DetachLobbyRequest(game_id=GAME, lobby_id=lobby.id).SerializeToString()


async def test_front_reserves_slots_with_canonical_messages(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, channel: Channel
) -> None:
    join = METHOD_OF["join"].grpc_path, pb.JoinLobbyRequest(lobby_id=lobby.id), pb.JoinLobbyResponse
    party = pb.FindLobbyRequest(game_modes=["large"], party_size=3)
    find = METHOD_OF["find"].grpc_path, party, pb.FindLobbyResponse
    before = await answers_of_front(plane, "join", "find", door="grpc")
    for path, request, response_type in (join, find):
        data, metadata = request.SerializeToString(), [bearer(plane.service_token)]
        first = await call(channel, path, data, metadata)
        second = await call(channel, path, data, [*metadata, UNKNOWN])
        assert first.code == "OK", first
        assert _without_tokens(first.data) == _without_tokens(second.data)
        assert first.data == response_type.FromString(first.data).SerializeToString()
    assert await answers_of_front(plane, "join", "find", door="grpc") == before + 4


def _without_tokens(data: bytes) -> bytes:
    tokens = player_tokens(data)
    assert tokens
    for token in tokens:
        data = data.replace(token.encode(), b"_" * len(token))
    return data


async def test_calls_are_counted_once(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, channel: Channel
) -> None:
    labels = {"operation": "connected", **OVER_GRPC}
    names = ("OK", "PLAYER_TOKEN_CONSUMED")

    async def counts() -> list[float]:
        codes = [
            await plane.metric("hosting_requests_total", code=code, **labels) for code in names
        ]
        return [*codes, await plane.metric("hosting_request_duration_seconds_count", **labels)]

    before = await counts()
    token = await session.player(lobby)
    for metadata in ([], [UNKNOWN], []):
        await call(channel, CONNECTED, connected(token), [bearer(lobby.token), *metadata])
    after = await counts()
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 2, 3]


async def test_front_answers_while_python_is_stopped(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, channel: Channel
) -> None:
    tokens = await session.join(lobby, party_size=2)
    with stopped_thread(plane.pid):
        answers = [
            await call(channel, CONNECTED, connected(token), [bearer(lobby.token)])
            for token in tokens
        ]
        passed = await call(channel, DETACH, detach(lobby), [bearer(plane.service_token)])
    assert [answer.code for answer in answers] == ["OK", "OK"]
    assert (passed.code, passed.status) == ("OVERLOADED", grpc.StatusCode.UNAVAILABLE)
    again = await call(channel, DETACH, detach(lobby), [bearer(plane.service_token)])
    assert again.code == "OK"


async def test_health_and_reflection_know_all_services(plane: Plane, channel: Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "hosting.v1.Matchmaker", "hosting.v1.Groups"):
        health = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert health.status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    reflect = reflection_stream(channel)
    for _ in range(2):
        await reflect.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer: Any = await reflect.read()
        names = {service.name for service in answer.list_services_response.service}
        assert {"hosting.v1.Matchmaker", "hosting.v1.Groups", "grpc.health.v1.Health"} <= names
    await reflect.done_writing()
    assert await reflect.read() is grpc.aio.EOF
    unknown = await call(channel, "/hosting.v1.Matchmaker/Nonsense", b"", ())
    assert unknown.status is grpc.StatusCode.UNIMPLEMENTED


async def test_control_plane_that_does_not_run_is_unavailable(
    plane: Plane, channel: Channel
) -> None:
    answer = await call(channel, "/hosting.v1.Groups/GetGroup", b"", [bearer("cloud_x")])
    assert (answer.code, answer.status.name) == ("CONTROL_PLANE_UNAVAILABLE", "UNAVAILABLE")


async def test_methods_between_processes_are_not_public(plane: Plane, channel: Channel) -> None:
    for path in ("/hosting.internal.v1.Control/Metrics", "/hosting.internal.v1.Feed/Apply"):
        answer = await call(channel, path, b"", ())
        assert answer.status is grpc.StatusCode.UNIMPLEMENTED


async def test_quiet_stream_ends_while_python_is_stopped(plane: Plane, channel: Channel) -> None:
    stream = reflection_stream(channel)
    await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    await stream.read()
    with stopped_thread(plane.pid), pytest.raises(grpc.aio.AioRpcError) as raised:
        await stream.read()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_health_is_answered_while_python_is_stopped(plane: Plane, channel: Channel) -> None:
    """A watch has no end. So it must take nothing that other calls need."""
    stub = health_pb2_grpc.HealthStub(channel)
    with stopped_thread(plane.pid):
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(600)]
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        health = await stub.Check(health_pb2.HealthCheckRequest(service="hosting.v1.Groups"))
        assert health.status == health_pb2.HealthCheckResponse.SERVING
    other = reflection_stream(channel)
    await other.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    assert await other.read() is not grpc.aio.EOF
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Check(health_pb2.HealthCheckRequest(service="none"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    unknown = stub.Watch(health_pb2.HealthCheckRequest(service="none"))
    assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    for watch in (*watches, unknown):
        watch.cancel()


async def test_watches_of_health_end_with_the_service(plane: Plane, channel: Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    await plane.stop()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await watch.read()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def reflection_stream(channel: Channel) -> Any:
    return channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
