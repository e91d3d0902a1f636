"""The part of the service on a node: players reach servers by it, and Pods fetch archives."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pyservice.app.node_listener import NodeListener
from pyservice.errors import ServiceError
from pyservice.kubernetes.build_fetch import BUILD_ROOT, BuildFetch
from pyservice.network.node_names import host_of_node
from pyservice.node.fetch_build import fetch_build
from pyservice.pb.hosting.internal.v1 import archives_pb2
from pyservice.pb.hosting.internal.v1 import runtime_pb2 as pb
from pyservice.rpc import InternalClient
from pyservice.settings import load
from tests.support import game_programs
from tests.support.certificates import HOST, Certificates, served_certificate
from tests.support.data_plane_service import MakeService, Service
from tests.support.edge_guard_service import EdgeGuardService, is_reached
from tests.support.free_ports import free_port
from tests.support.namespace_configurations import NAMESPACE_ID
from tests.support.node_authority import NodeAuthority
from tests.support.supervised_service import is_gone
from tests.support.waiting import PATIENCE_S, eventually, is_blocked, until_met

pytestmark = [pytest.mark.full, pytest.mark.anyio]

SERVER_ID = "0192f000-0000-7000-8000-0000000000f1"
ARCHIVE = b"a build" * 100_000
SHA256 = hashlib.sha256(ARCHIVE)


async def stored_archive(
    request: archives_pb2.GetRequest,
) -> AsyncIterator[archives_pb2.GetResponse]:
    if request.sha256 != SHA256.digest():
        raise ServiceError("BUILD_NOT_FOUND")
    yield archives_pb2.GetResponse(content_length=len(ARCHIVE), content=ARCHIVE)


class ServedCluster:
    """A data plane, the listener of a control plane for nodes, and the part on the node n1.

    The test is the runtime: it places a dynamic server.
    """

    def __init__(self, folder: Path, make_service: MakeService, certificates: Certificates) -> None:
        self.authority = NodeAuthority(folder / "authority")
        self.of_service = self.authority.issue_to_service(folder / "service")
        self.of_node = self.authority.issue_to_node(folder / "n1", "n1")
        players = [{"server_names": [HOST], **certificates.settings}]
        self._settings: dict[str, Any] = {
            "edge": {"certificates": players},
            "runtime": {"placement": "kubernetes"},
            "lobby_api_url": "http://service.example.com",
            "kubernetes": {
                "runner_image": "runner:1",
                "service_image": "service:1",
                "certificates": str(self.of_service),
                "node_listen": "127.0.0.1:0",
                "routes_listen": f"127.0.0.1:{free_port()}",
            },
        }
        self.data_plane: Service = make_service(settings=self._settings)
        (folder / "node").mkdir()
        self.node = EdgeGuardService(
            folder / "node", {"edge": {"bind": "127.0.0.1", "certificates": players}}
        )
        self.node.role, self.node.listeners = ("--role", "node"), ("metrics",)
        self.archive_port = free_port()

    async def start(self) -> None:
        self.data_plane.start()
        settings = load({**self._settings, "data_dir": self.data_plane.data_dir}, environ={})
        self.listener = NodeListener(settings)
        address = await self.listener.start()
        self.listener._archives = stored_archive
        self.node.settings["kubernetes"] = {
            "node_name": "n1",
            "service_address": address,
            "routes_address": self._settings["kubernetes"]["routes_listen"],
            "certificates": str(self.of_node),
            "archive_port": self.archive_port,
        }
        self.runtime = InternalClient(self.data_plane.data_dir / "admin.sock")

    async def call(self, name: str, request: Any) -> Any:
        return await self.runtime.call(f"hosting.internal.v1.Runtime.{name}", request)

    async def placed_server(
        self, backend: socket.socket, protocol: str = "tcp", host: str = "127.0.0.1"
    ) -> tuple[str, int]:
        """Returns the address at which players reach the server."""
        protocols = {"game": protocol}
        lease = pb.LeaseRequest(
            server_id=SERVER_ID, namespace_id=NAMESPACE_ID, region="local", protocols=protocols
        )
        await self.call("Lease", lease)
        binding = pb.BindPortsRequest(owner_id=SERVER_ID, node="n1", host=host)
        port = (await self.call("BindPorts", binding)).ports["game"]
        address, number = backend.getsockname()
        backends = {"game": pb.Backend(address=address, port=number)}
        await self.call(
            "PlaceServer", pb.PlaceServerRequest(server_id=SERVER_ID, backends=backends)
        )
        return port.hostname, port.port

    async def close(self) -> None:
        self.node.close()
        await self.listener.stop()
        await self.runtime.close()


@pytest.fixture
async def cluster(
    tmp_path: Path, make_service: MakeService, certificates: Certificates
) -> AsyncIterator[ServedCluster]:
    cluster = ServedCluster(tmp_path, make_service, certificates)
    await cluster.start()
    yield cluster
    await cluster.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # A killed edge-guard resets its connections.
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@pytest.fixture
async def backend() -> AsyncIterator[socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(echo, sock=listener):
        yield listener


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    (tmp_path / "players").mkdir()
    certificates = Certificates(tmp_path / "players")
    certificates.renew()
    return certificates


async def reaches(address: tuple[str, int]) -> bool:
    return await asyncio.to_thread(is_reached, address)


async def archive(cluster: ServedCluster, sha256: str) -> tuple[int, bytes]:
    trusted = ssl.create_default_context(cafile=str(cluster.of_node / "ca.crt"))
    url = f"https://127.0.0.1:{cluster.archive_port}/archives/{sha256}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=trusted, server_hostname=host_of_node("n1")) as response,
    ):
        return response.status, await response.read()


async def retried_archive(cluster: ServedCluster) -> tuple[int, bytes] | None:
    """Returns None where a Pod asks again: a listener that closes resets connections in its queue."""
    with contextlib.suppress(aiohttp.ClientConnectionError):
        return await archive(cluster, SHA256.hexdigest())
    return None


async def readiness(cluster: ServedCluster) -> tuple[int, list[str]]:
    response = await asyncio.to_thread(cluster.node.probe, "/readyz")
    return response.status_code, response.text.splitlines()


@pytest.mark.fast
async def test_players_and_pods_are_served_by_their_node(
    cluster: ServedCluster, backend: socket.socket
) -> None:
    await asyncio.to_thread(cluster.node.start)
    address = await cluster.placed_server(backend)
    await eventually(lambda: reaches(address))
    assert await archive(cluster, SHA256.hexdigest()) == (200, ARCHIVE)
    assert (await archive(cluster, "00" * 32))[0] == 404
    assert await readiness(cluster) == (200, ["ready"])

    await cluster.listener.stop()
    await asyncio.to_thread(cluster.data_plane.stop)

    async def is_without_service() -> bool:
        status, lines = await readiness(cluster)
        return status == 503 and lines[0].startswith("service: ")

    await eventually(is_without_service)
    assert await reaches(address), "edge-guard serves its last routes"
    assert await archive(cluster, SHA256.hexdigest()) == (200, ARCHIVE)
    assert await asyncio.to_thread(cluster.node.stop) == 0
    assert await reaches(address), "edge-guard goes on, as on a single machine"


async def test_nodes_follow_routes_while_the_control_plane_is_away(
    cluster: ServedCluster, backend: socket.socket
) -> None:
    await cluster.listener.stop()
    await asyncio.to_thread(cluster.node.start)
    address = await cluster.placed_server(backend)
    await eventually(lambda: reaches(address))
    assert await readiness(cluster) == (200, ["ready"])


async def test_data_plane_takes_renewed_certificates_and_serves_players_meanwhile(
    cluster: ServedCluster, backend: socket.socket
) -> None:
    cluster.authority.issue_to_service(cluster.of_service, days=-1)
    await asyncio.to_thread(cluster.data_plane.kill)
    await asyncio.to_thread(cluster.data_plane.start)
    assert "nodes get no routes" in cluster.data_plane.log()
    assert "tls.crt expired on" in cluster.data_plane.log()
    await asyncio.to_thread(cluster.node.start)
    address = await cluster.placed_server(backend)
    assert (await readiness(cluster))[0] == 503
    assert cluster.node.edge()["routes_listening"] == 0

    cluster.authority.issue_to_service(cluster.of_service)
    await eventually(lambda: reaches(address))


def _address(text: str) -> tuple[str, int]:
    """Returns an address of /proc/net. Its words have the byte order of this machine."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words)), int(port, 16)


