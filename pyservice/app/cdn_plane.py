"""Process of the CDN. It reads records and objects, and receives uploads. It changes no records."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence

from pyservice.app.object_storage import ObjectStorage
from pyservice.cdn.app import Cdn
from pyservice.cdn.server import CdnServer
from pyservice.cdn.site_records import SiteRecords
from pyservice.cdn.supervision import CDN_METRICS
from pyservice.cdn.uploads import UploadReceiver
from pyservice.control.url_signing import UrlVerifier
from pyservice.observability.metrics import RequestMetrics
from pyservice.observability.ray_export import CDN_SERVICE, RayExport, store_over_socket
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.process.background_tasks import BackgroundTaskDied, BackgroundTasks
from pyservice.process.plane_process import THREAD_SWITCH_S
from pyservice.process.stop_signals import StopSignals
from pyservice.rpc import InternalClient, InternalServer
from pyservice.settings import Settings
from pyservice.storage.database import open_reader


class CdnPlane:
    def __init__(self, settings: Settings, listeners: Sequence[int]) -> None:
        """`listeners` are descriptors of listening sockets, which the control plane has bound."""
        self._settings = settings
        self._listeners = [socket.socket(fileno=descriptor) for descriptor in listeners]

    async def recover(self, signals: StopSignals) -> bool:
        settings = self._settings
        folder = settings.data_dir / "control"
        url = settings.database_url
        self._tasks = BackgroundTasks(signals.stop.set)
        self._records = open_reader(url.get_secret_value() if url else None, folder)
        self._storage = ObjectStorage(settings, UrlVerifier(folder), is_receiver=True)
        self._control = InternalClient(settings.control_socket)
        self._metrics = RequestMetrics(inner_plane="cdn")
        store = store_over_socket(self._control.call)
        self._rays = RayExport(settings, CDN_SERVICE, self._metrics.rays, store)
        self._internal = InternalServer({CDN_METRICS: self._render}, settings.cdn_socket)
        self._wire(self._storage)
        return True

    def _wire(self, storage: ObjectStorage) -> None:
        domain, proxies = self._settings.domains.cdn, self._settings.trusted_proxies
        backlog = self._settings.http_limits.backlog
        rays, counts = self._rays.rays, storage.objects.counts
        sites = SiteRecords(self._records)
        self._cdn = Cdn(sites, storage.objects, domain, proxies, rays=rays)
        uploads = None
        if storage.folder is not None:
            uploads = UploadReceiver(storage.folder, storage.signer, counts, domain, rays)
        self._server = CdnServer(self._cdn, self._listeners, uploads, proxies, backlog)

    async def _render(self, request: control_pb2.MetricsRequest) -> control_pb2.MetricsResponse:
        if request.is_without_text:
            return control_pb2.MetricsResponse()
        text = self._metrics.render(self._cdn.render_metrics())
        return control_pb2.MetricsResponse(text=text)

    async def start(self) -> dict[str, str]:
        sys.setswitchinterval(THREAD_SWITCH_S)
        await self._internal.start()
        await self._server.start()
        for name, work in self._rays.work():
            self._tasks.own(name, work)
        return {}

    def reload(self, reread: Callable[[], Settings]) -> None:
        """Does nothing: no setting of the CDN applies without a restart."""

    async def stop(self, signals: StopSignals) -> None:
        """Stops the CDN. If a background task has died, raises BackgroundTaskDied at the end."""
        await signals.end_all([self._server.stop], self._settings.stop_grace_ms / 1000)
        await self._internal.stop(0.0)
        await self._tasks.stop()
        await self._rays.close()
        await self._control.close()
        await asyncio.to_thread(self._cdn.close)
        await asyncio.to_thread(self._storage.close)
        await self._records.close()
        if self._tasks.problem is not None:
            raise BackgroundTaskDied(self._tasks.problem)
