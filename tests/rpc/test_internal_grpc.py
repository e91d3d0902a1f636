"""gRPC calls between the planes, over a Unix socket that other users cannot open."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from pyservice.errors import FieldProblem, ServiceError, Unreachable
from pyservice.pb.hosting.internal.v1 import admin_pb2 as pb
from pyservice.rpc import InternalClient, InternalServer
from tests.support.waiting import eventually, within

pytestmark = pytest.mark.anyio

CREATE_TOKEN = "hosting.internal.v1.Admin.CreateToken"


async def create_token(request: pb.CreateTokenRequest) -> pb.CreateTokenResponse:
    if request.namespace == "broken":
        raise RuntimeError("secret of the inside")
    if request.namespace == "slow":
        await asyncio.Event().wait()
    if request.namespace != "arena/prod":
        problem = FieldProblem(("namespace", "not-found"), "namespace is not there")
        raise ServiceError(
            "NAMESPACE_NOT_FOUND", errors=(problem,), metadata={"namespace": request.namespace}
        )
    return pb.CreateTokenResponse(token="the token", token_id="its id")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


@pytest.fixture
async def client(path: Path) -> AsyncIterator[InternalClient]:
    server = InternalServer({CREATE_TOKEN: create_token}, path)
    await server.start()
    async with InternalClient(path) as client:
        yield client
    await server.stop(0.0)


async def test_call_returns_its_response(client: InternalClient) -> None:
    answer = await client.call(CREATE_TOKEN, pb.CreateTokenRequest(namespace="arena/prod"))
    assert answer == pb.CreateTokenResponse(token="the token", token_id="its id")


async def test_error_arrives_as_it_was_raised(client: InternalClient) -> None:
    with pytest.raises(ServiceError) as raised:
        await client.call(CREATE_TOKEN, pb.CreateTokenRequest(namespace="other"))
    error = raised.value
    assert error.code == "NAMESPACE_NOT_FOUND"
    assert error.errors == (FieldProblem(("namespace", "not-found"), "namespace is not there"),)
    assert error.metadata == {"namespace": "other"}


async def test_unexpected_exception_reveals_nothing(client: InternalClient) -> None:
    with pytest.raises(ServiceError) as raised:
        await client.call(CREATE_TOKEN, pb.CreateTokenRequest(namespace="broken"))
    assert raised.value.code == "INTERNAL"
    assert "secret" not in str(raised.value)


async def test_call_has_a_timeout(client: InternalClient) -> None:
    with pytest.raises(Unreachable):
        await client.call(CREATE_TOKEN, pb.CreateTokenRequest(namespace="slow"), timeout_s=0.05)


async def test_socket_is_private_to_its_owner(client: InternalClient, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_missing_server_is_unreachable(path: Path) -> None:
    async with InternalClient(path) as client:
        with pytest.raises(Unreachable, match=r"admin\.sock"):
            await client.call(CREATE_TOKEN, pb.CreateTokenRequest())


async def test_stale_socket_of_a_killed_process_is_replaced(path: Path) -> None:
    first = InternalServer({CREATE_TOKEN: create_token}, path)
    await first.start()
    stale_path = path.with_suffix(".left")
    path.rename(stale_path)  # With this name, the shutdown does not remove the socket.
    await first.stop(0.0)
    stale_path.rename(path)
    second = InternalServer({CREATE_TOKEN: create_token}, path)
    await second.start()
    async with InternalClient(path) as client:
        await client.call(CREATE_TOKEN, pb.CreateTokenRequest(namespace="arena/prod"))
    await second.stop(0.0)
    assert not path.exists()


@pytest.mark.timing
async def test_restarted_server_is_reached_within_a_second(path: Path) -> None:
    request = pb.CreateTokenRequest(namespace="arena/prod")
    async with InternalClient(path) as client:
        for _ in range(30):
            with pytest.raises(Unreachable):
                await client.call(CREATE_TOKEN, request)
            # The client waits longer after each failed connection.
            await asyncio.sleep(0.02)
        server = InternalServer({CREATE_TOKEN: create_token}, path)
        await server.start()
        async with InternalClient(path) as other:
            await other.call(CREATE_TOKEN, request)

        async def is_reached() -> bool:
            try:
                await client.call(CREATE_TOKEN, request)
            except Unreachable:
                return False
            return True

        with within(1.0):
            await eventually(is_reached)
        await server.stop(0.0)


async def test_invalid_socket_path_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120)
    with pytest.raises(OSError, match="107"):
        await InternalServer({CREATE_TOKEN: create_token}, path).start()


async def test_unknown_method_is_an_error(path: Path) -> None:
    with pytest.raises(KeyError):
        InternalServer({"hosting.internal.v1.Admin.Nonsense": create_token}, path)


async def test_invalid_message_bytes_are_rejected(client: InternalClient, path: Path) -> None:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary("/hosting.internal.v1.Admin/CreateToken")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"\xff\xff")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