def listeners_of(*pids: int) -> dict[str, set[tuple[str, int]]]:
    """Returns the addresses at which processes receive from others, by protocol."""
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
    found: dict[str, set[tuple[str, int]]] = {"tcp": set(), "udp": set()}
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, remote, state, *_, inode = line.split()[:10]
            is_open = state == "0A" if name.startswith("tcp") else remote.endswith(":0000")
            if is_open and inode in inodes:
                found[name[:3]].add(_address(local))
    return found


def abstract_sockets(*pids: int) -> list[str]:
    """Returns the Unix sockets without a file, which each process of the network may open."""
    inodes = {os.readlink(path) for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [
        words[7]
        for words in lines
        if len(words) > 7 and words[7].startswith("@") and f"socket:[{words[6]}]" in inodes
    ]


def plain_answer(port: int) -> bytes:
    """Returns what a port answers to HTTP without TLS."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(
            f"GET /archives/{SHA256.hexdigest()} HTTP/1.1\r\nHost: n1\r\n\r\n".encode()
        )
        with contextlib.suppress(ConnectionError):
            return connection.recv(65_536)
    return b""


async def test_network_reaches_only_tls_and_the_ports_of_players(
    cluster: ServedCluster, backend: socket.socket
) -> None:
    """Kubernetes lets each Pod reach what listens on its node, whatever the policies say."""
    await asyncio.to_thread(cluster.node.start)
    address = await cluster.placed_server(backend)
    await eventually(lambda: reaches(address))
    pids = (role_pid(cluster.node), cluster.node.edge_pid())
    host, _, port = cluster.node.addresses["metrics"].rpartition(":")
    assert ipaddress.ip_address(host).is_loopback, "no Pod reaches the loopback of its node"
    open_everywhere = {("::", cluster.archive_port)}
    assert listeners_of(*pids) == {
        "tcp": {(host, int(port)), address, *open_everywhere},
        "udp": set(),
    }
    assert abstract_sockets(*pids) == []
    assert b"HTTP" not in await asyncio.to_thread(plain_answer, cluster.archive_port)
    assert (await archive(cluster, SHA256.hexdigest()))[0] == 200, "with TLS"


async def test_replaced_certificate_of_players_is_served_without_a_signal(
    cluster: ServedCluster, backend: socket.socket, certificates: Certificates
) -> None:
    """Kubernetes replaces the files of a secret and sends no signal."""
    await asyncio.to_thread(cluster.node.start)
    _, port = await cluster.placed_server(backend, "tcp_tls", HOST)

    async def served() -> bytes | None:
        with contextlib.suppress(OSError):
            address = f"127.0.0.1:{port}"
            return await asyncio.to_thread(served_certificate, address, certificates.trust())
        return None

    first = await eventually(served)
    second = certificates.renew()
    assert second != first

    async def is_replaced() -> bool:
        return await served() == second

    await eventually(is_replaced)


async def test_stop_ends_edge_guard_with_the_service(
    cluster: ServedCluster, backend: socket.socket
) -> None:
    cluster.node.settings["runtime"] = {"end_with_service": True}
    await asyncio.to_thread(cluster.node.start)
    address = await cluster.placed_server(backend)
    await eventually(lambda: reaches(address))
    pid = cluster.node.edge_pid()
    assert await asyncio.to_thread(cluster.node.stop) == 0
    assert is_gone(pid)
    assert not await reaches(address)


async def test_players_survive_a_crash_of_the_role(
    cluster: ServedCluster, backend: socket.socket
) -> None:
    await asyncio.to_thread(cluster.node.start)
    address = await cluster.placed_server(backend)
    await eventually(lambda: reaches(address))
    pid = cluster.node.edge_pid()
    reader, writer = await asyncio.open_connection(*address)
    cluster.node.kill()
    await asyncio.to_thread(cluster.node.start)
    assert cluster.node.edge_pid() == pid
    writer.write(b"there")
    assert await reader.readexactly(5) == b"there"
    writer.close()
    os.kill(pid, signal.SIGKILL)
    await until_met(lambda: cluster.node.edge_pid() not in (0, pid))
    await eventually(lambda: reaches(address))
    assert await archive(cluster, SHA256.hexdigest()) == (200, ARCHIVE)


async def test_certificate_of_another_node_gets_no_routes(
    cluster: ServedCluster, backend: socket.socket
) -> None:
    cluster.node.settings["kubernetes"]["node_name"] = "n2"
    folder = cluster.authority.issue(cluster.of_node, host_of_node("n2"), host_of_node("n1"))
    assert folder == cluster.of_node
    await asyncio.to_thread(cluster.node.start)
    await cluster.placed_server(backend)

    async def is_refused() -> bool:
        return "The certificate must have the name of one node" in cluster.node.log()

    await eventually(is_refused)
    assert (await readiness(cluster))[0] == 503
    assert cluster.node.edge()["routes_listening"] == 0


async def test_pod_waits_for_its_build_while_the_object_store_is_away(
    cluster: ServedCluster, tmp_path: Path
) -> None:
    build = game_programs.server_archive()
    sha256 = hashlib.sha256(build)
    is_back = asyncio.Event()

    async def read(request: archives_pb2.GetRequest) -> AsyncIterator[archives_pb2.GetResponse]:
        assert request.sha256 == sha256.digest()
        if not is_back.is_set():
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE", "the bucket does not answer")
        yield archives_pb2.GetResponse(content_length=len(build), content=build)

    cluster.listener._archives = read
    await asyncio.to_thread(cluster.node.start)
    assert (await archive(cluster, sha256.hexdigest()))[0] == 503
    fetch = BuildFetch(sha256.hexdigest(), "none", len(build), cluster.archive_port)
    (tmp_path / "pod").mkdir()
    fetching = asyncio.create_task(
        asyncio.to_thread(fetch_build, "127.0.0.1", fetch, tmp_path / "pod")
    )
    assert await is_blocked(fetching)
    is_back.set()
    await fetching
    assert (tmp_path / "pod" / BUILD_ROOT.name / "server.py").is_file()


async def test_expired_certificate_is_named_and_players_go_on(
    cluster: ServedCluster, backend: socket.socket
) -> None:
    await asyncio.to_thread(cluster.node.start)
    address = await cluster.placed_server(backend)
    await eventually(lambda: reaches(address))
    reader, writer = await asyncio.open_connection(*address)
    cluster.authority.issue_to_node(cluster.of_node, "n1", days=-1)
    assert (await archive(cluster, SHA256.hexdigest()))[0] == 200, "the earlier one is served"
    assert "certificates not replaced" in cluster.node.log()

    cluster.node.kill()
    process = await asyncio.to_thread(cluster.node.spawn)
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 1
    assert "tls.crt expired on" in cluster.node.log()
    assert "renew it" in cluster.node.log()
    writer.write(b"there")
    assert await reader.readexactly(5) == b"there"
    writer.close()
    assert await reaches(address), "edge-guard serves its last routes"

    cluster.authority.issue_to_node(cluster.of_node, "n1")
    await asyncio.to_thread(cluster.node.start)
    assert (await archive(cluster, SHA256.hexdigest()))[0] == 200


def test_missing_settings_are_all_named(tmp_path: Path) -> None:
    node = EdgeGuardService(tmp_path)
    node.role, node.listeners = ("--role", "node"), ()
    assert node.spawn().wait(60) == 1
    for name in ("node_name", "service_address", "routes_address", "certificates"):
        assert f"kubernetes.{name}: must be set" in node.log()
    node.close()


def test_unusable_certificates_are_named(tmp_path: Path) -> None:
    folder = NodeAuthority(tmp_path / "authority").issue_to_node(tmp_path / "n1", "n1", days=-1)
    (tmp_path / "node").mkdir()
    settings = {
        "node_name": "n1",
        "service_address": "127.0.0.1:8093",
        "routes_address": "127.0.0.1:8095",
        "certificates": str(folder),
    }
    node = EdgeGuardService(tmp_path / "node", {"kubernetes": settings})
    node.role, node.listeners = ("--role", "node"), ()
    assert node.spawn().wait(60) == 1
    assert "tls.crt expired on" in node.log()
    node.close()


def test_port_of_archives_that_is_taken_is_named(tmp_path: Path) -> None:
    folder = NodeAuthority(tmp_path / "authority").issue_to_node(tmp_path / "n1", "n1")
    (tmp_path / "node").mkdir()
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {
            "node_name": "n1",
            "service_address": "127.0.0.1:8093",
            "routes_address": "127.0.0.1:8095",
            "certificates": str(folder),
            "archive_port": port,
        }
        node = EdgeGuardService(tmp_path / "node", {"kubernetes": settings})
        node.role, node.listeners = ("--role", "node"), ("metrics",)
        assert node.spawn().wait(60) == 1
    assert f"cannot listen on port {port} for archives" in node.log()
    node.close()


CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""A container sees only its own processes."""


def role_pid(node: EdgeGuardService) -> int:
    assert node.process is not None
    if not node.command_prefix:
        return node.process.pid
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children").read_text()
    return int(children.split()[0])


@pytest.mark.parametrize(
    "container",
    [
        (),
        pytest.param(
            CONTAINER,
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root makes containers"),
        ),
    ],
    ids=["one machine", "containers"],
)
async def test_upgrade_starts_beside_the_old_process(
    cluster: ServedCluster, backend: socket.socket, tmp_path: Path, container: tuple[str, ...]
) -> None:
    """Players stay connected: the new process takes the sockets over, and the old one drains."""
    node = cluster.node
    node.command_prefix = container
    await asyncio.to_thread(node.start)
    address = await cluster.placed_server(backend)
    await eventually(lambda: reaches(address))
    reader, writer = await asyncio.open_connection(*address)
    (tmp_path / "upgraded").mkdir()
    upgraded = EdgeGuardService(tmp_path / "upgraded", dict(node.settings))
    upgraded.role, upgraded.listeners = node.role, node.listeners
    upgraded.data_dir, upgraded.addresses = node.data_dir, node.addresses
    upgraded.command_prefix = container
    # A new image has another edge-guard.
    upgraded.settings["edge"] = {"bind": "127.0.0.1", "workers": 1}
    try:
        await asyncio.to_thread(upgraded.start)
        await until_met(lambda: upgraded.edge()["is_connected"])
        os.kill(role_pid(node), signal.SIGTERM)
        assert await eventually(lambda: retried_archive(cluster)) == (200, ARCHIVE)
        writer.write(b"there")
        assert await reader.readexactly(5) == b"there"
        assert await reaches(address)
        assert node.process is not None
        assert node.process.poll() is None, "it waits for its players"
        writer.close()
        assert await asyncio.to_thread(node.process.wait, PATIENCE_S) == 0
        assert upgraded.edge()["is_ready"]
        assert await reaches(address)
        assert await archive(cluster, SHA256.hexdigest()) == (200, ARCHIVE)
    finally:
        upgraded.close()


async def test_failed_upgrade_leaves_edge_guard_to_the_old_process(
    cluster: ServedCluster, backend: socket.socket, tmp_path: Path
) -> None:
    await asyncio.to_thread(cluster.node.start)
    address = await cluster.placed_server(backend)
    await eventually(lambda: reaches(address))
    (tmp_path / "upgraded").mkdir()
    upgraded = EdgeGuardService(tmp_path / "upgraded", dict(cluster.node.settings))
    upgraded.role, upgraded.listeners = cluster.node.role, cluster.node.listeners
    upgraded.data_dir = cluster.node.data_dir
    with socket.create_server(("127.0.0.1", 0)) as taken:
        upgraded.settings["edge"] = {"http": f"127.0.0.1:{taken.getsockname()[1]}"}
        process = await asyncio.to_thread(upgraded.spawn)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 1
    upgraded.client.close()
    pid = cluster.node.edge_pid()
    os.kill(pid, signal.SIGKILL)
    await until_met(lambda: cluster.node.edge_pid() not in (0, pid))
    await eventually(lambda: reaches(address))
