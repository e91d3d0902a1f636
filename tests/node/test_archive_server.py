"""Archives over HTTPS, as Pods of a node fetch them, with real certificates."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pyservice.errors import ServiceError, Unreachable
from pyservice.network.node_names import host_of_node
from pyservice.node import archive_server
from pyservice.node.archive_cache import ArchiveCache
from pyservice.node.archive_server import ArchiveServer
from pyservice.pb.hosting.internal.v1.archives_pb2 import GetResponse
from pyservice.rpc.node_certificates import NodeCertificates
from tests.support.node_authority import NodeAuthority
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

HOST = host_of_node("n1")
CONTENT = bytes(range(256)) * 4_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LARGE_CONTENT = bytes(16 << 20)
LARGE = hashlib.sha256(LARGE_CONTENT).hexdigest()
CONTENTS = {SHA256: CONTENT, LARGE: LARGE_CONTENT}
UNREACHABLE = "ee" * 32
DAMAGED = "dd" * 32


async def fetch(sha256: bytes) -> AsyncGenerator[GetResponse, None]:
    match sha256.hex():
        case digest if digest == UNREACHABLE:
            raise Unreachable("hosting.example.com:8093: Socket closed")
        case digest if digest == DAMAGED or digest in CONTENTS:
            content = CONTENTS.get(digest, CONTENT)
            yield GetResponse(content_length=len(content))
            yield GetResponse(content=content)
        case _:
            raise ServiceError("BUILD_NOT_FOUND")


@pytest.fixture
def authority(tmp_path: Path) -> NodeAuthority:
    return NodeAuthority(tmp_path / "authority")


@pytest.fixture
def folder(authority: NodeAuthority, tmp_path: Path) -> Path:
    return authority.issue_to_node(tmp_path / "n1", "n1")


@contextlib.asynccontextmanager
async def serving(folder: Path, tmp_path: Path) -> AsyncIterator[str]:
    cache = ArchiveCache(tmp_path / "archives", fetch, 1 << 30, 0)
    cache.recover()
    listener = socket.create_server(("127.0.0.1", 0))
    server = ArchiveServer(cache, NodeCertificates(folder, HOST), listener)
    await server.start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    await server.stop()
    await cache.stop()


@pytest.fixture
async def url(folder: Path, tmp_path: Path) -> AsyncIterator[str]:
    async with serving(folder, tmp_path) as url:
        yield url


def trust(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "ca.crt"))


async def get(
    url: str, folder: Path, path: str, method: str = "GET", *, address: str = "127.0.0.1"
) -> tuple[int, bytes]:
    """`address` is that of the client."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(address, 0))) as session,
        session.request(method, url + path, ssl=trust(folder), server_hostname=HOST) as response,
    ):
        return response.status, await response.read()


async def is_served(url: str, folder: Path) -> bool:
    try:
        return (await get(url, folder, f"/archives/{SHA256}"))[0] == 200
    except aiohttp.ClientError:
        return False


async def test_digest_gets_its_archive(url: str, folder: Path) -> None:
    for _ in range(2):
        assert await get(url, folder, f"/archives/{SHA256}") == (200, CONTENT)
    assert await get(url, folder, f"/archives/{SHA256}", "HEAD") == (200, b"")


async def test_nothing_else_is_served(url: str, folder: Path) -> None:
    paths = ("/", "/archives/", f"/archives/{SHA256.upper()}", "/archives/../n1/tls.key")
    for path in paths:
        status, _ = await get(url, folder, path)
        assert status == 404
    status, _ = await get(url, folder, f"/archives/{SHA256}", "PUT")
    assert status == 405


async def test_unknown_digests_are_limited_for_an_address(url: str, folder: Path) -> None:
    statuses = [
        (await get(url, folder, f"/archives/{number:064x}"))[0]
        for number in range(archive_server.MISSES_MAX + 1)
    ]
    assert statuses == [404] * archive_server.MISSES_MAX + [429]


async def test_address_holds_few_connections_and_locks_out_no_other(url: str, folder: Path) -> None:
    host, _, port = url.removeprefix("https://").rpartition(":")
    async with contextlib.AsyncExitStack() as held:
        for _ in range(archive_server.ADDRESS_CONNECTIONS_MAX):
            # Without a handshake, as a Pod that wants to use up the connections.
            _, writer = await asyncio.open_connection(host, int(port))
            held.callback(writer.close)
        refused, writer = await asyncio.open_connection(host, int(port))
        held.callback(writer.close)
        assert await asyncio.wait_for(refused.read(), PATIENCE_S) == b""
        assert await get(url, folder, f"/archives/{SHA256}", address="127.0.0.2") == (200, CONTENT)
    await eventually(lambda: is_served(url, folder))


async def test_connections_of_all_addresses_are_limited(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_server, "CONNECTIONS_MAX", 1)
    host, _, port = url.removeprefix("https://").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    with contextlib.closing(writer), pytest.raises(aiohttp.ClientError):
        await get(url, folder, f"/archives/{SHA256}", address="127.0.0.2")


@pytest.mark.parametrize("has_handshake", [False, True])
async def test_idle_connection_is_closed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_handshake: bool
) -> None:
    monkeypatch.setattr(archive_server, "IDLE_TIMEOUT_S", 0.2)
    async with serving(folder, tmp_path) as url:
        host, _, port = url.removeprefix("https://").rpartition(":")
        tls, name = (trust(folder), HOST) if has_handshake else (None, None)
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=tls, server_hostname=name
        )
        with contextlib.closing(writer):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


@pytest.mark.parametrize("digest", [UNREACHABLE, DAMAGED])
async def test_failed_transfer_can_be_repeated(url: str, folder: Path, digest: str) -> None:
    status, text = await get(url, folder, f"/archives/{digest}")
    assert (status, text) == (
        503,
        b"The service did not give this archive to the node: try again.\n",
    )


async def test_plain_http_is_refused(url: str, folder: Path) -> None:
    with pytest.raises(aiohttp.ClientError):
        await get(url.replace("https", "http"), folder, f"/archives/{SHA256}")


async def test_replaced_certificate_is_served_without_a_restart(
    url: str, folder: Path, tmp_path: Path
) -> None:
    assert await get(url, folder, f"/archives/{SHA256}") == (200, CONTENT)
    NodeAuthority(tmp_path / "new").issue_to_node(folder, "n1")
    assert await get(url, folder, f"/archives/{SHA256}") == (200, CONTENT)


async def test_client_that_takes_nothing_is_cut(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, has_ended = archive_server._send, asyncio.Event()

    async def send_and_note(*request: Any) -> web.StreamResponse:
        try:
            return await send(*request)
        finally:
            has_ended.set()

    monkeypatch.setattr(archive_server, "SEND_TIMEOUT_S", 0.1)
    monkeypatch.setattr(archive_server, "_send", send_and_note)
    host, _, port = url.removeprefix("https://").rpartition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))

        def ask() -> ssl.SSLSocket:
            stream = trust(folder).wrap_socket(connection, server_hostname=HOST)
            stream.sendall(f"GET /archives/{LARGE} HTTP/1.1\r\nHost: n1\r\n\r\n".encode())
            return stream

        def received_bytes(stream: ssl.SSLSocket) -> int:
            total = 0
            with contextlib.suppress(OSError), stream:
                while piece := stream.recv(65_536):
                    total += len(piece)
            return total

        stream = await asyncio.to_thread(ask)
        await asyncio.wait_for(has_ended.wait(), PATIENCE_S)
        assert 0 < await asyncio.to_thread(received_bytes, stream) < len(LARGE_CONTENT)
