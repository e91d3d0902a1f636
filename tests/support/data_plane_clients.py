"""Clients of both transports with one interface. A call returns a `TransportResponse`.

The clients use only the generated messages of the service. They raise `ResponseLost` if a response is
missing. They never retry, except for the library of a gRPC client with `is_default`.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Protocol

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from pyservice.pb.hosting.v1 import events_pb2, matchmaker_pb2

_ATTACH: Final = "/cloud/games/{game_id}/namespaces/{namespace_id}/lobbies/attach"
_DETACH: Final = "/cloud/games/{game_id}/matchmaker/lobbies/{lobby_id}"

OPERATIONS: Final[dict[str, tuple[str, str, str]]] = {
    "find": ("FindLobby", "POST", "/matchmaker/lobbies/find"),
    "create": ("CreateLobby", "POST", "/matchmaker/lobbies/create"),
    "join": ("JoinLobby", "POST", "/matchmaker/lobbies/join"),
    "list": ("ListLobbies", "GET", "/matchmaker/lobbies/list"),
    "regions": ("ListRegions", "GET", "/matchmaker/regions"),
    "statistics": ("GetPlayerStatistics", "GET", "/matchmaker/players/statistics"),
    "connected": ("PlayerConnected", "POST", "/matchmaker/players/connected"),
    "disconnected": ("PlayerDisconnected", "POST", "/matchmaker/players/disconnected"),
    "ready": ("LobbyReady", "POST", "/matchmaker/lobbies/ready"),
    "closed": ("SetLobbyClosed", "PUT", "/matchmaker/lobbies/closed"),
    "set_state": ("SetLobbyState", "PUT", "/matchmaker/lobbies/state"),
    "get_state": ("GetLobbyState", "GET", "/matchmaker/lobbies/{lobby_id}/state"),
    "heartbeat": ("Heartbeat", "POST", "/matchmaker/lobbies/heartbeat"),
    "attach": ("AttachLobby", "POST", _ATTACH),
    "detach": ("DetachLobby", "DELETE", _DETACH),
    "live_events": ("GetLiveEvents", "GET", "/events/live"),
}
Fields = Mapping[str, Any]


class ResponseLost(Exception):
    pass


@dataclass(frozen=True, slots=True)
class TransportResponse:
    transport: str
    code: str
    body: Any
    status: str
    errors: tuple[tuple[str, ...], ...] = ()
    """Paths of field problems. The last part of a path names the problem."""
    retry_after_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokens(self) -> list[str]:
        players = self.body.get("players") or [self.body["player"]]
        return [str(player["token"]) for player in players]

    @property
    def lobby_id(self) -> str:
        return str(self.body["lobby"]["lobby_id"])


class PlaneClient(Protocol):
    name: str

    async def call(
        self,
        operation: str,
        fields: Fields | None = None,
        *,
        token: str | None = None,
        key: str | None = None,
        timeout_s: float = 60.0,
    ) -> TransportResponse:
        """Sends one request. Raises ResponseLost without a response, and TimeoutError after `timeout_s`."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(frozen=True, slots=True)
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes


