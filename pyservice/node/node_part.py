"""The part of the service on a node: the socket of edge-guard, archives, logs, and usage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final

from pyservice.edge_guard.admin_socket import EdgeGuardTraffic
from pyservice.network.node_names import host_of_node, is_node_name
from pyservice.node.archive_cache import ArchiveCache
from pyservice.node.archive_server import ArchiveServer
from pyservice.node.log_copier import LogCopier
from pyservice.node.service_proxy import ServiceProxy
from pyservice.node.usage_reporter import UsageReporter
from pyservice.pb.hosting.internal.v1 import archives_pb2
from pyservice.process.background_tasks import BackgroundTasks
from pyservice.rpc import InternalServer
from pyservice.rpc.node_certificates import NodeCertificates
from pyservice.rpc.node_grpc import SLOW_PINGS_S, NodeClient
from pyservice.settings import Settings

_GET_ARCHIVE: Final = "hosting.internal.v1.Archives.Get"
_SOCKETS: Final = "node-*.sock"


def missing_settings(settings: Settings) -> Iterator[str]:
    """Yields a problem for each setting that a node needs and that is not usable."""
    section = settings.kubernetes
    if section.node_name is None:
        yield "kubernetes.node_name: must be set: give the name of this node in the cluster"
    elif not is_node_name(section.node_name):
        yield f"kubernetes.node_name: {section.node_name!r} is no name of a node"
    if section.service_address is None:
        yield (
            "kubernetes.service_address: must be set: give host:port of kubernetes.node_listen of "
            "the service"
        )
    if section.routes_address is None:
        yield (
            "kubernetes.routes_address: must be set: give host:port of kubernetes.routes_listen of "
            "the service"
        )
    if section.certificates is None:
        yield "kubernetes.certificates: must be set: `pyservice certificates` writes such a folder"


class NodePart:
    def __init__(self, settings: Settings) -> None:
        """Requires the settings of `missing_settings`. Raises CertificatesUnusable."""
        section = settings.kubernetes
        assert section.node_name is not None
        assert section.certificates is not None
        self._certificates = NodeCertificates(section.certificates, host_of_node(section.node_name))
        self._port = section.archive_port
        self._admin_socket = settings.admin_socket
        # During an upgrade, two processes have a socket.
        self._socket = settings.data_dir / _SOCKETS.replace("*", secrets.token_hex(4))
        self._client = NodeClient(str(section.service_address), self._certificates, SLOW_PINGS_S)
        self._routes_client = NodeClient(str(section.routes_address), self._certificates)
        self.proxy = ServiceProxy(self._routes_client, section.node_name)
        self._internal = InternalServer(self.proxy.handlers(), self._socket)
        self._cache = ArchiveCache(
            settings.data_dir / "archives",
            self._fetch_archive,
            section.archive_cache_bytes,
            settings.storage_reserve_bytes,
        )
        self._archives: ArchiveServer | None = None
        self._logs = LogCopier(
            self._client.call,
            section.node_name,
            section.namespace,
            section.log_bytes_per_second,
        )
        self._usage = UsageReporter(
            self._client.call,
            section.node_name,
            section.namespace,
            EdgeGuardTraffic(settings.data_dir),
        )
        self._tasks = BackgroundTasks()
        self._pod_tasks = BackgroundTasks()

    async def start(self) -> dict[str, str]:
        """Returns the addresses by name. Raises OSError."""
        await asyncio.to_thread(self._cache.recover)
        listener = _listen_on_all_addresses(self._port)
        self._archives = ArchiveServer(self._cache, self._certificates, listener)
        await self._archives.start()
        await self._internal.start()
        self._lead_edge_guard_here()
        self._tasks.own("certificates", self._certificates.run())
        self._pod_tasks.own("logs", self._logs.run())
        self._pod_tasks.own("usage", self._usage.run())
        return {"archives": f"port {listener.getsockname()[1]}"}

    async def _fetch_archive(self, sha256: bytes) -> AsyncGenerator[archives_pb2.GetResponse, None]:
        request = archives_pb2.GetRequest(sha256=sha256)
        async for piece in self._client.stream(_GET_ARCHIVE, request):
            yield piece

    def _lead_edge_guard_here(self) -> None:
        """Makes the socket of the data plane lead to this process, and removes left sockets."""
        fresh = self._socket.with_suffix(".new")
        fresh.symlink_to(self._socket.name)
        fresh.replace(self._admin_socket)
        for path in self._socket.parent.glob(_SOCKETS):
            if not _is_open(path):
                path.unlink(missing_ok=True)

    async def leave_pods(self) -> None:
        """Leaves archives and logs of the Pods to a process that has taken over."""
        await self._pod_tasks.stop()
        if self._archives is not None:
            await self._archives.stop()
        await self._cache.stop()

    async def stop(self) -> None:
        await self._tasks.stop()
        await self.leave_pods()
        await self._internal.stop(0.0)
        with contextlib.suppress(OSError):
            if os.readlink(self._admin_socket) == self._socket.name:
                self._admin_socket.unlink()
        await self._routes_client.close()
        await self._client.close()


def _is_open(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _listen_on_all_addresses(port: int) -> socket.socket:
    """Shares the port with an earlier process of this node."""
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    try:
        return socket.create_server(
            ("", port), family=family, reuse_port=True, dualstack_ipv6=has_both
        )
    except OSError as error:
        raise OSError(f"cannot listen on port {port} for archives: {error.strerror}") from None
