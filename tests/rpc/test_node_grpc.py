"""Calls of nodes to the service over TCP, with real certificates."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pyservice.errors import ServiceError, Unreachable
from pyservice.network.node_names import SERVICE_HOST
from pyservice.pb.hosting.internal.v1 import archives_pb2, feed_pb2, node_logs_pb2, routes_pb2
from pyservice.rpc.node_certificates import CertificatesUnusable, NodeCertificates, Pem, _Reading
from pyservice.rpc.node_grpc import NodeClient, NodeServer, UnaryHandler
from tests.support.node_authority import NodeAuthority
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

FOLLOW = "hosting.internal.v1.Routes.Follow"
COUNT = "hosting.internal.v1.Routes.CountSessions"
COPY = "hosting.internal.v1.NodeLogs.Copy"
GET = "hosting.internal.v1.Archives.Get"
PIECES = [b"first", b"second"]


async def follow(request: routes_pb2.FollowRequest) -> routes_pb2.FollowResponse:
    if request.edge_id == "full":
        raise ServiceError("STORAGE_FULL")
    return routes_pb2.FollowResponse(epoch=7, version=request.version + 1)


async def count(request: routes_pb2.CountSessionsRequest) -> routes_pb2.CountSessionsResponse:
    return routes_pb2.CountSessionsResponse()


async def copy(request: node_logs_pb2.CopyRequest) -> node_logs_pb2.CopyResponse:
    return node_logs_pb2.CopyResponse()


async def archive(request: archives_pb2.GetRequest) -> AsyncIterator[archives_pb2.GetResponse]:
    if request.sha256 != bytes(32):
        raise ServiceError("BUILD_NOT_FOUND")
    yield archives_pb2.GetResponse(content_length=sum(map(len, PIECES)))
    for piece in PIECES:
        yield archives_pb2.GetResponse(content=piece)


@pytest.fixture
def authority(tmp_path: Path) -> NodeAuthority:
    return NodeAuthority(tmp_path / "authority")


@pytest.fixture
def service_folder(authority: NodeAuthority, tmp_path: Path) -> Path:
    return authority.issue_to_service(tmp_path / "service")


@pytest.fixture
def node_folder(authority: NodeAuthority, tmp_path: Path) -> Path:
    return authority.issue_to_node(tmp_path / "n1", "n1")


@pytest.fixture
async def address(service_folder: Path) -> AsyncIterator[str]:
    certificates = NodeCertificates(service_folder, SERVICE_HOST)
    handlers: dict[str, UnaryHandler] = {FOLLOW: follow, COUNT: count, COPY: copy}
    server = NodeServer(handlers, {GET: archive}, certificates, "127.0.0.1:0")
    yield f"127.0.0.1:{await server.start()}"
    await server.stop(0.0)


class AnyCertificates(NodeCertificates):
    """Certificates that a client sends although its own end would refuse them."""

    def _read_once(self) -> Any:
        pem = Pem(*(path.read_bytes() for path in self._paths))
        return _Reading(pem, 0)


def of_n1(version: int = 0, node: str = "n1") -> routes_pb2.FollowRequest:
    return routes_pb2.FollowRequest(instance="one", version=version, node=node)


async def problem_of(address: str, folder: Path) -> str:
    """Returns why a call with these certificates fails."""
    async with NodeClient(address, AnyCertificates(folder, "")) as client:
        with pytest.raises(Unreachable) as raised:
            await client.call(FOLLOW, of_n1(), PATIENCE_S)
    return str(raised.value)


async def test_node_calls_the_methods_of_the_table(address: str, node_folder: Path) -> None:
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        assert (await client.call(FOLLOW, of_n1(4))).version == 5
        counted = routes_pb2.CountSessionsRequest(instance="one", question=1, node="n1")
        assert await client.call(COUNT, counted) == routes_pb2.CountSessionsResponse()
        request = archives_pb2.GetRequest(sha256=bytes(32))
        first, *others = [response async for response in client.stream(GET, request)]
        assert first.content_length == 11
        assert [response.content for response in others] == PIECES


async def test_errors_of_handlers_arrive(address: str, node_folder: Path) -> None:
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        request = of_n1()
        request.edge_id = "full"
        with pytest.raises(ServiceError, match="STORAGE_FULL"):
            await client.call(FOLLOW, request)
        pieces = client.stream(GET, archives_pb2.GetRequest(sha256=bytes(31)))
        with pytest.raises(ServiceError, match="BUILD_NOT_FOUND"):
            await anext(pieces)


async def test_node_may_only_name_itself(address: str, node_folder: Path) -> None:
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        for node in ("n2", ""):
            sentence = f"The certificate is that of the node n1, and the request is for '{node}'."
            with pytest.raises(Unreachable, match=re.escape(sentence)):
                await client.call(FOLLOW, of_n1(node=node))
            counted = routes_pb2.CountSessionsRequest(instance="one", node=node)
            with pytest.raises(Unreachable, match=re.escape(sentence)):
                await client.call(COUNT, counted)
            with pytest.raises(Unreachable, match=re.escape(sentence)):
                await client.call(COPY, node_logs_pb2.CopyRequest(node=node))


async def test_methods_outside_the_table_are_refused(address: str, node_folder: Path) -> None:
    name = "hosting.internal.v1.Feed.Apply"
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        with pytest.raises(Unreachable, match=f"A node may not call {name}"):
            await client.call(name, feed_pb2.ApplyRequest())


async def test_listener_serves_only_methods_of_the_table(service_folder: Path) -> None:
    certificates = NodeCertificates(service_folder, SERVICE_HOST)
    with pytest.raises(ValueError, match=r"no node may call hosting\.internal\.v1\.Feed\.Apply"):
        NodeServer({"hosting.internal.v1.Feed.Apply": follow}, {}, certificates, "127.0.0.1:0")


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ((SERVICE_HOST,), "service.hosting"),
        (("n1.node.hosting", "n2.node.hosting"), "n1.node.hosting, n2.node.hosting"),
        (("N_1.node.hosting",), "N_1.node.hosting"),
        ((), "no name"),
    ],
)
async def test_certificate_needs_the_name_of_one_node(
    address: str, authority: NodeAuthority, tmp_path: Path, hosts: tuple[str, ...], names: str
) -> None:
    folder = authority.issue(tmp_path / "other", *hosts)
    assert (
        f"The certificate must have the name of one node, such as n1.node.hosting, and it has {names}"
        in (await problem_of(address, folder))
    )


async def test_expired_certificate_is_refused(
    address: str, authority: NodeAuthority, tmp_path: Path
) -> None:
    folder = authority.issue_to_node(tmp_path / "other", "n1", days=-1)
    with pytest.raises(CertificatesUnusable, match="expired on"):
        NodeCertificates(folder, "n1.node.hosting")
    assert "failed to connect" in await problem_of(address, folder)


async def test_certificate_of_another_authority_is_refused(
    address: str, authority: NodeAuthority, tmp_path: Path
) -> None:
    other = NodeAuthority(tmp_path / "foreign")
    folder = other.issue_to_node(tmp_path / "other", "n1")
    assert "CERTIFICATE_VERIFY_FAILED" in await problem_of(address, folder), "the node refuses"
    # The node knows the authority of the service, and only its own certificate is foreign.
    (folder / "ca.crt").write_bytes((tmp_path / "authority" / "ca.crt").read_bytes())
    assert "failed to connect" in await problem_of(address, folder)


async def test_client_without_a_certificate_is_refused(address: str, service_folder: Path) -> None:
    credentials = grpc.ssl_channel_credentials((service_folder / "ca.crt").read_bytes())
    options = [("grpc.ssl_target_name_override", SERVICE_HOST)]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary("/hosting.internal.v1.Routes/Follow")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(of_n1().SerializeToString())
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_plain_connection_is_refused(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary("/hosting.internal.v1.Routes/Follow")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(of_n1().SerializeToString())
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_node_refuses_another_server_than_the_service(
    authority: NodeAuthority, node_folder: Path, tmp_path: Path
) -> None:
    """A node has a certificate of the authority too, and must not pass for the service."""
    folder = authority.issue_to_node(tmp_path / "n2", "n2")
    server = NodeServer(
        {FOLLOW: follow}, {}, NodeCertificates(folder, "n2.node.hosting"), "127.0.0.1:0"
    )
    address = f"127.0.0.1:{await server.start()}"
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        with pytest.raises(Unreachable, match=r"(?i)hostname|verif"):
            await client.call(FOLLOW, of_n1())
    await server.stop(0.0)


async def test_replaced_certificates_hold_without_a_restart(
    address: str, service_folder: Path, node_folder: Path, tmp_path: Path
) -> None:
    """Both ends get certificates of a new authority, and the earlier ones are then refused."""
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        assert (await client.call(FOLLOW, of_n1())).epoch == 7
        other = NodeAuthority(tmp_path / "new authority")
        earlier = tmp_path / "earlier"
        earlier.mkdir()
        for path in node_folder.iterdir():
            (earlier / path.name).write_bytes(path.read_bytes())
        other.issue_to_service(service_folder)
        assert (await client.call(FOLLOW, of_n1())).epoch == 7, "a connection stays"
        other.issue_to_node(node_folder, "n1")
        assert (await client.call(FOLLOW, of_n1())).epoch == 7
    (earlier / "ca.crt").write_bytes((node_folder / "ca.crt").read_bytes())
    assert "failed to connect" in await problem_of(address, earlier)


async def test_unusable_replacement_keeps_the_certificates(
    address: str, authority: NodeAuthority, service_folder: Path, node_folder: Path, tmp_path: Path
) -> None:
    authority.issue_to_service(tmp_path / "other")
    (service_folder / "tls.key").write_bytes((tmp_path / "other" / "tls.key").read_bytes())
    with pytest.raises(CertificatesUnusable, match=r"tls\.key: is not the key of"):
        NodeCertificates(service_folder, SERVICE_HOST)
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        assert (await client.call(FOLLOW, of_n1())).epoch == 7


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
@pytest.mark.parametrize("content", [None, b"no certificate"])
async def test_missing_and_damaged_files_are_named(
    service_folder: Path, name: str, content: bytes | None
) -> None:
    path = service_folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(CertificatesUnusable, match=re.escape(str(path))):
        NodeCertificates(service_folder, SERVICE_HOST)


async def test_connection_that_was_cut_is_made_again(
    service_folder: Path, node_folder: Path
) -> None:
    certificates = NodeCertificates(service_folder, SERVICE_HOST)
    server = NodeServer({FOLLOW: follow}, {}, certificates, "127.0.0.1:0")
    address = f"127.0.0.1:{await server.start()}"
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        assert (await client.call(FOLLOW, of_n1())).epoch == 7
        await server.stop(0.0)
        with pytest.raises(Unreachable):
            await client.call(FOLLOW, of_n1(), 1.0)
        server = NodeServer({FOLLOW: follow}, {}, certificates, address)
        await server.start()

        async def is_reached() -> bool:
            try:
                await client.call(FOLLOW, of_n1(), 1.0)
            except Unreachable:
                return False
            return True

        await eventually(is_reached)
        await server.stop(0.0)


async def test_call_ends_with_its_client(service_folder: Path, node_folder: Path) -> None:
    has_ended = asyncio.Event()

    async def wait(request: routes_pb2.FollowRequest) -> routes_pb2.FollowResponse:
        try:
            return await asyncio.Future()
        finally:
            has_ended.set()

    certificates = NodeCertificates(service_folder, SERVICE_HOST)
    server = NodeServer({FOLLOW: wait}, {}, certificates, "127.0.0.1:0")
    address = f"127.0.0.1:{await server.start()}"
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        with pytest.raises(Unreachable):
            await client.call(FOLLOW, of_n1(), 0.1)
        await asyncio.wait_for(has_ended.wait(), PATIENCE_S)
    await server.stop(0.0)


@pytest.mark.full
async def test_call_ends_when_its_client_hangs(service_folder: Path, node_folder: Path) -> None:
    """The kernel of the client still acknowledges what arrives."""
    has_begun, has_ended = asyncio.Event(), asyncio.Event()

    async def wait(request: routes_pb2.FollowRequest) -> routes_pb2.FollowResponse:
        has_begun.set()
        try:
            return await asyncio.Future()
        finally:
            has_ended.set()

    is_passing = asyncio.Event()
    is_passing.set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            await is_passing.wait()
            writer.write(piece)

    writers: list[asyncio.StreamWriter] = []

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, inner_writer))
        await asyncio.gather(relay(reader, inner_writer), relay(inner_reader, writer))

    certificates = NodeCertificates(service_folder, SERVICE_HOST)
    server = NodeServer({FOLLOW: wait}, {}, certificates, "127.0.0.1:0")
    port = await server.start()
    listener = await asyncio.start_server(lead, "127.0.0.1", 0)
    address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with NodeClient(address, NodeCertificates(node_folder, "n1.node.hosting")) as client:
        call = asyncio.create_task(client.call(FOLLOW, of_n1(), 60.0))
        await asyncio.wait_for(has_begun.wait(), PATIENCE_S)
        is_passing.clear()
        await asyncio.wait_for(has_ended.wait(), PATIENCE_S)
        call.cancel()
    listener.close()
    await server.stop(0.0)
    for writer in writers:
        writer.close()
    is_passing.set()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()
