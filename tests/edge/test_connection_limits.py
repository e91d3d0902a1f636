from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from pyservice.transport import TransportSettings
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_connections import service as service
from tests.support.sample_service import GOOD, HttpApi, HttpConnection, SmallService, open_api
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

MOST = 8
HERE, ELSEWHERE, NOBODY, PROXY = "127.0.7.1", "127.0.7.2", "127.0.7.3", "127.0.7.9"
SETTINGS = TransportSettings(connections_max=MOST, trusted_proxies=(PROXY,))
INTRODUCED = TransportSettings(connections_max=MOST, trusted_proxies=(PROXY,), proxy_protocol=True)
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
Connect = Callable[..., Awaitable[HttpConnection]]


@pytest.fixture
def settings() -> TransportSettings:
    return SETTINGS


@pytest.fixture
async def connect(service: SmallService, settings: TransportSettings) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(open_api("http", service, settings))
        assert isinstance(api, HttpApi)

        async def connect(client: str, header: bytes = b"") -> HttpConnection:
            streams = await asyncio.open_connection(*api.address, local_addr=(client, 0))
            connection = HttpConnection(*streams)
            stack.push_async_callback(connection.close)
            connection.writer.write(header)
            return connection

        yield connect


async def is_served(connection: HttpConnection) -> bool:
    try:
        answer = connection.ask("GET", "/matchmaker/lobbies/list", None, GOOD)
        return (await asyncio.wait_for(answer, PATIENCE_S)).status == 200
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def fill(
    connect: Connect, count: int, client: str, header: bytes = b""
) -> list[HttpConnection]:
    connections = [await connect(client, header) for _ in range(count)]
    for connection in connections:
        assert await is_served(connection)
    return connections


async def is_accepted(connect: Connect, client: str, header: bytes = b"") -> bool:
    return await is_served(await connect(client, header))


async def wait_until_accepted(connect: Connect, client: str, header: bytes = b"") -> None:
    """Waits until the server has noticed a closed connection."""
    async with asyncio.timeout(PATIENCE_S):
        while not await is_accepted(connect, client, header):
            await asyncio.sleep(0.01)


async def test_one_address_has_at_most_half_of_the_connections(connect: Connect) -> None:
    mine = await fill(connect, MOST // 2, HERE)
    for _ in range(3):
        assert not await is_accepted(connect, HERE)
    await fill(connect, MOST // 2, ELSEWHERE)
    assert not await is_accepted(connect, NOBODY)
    assert [await is_served(connection) for connection in mine] == [True] * len(mine)
    await mine.pop().close()
    await wait_until_accepted(connect, HERE)
    assert not await is_accepted(connect, NOBODY)


async def test_trusted_proxy_may_exceed_the_share_of_an_address(connect: Connect) -> None:
    await fill(connect, MOST, PROXY)
    assert not await is_accepted(connect, PROXY)


def introducing(client: str, command: int = 0x21) -> bytes:
    source = bytes(map(int, client.split(".")))
    return SIGNATURE + struct.pack("!BBH", command, 0x11, 12) + source + source + bytes(4)


@pytest.mark.parametrize("settings", [INTRODUCED])
async def test_client_behind_a_proxy_has_its_own_share(connect: Connect) -> None:
    one, other = introducing("192.0.2.1"), introducing("192.0.2.2")
    first = await fill(connect, MOST // 2, PROXY, one)
    assert not await is_accepted(connect, PROXY, one)
    await fill(connect, MOST // 2 - 1, PROXY, other)
    await first.pop().close()
    await wait_until_accepted(connect, PROXY, one)
    # Until its PROXY header arrives, the connection counts for no client address.
    silent = await connect(PROXY)
    assert not await is_accepted(connect, PROXY, other)
    silent.writer.write(other)
    assert await is_served(silent)


@pytest.mark.parametrize("settings", [INTRODUCED])
async def test_local_proxy_connection_has_no_share(connect: Connect) -> None:
    await fill(connect, MOST, PROXY, introducing("192.0.2.1", command=0x20))
    assert not await is_accepted(connect, PROXY, introducing("192.0.2.1", command=0x20))
