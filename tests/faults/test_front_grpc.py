"""The front answers plain gRPC calls exactly as Python does, and passes all other calls on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.faults.conftest import MakePlane
from tests.support.data_plane_clients import RawResponse
from tests.support.generated_messages import METHOD_OF, CallGenerator, GeneratedCall
from tests.support.generated_requests import PLACEMENTS, TRACE_ID
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession, AttachedLobby
from tests.support.stopped_thread import stopped_thread
from tests.support.twin_namespaces import (
    SETTINGS,
    Twin,
    TwinNamespaces,
    player_tokens,
    start_twins,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

NOT_PLAIN: Final = ("x-not-plain", "1")
"""Metadata that changes no answer. The front leaves a call with it to Python."""
OVER_GRPC: Final = {"door": "grpc"}
CONNECTED: Final = "/hosting.v1.Matchmaker/PlayerConnected"
RENEW_EVERY: Final = 250
SHARE_MIN: Final = 0.3
DIFFERENCES_MAX: Final = 5
TIMEOUT_S: Final = 30.0

Channel = grpc.aio.Channel
Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    status: grpc.StatusCode
    message: str
    data: bytes
    trailers: dict[str, str | bytes]

    @property
    def code(self) -> str:
        if self.status is grpc.StatusCode.OK:
            return "OK"
        details = self.trailers.get("grpc-status-details-bin")
        if not isinstance(details, bytes):
            return self.status.name
        status = status_pb2.Status.FromString(details)
        return str(MessageToDict(status)["details"][0]["reason"])


async def call(channel: Channel, path: str, data: bytes, metadata: Metadata) -> Answer:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    calling = method(data, metadata=tuple(metadata), timeout=TIMEOUT_S)
    response = b""
    try:
        response = await calling
    except grpc.aio.AioRpcError as failure:
        trailers = dict(failure.trailing_metadata() or ())
        return Answer(failure.code(), failure.details() or "", b"", trailers)
    trailers = dict(await calling.trailing_metadata())
    return Answer(await calling.code(), await calling.details(), response, trailers)


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


@pytest.fixture
async def lobby(session: ApiSession) -> AttachedLobby:
    return await session.attach("large")


@pytest.fixture
async def channel(plane: Plane) -> AsyncIterator[Channel]:
    async with grpc.aio.insecure_channel(plane.addresses["grpc"]) as channel:
        yield channel


async def native_answers(plane: Plane, *operations: str) -> int:
    """Returns the number of gRPC calls that the front answered without Python."""
    count = 0.0
    for operation in operations:
        labels = {"operation": operation, **OVER_GRPC}
        count += await plane.metric("hosting_request_duration_seconds_count", **labels)
        count -= await plane.metric("hosting_front_passed_total", **labels)
    return int(count)


def connected(player_token: str) -> bytes:
    return pb.PlayerConnectedRequest(player_token=player_token).SerializeToString()


async def test_front_answers_each_outcome_as_python_does(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, channel: Channel
) -> None:
    other, ended = await session.attach("large"), await session.attach("large")
    used = await session.player(lobby, is_connected=True)
    rows = {
        "PLAYER_TOKEN_CONSUMED": (lobby, used),
        "PLAYER_TOKEN_WRONG_LOBBY": (lobby, await session.player(other)),
        "PLAYER_TOKEN_INVALID": (lobby, used[:-2] + ("A" if used[-2] != "A" else "B") + used[-1]),
        "PLAYER_REMOVED": (ended, await session.player(ended)),
    }
    await session.detach(ended)
    before = await native_answers(plane, "connected")
    for code, (owner, player_token) in rows.items():
        metadata = [bearer(owner.token)]
        front = await call(channel, CONNECTED, connected(player_token), metadata)
        python = await call(channel, CONNECTED, connected(player_token), [*metadata, NOT_PLAIN])
        assert front.code == code
        assert without_ray(front) == without_ray(python)
    answers = [
        await call(channel, CONNECTED, connected(await session.player(lobby)), metadata)
        for metadata in ([bearer(lobby.token)], [bearer(lobby.token), NOT_PLAIN])
    ]
    assert answers[0].code == "OK"
    assert without_ray(answers[0]) == without_ray(answers[1])
    assert await native_answers(plane, "connected") == before + len(rows) + 1


def without_ray(answer: Answer) -> Answer:
    ray_id = answer.trailers["x-ray-id"]
    assert len(ray_id) == 32
    return Answer(answer.status, answer.message, answer.data, answer.trailers | {"x-ray-id": ""})


async def test_front_reserves_slots_with_the_bytes_of_python(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, channel: Channel
) -> None:
    join = METHOD_OF["join"].grpc_path, pb.JoinLobbyRequest(lobby_id=lobby.id), pb.JoinLobbyResponse
    party = pb.FindLobbyRequest(game_modes=["large"], party_size=3)
    find = METHOD_OF["find"].grpc_path, party, pb.FindLobbyResponse
    before = await native_answers(plane, "join", "find")
    for path, request, response_type in (join, find):
        data, metadata = request.SerializeToString(), [bearer(plane.service_token)]
        front = await call(channel, path, data, metadata)
        python = await call(channel, path, data, [*metadata, NOT_PLAIN])
        assert front.code == "OK", front
        assert _without_tokens(front.data) == _without_tokens(python.data)
        assert front.data == response_type.FromString(front.data).SerializeToString()
    assert await native_answers(plane, "join", "find") == before + 2


def _without_tokens(data: bytes) -> bytes:
    tokens = player_tokens(data)
    assert tokens
    for token in tokens:
        data = data.replace(token.encode(), b"_" * len(token))
    return data


async def test_calls_of_both_ways_are_counted_once(
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
    for metadata in ([], [NOT_PLAIN], []):
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
    assert [answer.code for answer in answers] == ["OK", "OK"]


async def test_health_and_reflection_are_passed_on(plane: Plane, channel: Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "hosting.v1.Matchmaker", "hosting.v1.Groups"):
        health = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert health.status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    reflect = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
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


@dataclass
class Comparison:
    call_count: int = 0
    native: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 300), pytest.param(2, 5_000, marks=pytest.mark.full)]
)
async def test_front_answers_generated_calls_as_python_does(
    make_plane: MakePlane, seed: int, count: int
) -> None:
    plane = make_plane(shim=None, settings=SETTINGS)
    namespaces = await start_twins(plane)
    comparison = Comparison()
    async with grpc.aio.insecure_channel(plane.addresses["grpc"]) as channel:
        await compare(plane, channel, namespaces, comparison, seed, count)
    for twin in namespaces.twins:
        await twin.client.close()
    print(seed, comparison.codes, comparison.native)
    assert not comparison.differences, "\n\n".join(comparison.differences)
    assert comparison.native.total() >= SHARE_MIN * count
    assert comparison.native.keys() == METHOD_OF.keys()


async def compare(
    plane: Plane,
    channel: Channel,
    namespaces: TwinNamespaces,
    comparison: Comparison,
    seed: int,
    count: int,
) -> None:
    """Makes each generated call to one namespace over the front, and to an equal one over Python."""
    generator = CallGenerator(seed, namespaces.players)
    while comparison.call_count < count and len(comparison.differences) < DIFFERENCES_MAX:
        await namespaces.renew()
        before = await _native(plane)
        for _ in range(min(RENEW_EVERY, count - comparison.call_count)):
            comparison.call_count += 1
            difference = await _compare_call(channel, namespaces, generator.draw(), comparison)
            if difference:
                comparison.differences.append(difference)
                break
        else:
            front, python = await namespaces.slots()
            if front != python:
                comparison.differences.append(f"slots: {front} and {python}")
        comparison.native += await _native(plane) - before


async def _native(plane: Plane) -> Counter[str]:
    return Counter({operation: await native_answers(plane, operation) for operation in METHOD_OF})


async def _compare_call(
    channel: Channel, namespaces: TwinNamespaces, generated: GeneratedCall, comparison: Comparison
) -> str | None:
    path = METHOD_OF[generated.operation].grpc_path
    answers = []
    for twin, more in zip(namespaces.twins, ([], [NOT_PLAIN]), strict=True):
        metadata = [*generated.filled_metadata(twin.fill), *more]
        answers.append(await call(channel, path, generated.message(twin.fill), metadata))
    front, python = (
        _comparable(twin, generated.operation, answer)
        for twin, answer in zip(namespaces.twins, answers, strict=True)
    )
    comparison.codes[answers[0].code] += 1
    if front != python:
        return f"{generated}\nfront:  {front}\npython: {python}"
    if answers[0].code == "OK" and generated.operation in PLACEMENTS:
        namespaces.add_placed_players(
            [_as_http(generated.operation, answer.data) for answer in answers]
        )
    return None


def _as_http(operation: str, data: bytes) -> RawResponse:
    return RawResponse(200, {}, json.dumps(_fields(operation, data)).encode())


def _fields(operation: str, data: bytes) -> dict[str, Any]:
    message = METHOD_OF[operation].response.FromString(data)
    return MessageToDict(message, preserving_proto_field_name=True)


def _comparable(twin: Twin, operation: str, answer: Answer) -> dict[str, Any]:
    """Returns the parts that must be equal: all but ids, tokens, and the time of a retry."""
    trailers = dict(answer.trailers)
    ray_id = str(trailers.get("x-ray-id", ""))
    if ray_id != TRACE_ID:
        trailers["x-ray-id"] = f"{len(ray_id)} digits"
    details = trailers.pop("grpc-status-details-bin", b"")
    assert isinstance(details, bytes)
    status = MessageToDict(status_pb2.Status.FromString(details))
    for detail in status.get("details", ()):
        detail.pop("retryDelay", None)
    content = {
        "status": answer.status.name,
        "message": answer.message,
        "trailers": trailers,
        "details": status,
        "response": _fields(operation, answer.data),
    }
    named: dict[str, Any] = json.loads(twin.with_names(json.dumps(content).encode()))
    return named | {"tokens": len(player_tokens(answer.data)), "length": len(answer.data)}
