"""Sample service with a few operations, and clients for each transport.

`connected` responds at once, `find` returns an error, `join` waits for the test, and `ready`
raises an unexpected exception. Messages and rules are those of the real service.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import grpc
import orjson
from google.protobuf.message import Message

from pyservice.calls import Call, Caller, Operation, Run, TokenKind
from pyservice.edge.http_application import HttpApplication
from pyservice.edge.http_server import HttpServer
from pyservice.errors import ServiceError
from pyservice.observability.metrics import RequestMetrics
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.rpc import RpcServer
from pyservice.rpc.error_status import read_error
from pyservice.schema.methods import METHODS
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from tests.support.waiting import PATIENCE_S

MATCHMAKER = "hosting.v1.Matchmaker"
LOBBY_ID = "00000000-0000-4000-8000-000000000000"
GOOD = {"authorization": "Bearer pub_good"}
CONNECTED = {"player_token": "some token"}
FIND = {"game_modes": ["duel"]}
JOIN = {"lobby_id": LOBBY_ID}


@dataclass
class SmallService:
    calls: list[Call] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    may_join: asyncio.Event = field(default_factory=asyncio.Event)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: ServiceError = field(
        default_factory=lambda: ServiceError("MATCHMAKER_NO_AVAILABLE_LOBBIES")
    )
    """The error of `find`."""

    def operations(self) -> dict[str, Operation]:
        runs: dict[str, Run] = {
            "PlayerConnected": self.connected,
            "FindLobby": self.find,
            "JoinLobby": self.join,
            "LobbyReady": self.ready,
            "ListLobbies": self.list,
            "SetLobbyState": self.set_state,
            "GetLobbyState": self.get_state,
            "AttachLobby": self.attach,
            "DetachLobby": self.detach,
        }
        return {
            f"{MATCHMAKER}.{name}": Operation(f"{MATCHMAKER}.{name}", self.authorize, run)
            for name, run in runs.items()
        }

    def authorize(self, call: Call) -> Caller:
        """`Bearer pub_good` is a game client. `Bearer env_<n>` is one of several game back ends."""
        if call.authorization is None:
            raise ServiceError("TOKEN_MISSING")
        token = call.authorization.removeprefix("Bearer ")
        if token != "pub_good" and not token.startswith("env_"):
            raise ServiceError("TOKEN_INVALID")
        kind = TokenKind.PUBLIC if token == "pub_good" else TokenKind.SERVICE
        return Caller(kind, b"n" * 16, b"", token.encode(), call)

    async def connected(self, message: pb.PlayerConnectedRequest, caller: Caller) -> Message:
        self.calls.append(caller.call)
        if message.player_token == "used":
            raise ServiceError("PLAYER_TOKEN_CONSUMED", metadata={"since_ms": "5"})
        return pb.PlayerConnectedResponse()

    async def find(self, message: pb.FindLobbyRequest, caller: Caller) -> Message:
        self.calls.append(caller.call)
        raise self.refusal

    async def join(self, message: pb.JoinLobbyRequest, caller: Caller) -> Message:
        self.calls.append(caller.call)
        self.waiting.set()
        try:
            await self.may_join.wait()
        except asyncio.CancelledError:
            self.disconnected.set()
            raise
        answer = pb.JoinLobbyResponse()
        answer.lobby.lobby_id = message.lobby_id
        answer.lobby.region.region_id = "local"
        answer.player.token = "player_x"
        return answer

    async def ready(self, message: Message, caller: Caller) -> Message:
        raise RuntimeError("secret of the inside")

    async def list(self, message: pb.ListLobbiesRequest, caller: Caller) -> Message:
        self.calls.append(caller.call)
        answer = pb.ListLobbiesResponse()
        if message.include_state:
            answer.lobbies.add(
                lobby_id=LOBBY_ID, game_mode_id="duel", state=b'{"big":18446744073709551615}'
            )
        return answer

    async def set_state(self, message: pb.SetLobbyStateRequest, caller: Caller) -> Message:
        self.state = message.state
        return pb.SetLobbyStateResponse()

    async def get_state(self, message: pb.GetLobbyStateRequest, caller: Caller) -> Message:
        return pb.GetLobbyStateResponse(state=self.state)

    async def attach(self, message: pb.AttachLobbyRequest, caller: Caller) -> Message:
        self.calls.append(caller.call)
        return pb.AttachLobbyResponse(lobby_id=LOBBY_ID, lobby_token="lobby_x")

    async def detach(self, message: pb.DetachLobbyRequest, caller: Caller) -> Message:
        return pb.DetachLobbyResponse(did_remove=True)

    state: bytes = b""


@dataclass
class Outcome:
    code: str
    ray_id: str
    fields: dict[str, Any]
    problems: tuple[tuple[str, ...], ...] = ()
    retry_after_s: int | None = None
    detail: str = ""


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class HttpConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Self:
        return cls(*await asyncio.open_connection(*address))

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        self.say(method, path, body, headers)
        return await self.read(has_body=method != "HEAD")

    def say(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        fields = {"host": "test", **(headers or {})}
        if body is not None:
            fields.setdefault("content-length", str(len(body)))
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + (body or b""))

    async def read(self, *, has_body: bool = True) -> Response:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        length = int(headers.get("content-length", 0)) if has_body else 0
        return Response(int(status_line.split()[1]), headers, await self.reader.readexactly(length))

    async def rest(self) -> bytes:
        return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class HttpApi:
    def __init__(self, address: tuple[str, int], server: HttpServer) -> None:
        self.address = address
        self.server = server

    async def call(
        self, name: str, fields: Mapping[str, Any] | None = None, headers: Mapping[str, str] = GOOD
    ) -> Outcome:
        method = METHODS[f"{MATCHMAKER}.{name}"]
        rest = dict(fields or {})
        path = method.template.format(**{name: rest.pop(name) for name in method.path_fields})
        body = orjson.dumps(rest) if method.body_field == "*" else rest.get(method.body_field)
        connection = await HttpConnection.open(self.address)
        try:
            response = await connection.ask(method.http_method, path, body, headers)
        finally:
            await connection.close()
        content = orjson.loads(response.body)
        retry_after = response.headers.get("retry-after")
        return Outcome(
            content["code"] if response.status != 200 else "OK",
            response.headers["x-ray-id"],
            content,
            tuple(tuple(problem["path"]) for problem in content.get("errors", ())),
            None if retry_after is None else int(retry_after),
            content.get("detail", ""),
        )

    async def stop(self, grace_s: float) -> None:
        await self.server.stop(grace_s)


class GrpcApi:
    def __init__(self, channel: grpc.aio.Channel, server: RpcServer, port: int = 0) -> None:
        self.port = port
        self.channel = channel
        self.server = server

    async def call(
        self, name: str, fields: Mapping[str, Any] | None = None, headers: Mapping[str, str] = GOOD
    ) -> Outcome:
        method = METHODS[f"{MATCHMAKER}.{name}"]
        call = self.channel.unary_unary(
            method.grpc_path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(method.request(**(fields or {})), metadata=tuple(headers.items()))
        try:
            answer = await call
        except grpc.aio.AioRpcError as failure:
            error = read_error(failure)
            if error is None:
                raise
            ray_id = dict(failure.trailing_metadata() or ())["x-ray-id"]
            problems = tuple(problem.path for problem in error.errors)
            return Outcome(error.code, str(ray_id), {}, problems, error.retry_after_s, error.detail)
        ray_id = dict(await call.trailing_metadata())["x-ray-id"]
        return Outcome("OK", str(ray_id), {"answer": answer})

    async def stop(self, grace_s: float) -> None:
        await self.server.stop(grace_s)


def code_of(response: Response) -> str:
    """Returns the code of an error response, after a check of its form."""
    problem = response.json
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["status"] == response.status
    assert problem["ray_id"] == response.headers["x-ray-id"]
    assert problem["message"] == problem["detail"]
    return str(problem["code"])


async def is_closed(connection: HttpConnection) -> bool:
    """Returns whether the server closes the connection without more data."""
    return await asyncio.wait_for(connection.rest(), PATIENCE_S) == b""


Api = HttpApi | GrpcApi
APIS = ("http", "grpc")


def listener() -> socket.socket:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


@asynccontextmanager
async def open_http(app: Any) -> AsyncIterator[HttpApi]:
    bound = listener()
    server = HttpServer(app, [bound])
    await server.start()
    try:
        yield HttpApi(bound.getsockname(), server)
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def http_connection(app: Any) -> AsyncIterator[HttpConnection]:
    """Serves an application, and yields a connection to it."""
    async with open_http(app) as api:
        connection = await HttpConnection.open(api.address)
        yield connection
        await connection.close()


class Service(Protocol):
    def operations(self) -> dict[str, Operation]: ...


@asynccontextmanager
async def open_api(
    kind: str,
    service: Service,
    settings: TransportSettings | None = None,
    metrics: RequestMetrics | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Api]:
    settings, metrics, limits = (
        settings or TransportSettings(),
        metrics or RequestMetrics(),
        limits or Limits(),
    )
    operations = service.operations()
    async with AsyncExitStack() as stack:
        if kind == "grpc":
            limit_of = limits.data_plane_limit
            server = RpcServer(operations, settings, metrics, limit_of, "127.0.0.1:0")
            port = await server.start()
            stack.push_async_callback(server.stop, 0.0)
            channel = grpc.aio.insecure_channel(
                f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
            )
            yield GrpcApi(await stack.enter_async_context(channel), server, port)
            return
        app = HttpApplication(operations, settings, metrics, limits.data_plane_limit)
        yield await stack.enter_async_context(open_http(app))
