from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import grpc
import pytest

from pyservice.observability.metrics import RequestMetrics
from pyservice.rpc import RpcServer
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from tests.support.raw_http2 import RawCalls
from tests.support.sample_service import CONNECTED, JOIN, GrpcApi, SmallService
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

MOST = 4
WATCH_PATH = "/grpc.health.v1.Health/Watch"
HASTY = TransportSettings(receive_timeout_ms=300, keep_alive_timeout_ms=300)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class RawConnection:
    """Connection that sends no HTTP/2, or only the connection preface."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def is_refused(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._reader.read(9) == b""
            except ConnectionError:
                return True

    async def wait_closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self._reader.read(1024):
                pass

    def close(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def open_server(
    settings: TransportSettings, service: SmallService | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[RpcServer, int]]:
    operations = (service or SmallService()).operations()
    server = RpcServer(operations, settings, RequestMetrics(), Limits(), f"{host}:0")
    port = await server.start()
    try:
        yield server, port
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def client_of(server: RpcServer, port: int) -> AsyncIterator[GrpcApi]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield GrpcApi(channel, server, port)


async def connect(stack: AsyncExitStack, port: int, host: str = "127.0.0.1") -> RawConnection:
    line = RawConnection(*await asyncio.open_connection(host, port))
    stack.callback(line.close)
    return line


async def test_connections_over_the_limit_are_closed_at_once() -> None:
    async with (
        open_server(TransportSettings(rpc_connections_max=MOST)) as (server, port),
        AsyncExitStack() as stack,
    ):
        first = await stack.enter_async_context(client_of(server, port))
        assert (await first.call("PlayerConnected", CONNECTED)).code == "OK"
        lines = [await connect(stack, port) for _ in range(2 * MOST)]
        refused = [await line.is_refused() for line in lines]
        assert refused.count(False) == MOST - 1
        assert (await first.call("PlayerConnected", CONNECTED)).code == "OK"
        lines[refused.index(False)].close()
        async with asyncio.timeout(PATIENCE_S):
            while await (await connect(stack, port)).is_refused():
                await asyncio.sleep(0.01)
        assert await (await connect(stack, port)).is_refused()


async def test_addresses_of_one_name_share_one_limit() -> None:
    settings = TransportSettings(rpc_connections_max=MOST)
    async with open_server(settings, host="localhost") as (_, port), AsyncExitStack() as stack:
        lines = []
        for host in ("127.0.0.1", "::1") * (2 * MOST):
            # Some machines have only IPv4 or only IPv6.
            with suppress(OSError):
                lines.append(await connect(stack, port, host))
        assert len(lines) >= 2 * MOST
        refused = [await line.is_refused() for line in lines]
        assert 0 < refused.count(False) <= MOST


async def test_client_without_http_2_times_out() -> None:
    async with open_server(HASTY) as (server, port), AsyncExitStack() as stack:
        silent = await connect(stack, port)
        assert not await silent.is_refused()
        await silent.wait_closed()
        client = await stack.enter_async_context(client_of(server, port))
        assert (await client.call("PlayerConnected", CONNECTED)).code == "OK"


async def test_idle_connection_is_closed_and_its_client_reconnects() -> None:
    async with open_server(HASTY) as (server, port), client_of(server, port) as client:
        for _ in range(3):
            assert (await client.call("PlayerConnected", CONNECTED)).code == "OK"
            async with asyncio.timeout(PATIENCE_S):
                state = client.channel.get_state()
                while state != grpc.ChannelConnectivity.IDLE:
                    await client.channel.wait_for_state_change(state)
                    state = client.channel.get_state()


async def test_connection_with_a_long_call_stays_open() -> None:
    service = SmallService()
    async with open_server(HASTY, service) as (server, port), AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(server, port))
        joining = asyncio.create_task(client.call("JoinLobby", JOIN))
        await service.waiting.wait()
        idle = await RawCalls.open("127.0.0.1", port)
        stack.push_async_callback(idle.close)
        await asyncio.wait_for(idle.wait_gone(), PATIENCE_S)
        service.may_join.set()
        assert (await asyncio.wait_for(joining, PATIENCE_S)).code == "OK"
