"""Health service of gRPC (`Check` and `Watch`), and server reflection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

HEALTH: Final = health.SERVICE_NAME
REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"
REFLECTION_V1ALPHA: Final = reflection.SERVICE_NAME

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # an untyped package
    """Health status of the server and of each gRPC service.

    `end` ends all `Watch` calls, because the server waits for them when it stops.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._statuses = dict.fromkeys(("", *services), _NOT_SERVING)
        self._change = asyncio.Event()
        self._is_ending = False

    def set_serving(self, is_serving: bool) -> None:
        status = _SERVING if is_serving and not self._is_ending else _NOT_SERVING
        self._statuses = dict.fromkeys(self._statuses, status)
        self._wake()

    def end(self) -> None:
        self._is_ending = True
        self.set_serving(False)

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of this name is served here")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        last_status = None
        while True:
            change = self._change
            status = self._statuses.get(request.service, _UNKNOWN)
            if status != last_status:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last_status = status
            elif self._is_ending:
                break
            else:
                await change.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")


def add_health(server: grpc.aio.Server, servicer: Health) -> None:
    forms: dict[str, Any] = {
        "request_deserializer": health_pb2.HealthCheckRequest.FromString,
        "response_serializer": health_pb2.HealthCheckResponse.SerializeToString,
    }
    handlers = {
        "Check": grpc.unary_unary_rpc_method_handler(servicer.Check, **forms),
        "Watch": grpc.unary_stream_rpc_method_handler(servicer.Watch, **forms),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, handlers),))


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    _register_v1()
    names = (*services, HEALTH, REFLECTION_V1, REFLECTION_V1ALPHA)
    servicer = reflection.aio.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (REFLECTION_V1, REFLECTION_V1ALPHA):
        generic = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        server.add_generic_rpc_handlers((generic,))


def _register_v1() -> None:
    pool = descriptor_pool.Default()
    description = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(description)
    description.name = "grpc/reflection/v1/reflection.proto"
    description.package = "grpc.reflection.v1"
    for message in description.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = _in_v1(field.type_name)
    for service in description.service:
        for method in service.method:
            method.input_type = _in_v1(method.input_type)
            method.output_type = _in_v1(method.output_type)
    pool.AddSerializedFile(description.SerializeToString())


def _in_v1(name: str) -> str:
    return name.replace(".grpc.reflection.v1alpha.", ".grpc.reflection.v1.")
