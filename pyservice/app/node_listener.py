"""Listener of the control plane for the nodes of a cluster.

It streams archives of builds, and takes logs and the usage of game servers. Routes come from the data
plane (`route_listener`), so players need no control plane.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from google.protobuf.message import Message

from pyservice.control.log_copies import LogCopies
from pyservice.control.node_usages import NodeUsages
from pyservice.control.pod_builds import ArchiveReader
from pyservice.errors import ServiceError
from pyservice.network.node_names import SERVICE_HOST
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import archives_pb2, node_logs_pb2, node_usage_pb2
from pyservice.process.background_tasks import BackgroundTasks
from pyservice.rpc.node_certificates import NodeCertificates
from pyservice.rpc.node_grpc import SLOW_PINGS_S, NodeServer, StreamHandler
from pyservice.settings import ListenAddress, Settings
from pyservice.storage.database import Database
from pyservice.storage.objects import Objects

_INTERNAL: Final = "hosting.internal.v1"
_STARTING: Final = "The control plane is starting."

_log = get_logger("service")


class NodeListener:
    def __init__(self, settings: Settings) -> None:
        """Raises CertificatesUnusable."""
        section = settings.kubernetes
        assert section.certificates is not None, "the settings require it"
        self._archives: StreamHandler | None = None
        self._logs: LogCopies | None = None
        self._usages: NodeUsages | None = None
        self._tasks = BackgroundTasks()
        self._address = section.node_listen
        self._certificates = NodeCertificates(section.certificates, SERVICE_HOST)
        self._server = NodeServer(
            {
                f"{_INTERNAL}.NodeLogs.Copy": self._copy_logs,
                f"{_INTERNAL}.NodeUsage.ReportUsage": self._report_usage,
            },
            {f"{_INTERNAL}.Archives.Get": self._archive},
            self._certificates,
            str(section.node_listen),
            SLOW_PINGS_S,
        )

    async def start(self) -> str:
        """Returns the address. Raises OSError."""
        port = await self._server.start()
        self._tasks.own("certificates", self._certificates.run())
        address = str(ListenAddress(self._address.host, port))
        _log.info("listening for nodes", address=address)
        return address

    def serve_archives(self, database: Database, objects: Objects) -> None:
        """Serves archives from now on. Before, nodes have to ask again."""
        self._archives = ArchiveReader(database, objects).get

    def serve_game_servers(self, logs: LogCopies, usages: NodeUsages) -> None:
        """Takes the logs and the usage of game servers from now on."""
        self._logs, self._usages = logs, usages

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._server.stop(0.0)

    async def _copy_logs(self, request: node_logs_pb2.CopyRequest) -> node_logs_pb2.CopyResponse:
        if self._logs is None:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE", _STARTING)
        return await self._logs.copy(request)

    async def _report_usage(
        self, request: node_usage_pb2.ReportUsageRequest
    ) -> node_usage_pb2.ReportUsageResponse:
        if self._usages is None:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE", _STARTING)
        self._usages.report(request)
        return node_usage_pb2.ReportUsageResponse()

    async def _archive(self, request: archives_pb2.GetRequest) -> AsyncIterator[Message]:
        if self._archives is None:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE", _STARTING)
        async for piece in self._archives(request):
            yield piece