class PlaneHttpClient:
    name = "http"

    def __init__(self, address: str) -> None:
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self._idle: defaultdict[str, list[_Connection]] = defaultdict(list)
        """Idle connections by operation: the front keeps a connection that has only its own."""

    async def call(
        self,
        operation: str,
        fields: Fields | None = None,
        *,
        token: str | None = None,
        key: str | None = None,
        timeout_s: float = 60.0,
    ) -> TransportResponse:
        _, method, template = OPERATIONS[operation]
        rest = dict(fields or {})
        path = template
        for name in [name for name in rest if f"{{{name}}}" in template]:
            path = path.replace(f"{{{name}}}", str(rest.pop(name)))
        if method in ("GET", "DELETE"):
            query = "&".join(
                f"{name}={value if isinstance(value, str) else json.dumps(value)}"
                for name, value in rest.items()
            )
            path, body = (f"{path}?{query}" if query else path), b""
        else:
            body = rest["state"] if operation == "set_state" else json.dumps(rest).encode()
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        if key is not None:
            headers["idempotency-key"] = key
        async with asyncio.timeout(timeout_s):
            response = await self.request(method, path, headers, body, operation)
        return _http_answer(operation, response)

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        operation: str = "",
    ) -> RawResponse:
        return await self.send(self.request_bytes(method, path, headers, body), operation)

    def request_bytes(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body or method in ("POST", "PUT"):
            lines.append(f"content-length: {len(body)}")
            if not any(name.lower() == "content-type" for name in headers or {}):
                lines.append("content-type: application/json")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body

    async def send(self, request: bytes, operation: str = "") -> RawResponse:
        idle = self._idle[operation]
        connection = await self._connection(idle)
        is_reusable = False
        try:
            connection.writer.write(request)
            await connection.writer.drain()
            response = await read_response(connection.reader)
            is_reusable = response.headers.get("connection", "").lower() != "close"
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise ResponseLost(repr(error)) from None
        finally:
            # After a cancelled request a late response must not be read as the answer to the next
            # request.
            if is_reusable:
                idle.append(connection)
            else:
                connection.writer.transport.abort()
        return response

    async def close(self) -> None:
        for connection in chain.from_iterable(self._idle.values()):
            connection.writer.transport.abort()
        self._idle.clear()
        await asyncio.sleep(0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Opens a connection of its own for the context."""
        reader, writer = await self.connect()
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _connection(self, idle: list[_Connection]) -> _Connection:
        while idle:
            connection = idle.pop()
            if not connection.reader.at_eof() and not connection.writer.transport.is_closing():
                return connection
            connection.writer.transport.abort()
        try:
            return _Connection(*await self.connect())
        except OSError as error:
            raise ResponseLost(repr(error)) from None


async def read_response(reader: asyncio.StreamReader) -> RawResponse:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {}
    for line in head[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RawResponse(int(head[0].split()[1]), headers, body)


def _http_answer(operation: str, response: RawResponse) -> TransportResponse:
    if response.status == 200:
        body = response.body if operation == "get_state" else json.loads(response.body)
        return TransportResponse("http", "OK", body, "200", headers=response.headers)
    problem = json.loads(response.body)
    errors = tuple(tuple(error["path"]) for error in problem.get("errors", ()))
    retry = response.headers.get("retry-after")
    return TransportResponse(
        "http",
        problem["code"],
        problem,
        str(response.status),
        errors,
        None if retry is None else float(retry),
        response.headers,
        problem.get("metadata", {}),
    )


class PlaneGrpcClient:
    name = "grpc"

    def __init__(self, address: str, channels: int = 1, *, is_default: bool = False) -> None:
        """`is_default` leaves the options of gRPC as they are.

        Such a client waits 20 s for a connection. When its connection ends, it repeats calls that
        are not sent, or not processed according to GOAWAY. It repeats no other call.
        """
        options = [("grpc.use_local_subchannel_pool", 1)]
        if not is_default:
            options += [
                ("grpc.enable_retries", 0),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
            ]
        self.channels = [grpc.aio.insecure_channel(address, options) for _ in range(channels)]
        self._calls = [
            {operation: _method(channel, rpc) for operation, (rpc, _, _) in OPERATIONS.items()}
            for channel in self.channels
        ]
        self._turn = 0

    async def call(
        self,
        operation: str,
        fields: Fields | None = None,
        *,
        token: str | None = None,
        key: str | None = None,
        timeout_s: float = 60.0,
    ) -> TransportResponse:
        metadata = [] if token is None else [("authorization", f"Bearer {token}")]
        if key is not None:
            metadata.append(("idempotency-key", key))
        self._turn += 1
        method = self._calls[self._turn % len(self._calls)][operation]
        call = method(_request(operation, fields or {}), metadata=metadata)
        try:
            async with asyncio.timeout(timeout_s):
                message = await call
        except grpc.aio.AioRpcError as error:
            return grpc_refusal(error)
        finally:
            call.cancel()
        if operation == "get_state":
            return TransportResponse("grpc", "OK", message.state, "OK")
        return TransportResponse(
            "grpc", "OK", MessageToDict(message, preserving_proto_field_name=True), "OK"
        )

    async def is_serving(self, timeout_s: float = 60.0) -> bool:
        check: Any = self.channels[0].unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        response = await check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()


def _method(channel: grpc.aio.Channel, rpc: str) -> Any:
    module, service = _service_of(rpc)
    method = module.DESCRIPTOR.services_by_name[service].methods_by_name[rpc]
    answer = getattr(module, method.output_type.name)
    return channel.unary_unary(
        f"/hosting.v1.{service}/{rpc}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )


def _service_of(rpc: str) -> tuple[Any, str]:
    return (events_pb2, "Events") if rpc == "GetLiveEvents" else (matchmaker_pb2, "Matchmaker")


def _request(operation: str, fields: Fields) -> Any:
    rest = dict(fields)
    rpc = OPERATIONS[operation][0]
    request = getattr(_service_of(rpc)[0], f"{rpc}Request")()
    if "state" in rest:
        request.state = rest.pop("state")
    if isinstance(rest.get("player_tokens"), list):
        rest["player_tokens"] = {"tokens": rest["player_tokens"]}
    return ParseDict(rest, request)


def grpc_refusal(error: grpc.aio.AioRpcError) -> TransportResponse:
    metadata = dict(error.trailing_metadata() or ())
    packed = metadata.get("grpc-status-details-bin")
    if packed is None:
        # A status without details is created by the gRPC library of the client, not by the service.
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise ResponseLost(error.details())
        raise AssertionError(f"an error without details: {error.code()} {error.details()}")
    code, output = "", dict[str, str]()
    retry: float | None = None
    errors: tuple[tuple[str, ...], ...] = ()
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo.FromString(detail.value)
            code, output = info.reason, dict(info.metadata)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry = delay.seconds + delay.nanos / 1e9
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            violations = error_details_pb2.BadRequest.FromString(detail.value).field_violations
            errors = tuple(_violation_path(one) for one in violations)
    text = {name: value for name, value in metadata.items() if isinstance(value, str)}
    return TransportResponse(
        "grpc", code, error.details(), error.code().name, errors, retry, text, output
    )


def _violation_path(violation: error_details_pb2.BadRequest.FieldViolation) -> tuple[str, ...]:
    word = violation.reason.lower().replace("_", "-")
    return (*(violation.field.split(".") if violation.field else ()), word)


@dataclass
class PlaneClients:
    http: PlaneHttpClient
    grpc: PlaneGrpcClient

    def __iter__(self) -> Iterator[PlaneClient]:
        yield self.http
        yield self.grpc
