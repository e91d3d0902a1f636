"""gRPC between the processes of the service, over a unix socket with mode 0600.

It has the server, the client, and both sides of the long poll `Control.NextChanges`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.errors import ServiceError, Unreachable
from pyservice.observability.logging import get_logger
from pyservice.pb.errors import WRONG_MESSAGE
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.rpc.error_status import read_error, status_code, trailers
from pyservice.transport import trace_context
from pyservice.watch import Change, Changes, Topics

Handler = Callable[[Any], Awaitable[Message]]

_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
# Longest path of a unix socket, without its final zero.
_MAX_PATH_BYTES: Final = 107
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
)
_CLIENT_OPTIONS: Final = (
    *_OPTIONS,
    # Reconnects soon even after another client's failure, so that a restarted plane is reached within a second.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
)

log = get_logger("pyservice.rpc")


def method_of(name: str) -> MethodDescriptor:
    """Returns the method with this full name. Raises KeyError."""
    service, _, rpc_name = name.rpartition(".")
    method: MethodDescriptor = (
        descriptor_pool.Default().FindServiceByName(service).methods_by_name[rpc_name]
    )
    return method


def unix_address(path: Path) -> str:
    text = str(path)
    if len(os.fsencode(text)) > _MAX_PATH_BYTES:
        raise OSError(f"{text}: longer than the {_MAX_PATH_BYTES} bytes of a unix socket's path")
    return f"unix:{text}"


class InternalServer:
    """Serves gRPC methods on the unix socket `path`. `handlers` are keyed by full method name."""

    def __init__(self, handlers: Mapping[str, Handler], path: Path) -> None:
        self._path = path
        self._server = grpc.aio.server(options=_OPTIONS)
        add_internal(self._server, handlers)

    async def start(self) -> None:
        address = unix_address(self._path)
        try:
            listen(self._server, address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._path}: {error}") from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)
        self._path.unlink(missing_ok=True)


def listen(server: grpc.aio.Server, address: str) -> int:
    mask = os.umask(0o177)
    try:
        return server.add_insecure_port(address)
    finally:
        os.umask(mask)


def add_internal(server: grpc.aio.Server, handlers: Mapping[str, Handler]) -> None:
    services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for name, handler in handlers.items():
        service, _, rpc_name = name.rpartition(".")
        services.setdefault(service, {})[rpc_name] = _serve(method_of(name), handler)
    for service, methods in services.items():
        generic = grpc.method_handlers_generic_handler(service, methods)
        server.add_generic_rpc_handlers((generic,))


def _serve(method: MethodDescriptor, handler: Handler) -> grpc.RpcMethodHandler[Any, Any]:
    parse = message_factory.GetMessageClass(method.input_type).FromString

    async def serve(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            return (await handler(parse(data))).SerializeToString()
        except Exception as error:  # noqa: BLE001 — `end_failed` logs an unexpected one
            failure = error
        return await end_failed(context, method, failure)

    return grpc.unary_unary_rpc_method_handler(serve)


async def end_failed(
    context: grpc.aio.ServicerContext[Any, Any], method: MethodDescriptor, error: Exception
) -> NoReturn:
    """Ends a call with the status of an error. An unexpected error is logged and not revealed."""
    ray_id = trace_context.new_ray_id()
    match error:
        case ServiceError():
            failure = error
        case DecodeError():
            failure = ServiceError("BODY_INVALID", WRONG_MESSAGE)
        case _:
            log.error(
                "internal call failed", method=method.full_name, ray_id=ray_id, exc_info=error
            )
            failure = ServiceError("INTERNAL")
    await context.abort(status_code(failure), failure.detail, trailers(failure, ray_id))
    raise AssertionError("abort raises")


async def call_unary(
    channel: grpc.aio.Channel, name: str, request: Message, timeout_s: float, place: str
) -> Any:
    """Calls a method by its full name. Raises ServiceError, and Unreachable with the server's place."""
    method = method_of(name)
    call = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    try:
        return await call(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as failure:
        raise call_error(failure, place) from failure


def call_error(failure: grpc.aio.AioRpcError, place: str) -> ServiceError | Unreachable:
    """Returns the error of the service, or Unreachable if the call did not reach it."""
    return read_error(failure) or Unreachable(f"{place}: {failure.details()}")


class InternalClient:
    """Client of an `InternalServer`. Use it as an async context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel = grpc.aio.insecure_channel(unix_address(path), options=_CLIENT_OPTIONS)

    async def call(self, name: str, request: Message, timeout_s: float = 10.0) -> Any:
        return await call_unary(self._channel, name, request, timeout_s, str(self._path))

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


NEXT_CHANGES: Final = "hosting.internal.v1.Control.NextChanges"

_POLL_MS: Final = 20_000
_TIMEOUT_MARGIN_MS: Final = 10_000
"""Timeout beyond the requested wait."""
_RETRY_DELAYS_S: Final = doubling(0.05, 1.0)
_PAUSE_S: Final = 0.02
"""Pause after each answer, so that one answer has all changes of that time."""


def next_changes(topics: Topics) -> Handler:
    async def answer(request: control_pb2.NextChangesRequest) -> control_pb2.NextChangesResponse:
        wait_s = min(request.wait_ms, 2 * _POLL_MS) / 1000
        changes = await topics.changes_after(request.run, request.after_sequence, wait_s)
        return control_pb2.NextChangesResponse(
            run=changes.run,
            sequence=changes.sequence,
            changes=(
                control_pb2.TopicChange(topic=topic, sequence=sequence)
                for topic, sequence in changes.topics
            ),
            is_complete=changes.is_complete,
        )

    return answer


class ChangesPoll:
    """Asks the control plane for changes, and passes them to `take`. Run `run` as a task."""

    def __init__(self, client: InternalClient, take: Callable[[Changes], None]) -> None:
        self._client = client
        self._take = take

    async def run(self) -> None:
        backoff = Backoff(_RETRY_DELAYS_S)
        run, after = "", 0
        while True:
            try:
                changes = await self._ask(run, after)
            except (Unreachable, ServiceError):
                # `ControlPlaneMonitor` reports that the control plane does not answer.
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            run, after = changes.run, changes.sequence
            self._take(changes)
            await asyncio.sleep(_PAUSE_S)

    async def _ask(self, run: str, after: int) -> Changes:
        request = control_pb2.NextChangesRequest(run=run, after_sequence=after, wait_ms=_POLL_MS)
        timeout_s = (_POLL_MS + _TIMEOUT_MARGIN_MS) / 1000
        response = await self._client.call(NEXT_CHANGES, request, timeout_s)
        topics = tuple(Change(change.topic, change.sequence) for change in response.changes)
        return Changes(response.run, response.sequence, topics, response.is_complete)
