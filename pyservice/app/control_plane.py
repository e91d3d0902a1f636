"""Control plane process: creates and connects its operations, database, servers and game runtime."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NoReturn

from pyservice.app.game_server_placement import game_server_placement, node_listener
from pyservice.app.object_storage import ObjectStorage
from pyservice.app.public_servers import transport_settings
from pyservice.backup.last_backup import last_backup_ms
from pyservice.calls import Operation
from pyservice.cdn.supervision import CdnProcess
from pyservice.control import metrics
from pyservice.control.admin_operations import AdminOperations, OrphanedNamespaces
from pyservice.control.audit_log import AuditAdministration, AuditLog, AuditLogOperations
from pyservice.control.authorization import CallAuthenticator
from pyservice.control.builds import BuildOperations
from pyservice.control.configuration_validation import Completeness, ValidationContext
from pyservice.control.data_plane_client import DataPlaneClient
from pyservice.control.database_health import DatabaseHealthCheck
from pyservice.control.deletions import Deletions
from pyservice.control.device_links import DeviceLinkKeys, DeviceLinkOperations
from pyservice.control.feed_messages import FeedComposer
from pyservice.control.feeder import Feeder
from pyservice.control.game_pictures import GamePictureOperations
from pyservice.control.game_runtime import GameRuntime
from pyservice.control.games import GameDeletions, GameOperations, game_topic
from pyservice.control.groups import GroupOperations, ServiceOwner, ensure_owner
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.lobby_exports import LobbyExportOperations
from pyservice.control.lobby_records import (
    LobbyFactReader,
    LobbyRecordLookup,
    LobbyRecordOperations,
)
from pyservice.control.log_quota import LogQuota
from pyservice.control.namespace_access import NamespaceAccessOperations
from pyservice.control.namespaces import NamespaceChange, NamespaceOperations
from pyservice.control.object_store_health import ObjectStoreHealthCheck
from pyservice.control.operations import Handlers, operation_table
from pyservice.control.placement import PlacementUnusable
from pyservice.control.player_counts import PlayerCountReader, PlayerCounts
from pyservice.control.quotas import QuotaAdministration, QuotaChecks, QuotaOperations
from pyservice.control.rays import RayStore
from pyservice.control.refused_changes import RefusedChanges
from pyservice.control.resource_summaries import PublicUrls, region_summaries
from pyservice.control.resource_usage import ResourceUsage
from pyservice.control.server_retention import ServerRetention
from pyservice.control.servers import ServerNode, ServerOperations
from pyservice.control.service_info import ServiceInfoOperations
from pyservice.control.signing_keys import SigningKeyFile
from pyservice.control.sites import SiteOperations
from pyservice.control.token_administration import TokenAdministration
from pyservice.control.tokens import TokenOperations
from pyservice.control.trials import TrialOperations
from pyservice.control.uploads import UploadLifecycle, UploadOperations, picture_url
from pyservice.control.url_signing import url_signer
from pyservice.control.versions import VersionOperations
from pyservice.edge.http_application import HttpApplication
from pyservice.edge.http_server import HttpServer, listen_unix
from pyservice.edge_guard.admin_socket import EdgeGuardTraffic
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.network.hosts import reachable_address
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import RequestMetrics
from pyservice.observability.ray_export import CONTROL_SERVICE, STORE_SPANS, RayExport
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.process.background_tasks import BackgroundTaskDied, BackgroundTasks
from pyservice.process.drain_file import DrainFile
from pyservice.process.listening_sockets import (
    LISTENERS_OF_ROLE,
    bound_address,
    close_listeners,
    listen,
    open_listeners,
)
from pyservice.process.plane_process import THREAD_SWITCH_S
from pyservice.process.settings_reload import reread_settings
from pyservice.process.shared_sockets import share_with_group
from pyservice.process.stop_signals import StopSignals
from pyservice.rpc import NEXT_CHANGES, Handler, InternalClient, RpcServer, next_changes
from pyservice.settings import Settings
from pyservice.storage.database import DatabaseUnusable, open_database
from pyservice.storage.migrations import migrate
from pyservice.storage.ownership import Instance, claim
from pyservice.storage.quotas import CONFIGURATION_BYTES, LOG_BYTES
from pyservice.timestamps import now_ms
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from pyservice.watch import LongPolls, Topics

FAILURES: Final[tuple[type[Exception], ...]] = (
    *(DatabaseUnusable, BackgroundTaskDied, PlacementUnusable),
)
"""Logged without a traceback."""

_INTERNAL: Final = "hosting.internal.v1"
_RETRY_MS: Final = 500
_ADDED_HEADERS_BYTES: Final = 4096

_log = get_logger("service")


class ControlPlane:
    def __init__(
        self,
        settings: Settings,
        flags: Sequence[str] = (),
        inherited: Mapping[str, int] = MappingProxyType({}),
        *,
        is_supervised: bool = False,
        is_orphan: Callable[[], bool] = lambda: False,
    ) -> None:
        """Opens the listeners of clients, unless `inherited` has them. The caller has created and
        locked `settings.data_dir`.

        The CDN's process receives `flags`, the command-line flags of this process.
        `is_orphan` returns whether the supervisor of this process was killed.
        """
        self._settings = settings
        self._flags = flags
        self._is_supervised = is_supervised
        self._is_orphan = is_orphan
        self._tiers = settings.tiers
        self._folder = settings.data_dir / "control"
        self._cdn_listeners = open_listeners(settings, LISTENERS_OF_ROLE["control"], inherited)
        self._cdn_socket = self._cdn_listeners["cdn"]
        self._http_socket: socket.socket | None = None
        if settings.front == "off":
            self._http_socket = listen(settings.control_http, settings.http_limits.backlog)
        url = settings.database_url
        self._database = open_database(url.get_secret_value() if url else None, self._folder)
        self._database_watch = DatabaseHealthCheck(self._database, self._renew_ownership)
        self._metrics = RequestMetrics(inner_plane="control")
        self._topics = Topics()
        self._ids = RecordIds()
        self._audit = AuditLog(self._ids, self._topics, settings=settings.audit)
        self._client = InternalClient(settings.admin_socket)
        self._nodes = node_listener(settings)
        self._is_wired = False
        self._reload_due: Callable[[], Settings] | None = None

    async def recover(self, signals: StopSignals) -> bool:
        """Migrates the database. At the first start, also creates the owner of the service.

        Retries while the database is unavailable. Returns False if a stop signal arrived first.
        """
        # If a background task dies, the process exits and the supervisor restarts it. Players need
        # no control plane.
        self._tasks = BackgroundTasks(signals.stop.set)
        if self._nodes is not None:
            await self._nodes.start()
        is_logged = False
        while not signals.stop.is_set():
            try:
                await self._claim_database()
                if await migrate(self._database, is_allowed=self._settings.migrate_at_start):
                    _log.info("database migrated", database=self._database.name)
                owner = await ensure_owner(self._database, self._ids, self._folder)
            except ServiceError as error:
                if not is_logged:
                    _log.error(
                        "database unavailable; retrying",
                        database=self._database.location,
                        error=str(error),
                        retry_ms=_RETRY_MS,
                    )
                is_logged = True
                await signals.wait_stop(_RETRY_MS)
            else:
                self._wire(owner)
                self._is_wired = True
                if self._reload_due is not None:
                    self.reload(self._reload_due)
                if self._settings.public_base is None and self._settings.http.port == 0:
                    await signals.unless_stopped(self._data_plane.find_http_address())
                return True
        if self._nodes is not None:
            await self._nodes.stop()
        await self._database.close()
        return False

    async def _claim_database(self) -> None:
        instance = Instance.of_folder(self._settings.data_dir)
        owned = self._ownership = await claim(self._database, instance, self._leave_database)
        if owned.before is not None and owned.before.instance_id != instance.instance_id:
            _log.warning("database taken over", before=str(owned.before))

    async def _renew_ownership(self) -> None:
        await self._ownership.renew()

    def _leave_database(self) -> NoReturn:
        """Exits before anything is answered that is not in the database. The next start says why."""
        place = self._database.location
        _log.error(
            "fatal error", error=f"the database {place} has another owner or an earlier state"
        )
        os._exit(1)

    def _wire(self, owner: ServiceOwner) -> None:
        settings = self._settings
        self._owner = owner
        cdn_url = self._wire_cdn()
        links = _links(settings, cdn_url, partial(picture_url, self._files.objects))

        def set_public_url(address: str) -> None:
            if settings.public_base is None:
                links.public_url = f"{settings.http_scheme}://{reachable_address(address)}"

        data_plane = self._data_plane = DataPlaneClient(self._client, set_public_url)
        self._composer = FeedComposer(owner.source_epoch, links)
        self._feeder = Feeder(
            self._database,
            self._composer,
            data_plane,
            lambda game_id: self._topics.bump(game_topic(game_id)),
            self._audit,
        )
        if self._nodes is not None:
            self._nodes.serve_archives(self._database, self._files.objects)
        self._gate = CallAuthenticator(self._database)
        self._refusals = RefusedChanges(self._database, self._audit, self._gate)
        self._counts = PlayerCounts()
        self._counts_reader = PlayerCountReader(
            self._database, data_plane, self._counts, self._topics
        )
        history = LobbyFactReader(self._database, data_plane, self._feeder.mark_disconnected)
        self._readers: dict[str, PlayerCountReader | LobbyFactReader] = {
            "counts": self._counts_reader,
            "history": history,
        }
        self._record_lookup = LobbyRecordLookup(
            self._database, data_plane, history, settings.start_limit_ms
        )
        self._ray_store = RayStore(self._database, settings.rays.stored)
        self._rays = RayExport(settings, CONTROL_SERVICE, self._metrics.rays, self._ray_store.store)
        self._platform = ServiceInfoOperations(settings, self._database, links)
        self._runtime = self._game_runtime(data_plane)
        self._server_retention = ServerRetention(
            self._database, data_plane.leased_servers, self._runtime.remove_run
        )
        self._traffic = EdgeGuardTraffic(settings.data_dir)
        self._usage = ResourceUsage(self._database, self._runtime.usages)
        hash_key = self._keys.now.hash_key
        self._changes = IdempotentChanges(self._database, mac_key=hash_key, audit=self._audit)
        self._quotas = QuotaChecks(settings.quotas, memory=self._feeder.memory)
        self._log_quota = LogQuota(self._database, self._quotas, self._runtime.folder)
        self._records = RecordContext(
            self._database, self._changes, self._ids, self._topics, quotas=self._quotas
        )
        operations = self._operations(links, data_plane)
        self._tokens = operations.tokens
        self._wire_servers(operations, self._administration(operations, data_plane))

    def _game_runtime(self, data_plane: DataPlaneClient) -> GameRuntime:
        settings, database = self._settings, self._database
        placement = game_server_placement(
            settings, database, self._files.objects, data_plane, self._owner.group_id, self._nodes
        )
        return GameRuntime(
            settings, database, placement, data_plane, self._topics, self._record_lookup
        )

    def _administration(self, operations: Handlers, data_plane: DataPlaneClient) -> AdminOperations:
        database, epoch = self._database, self._owner.source_epoch
        return AdminOperations(
            self._records,
            self._gate,
            operations.tokens,
            OrphanedNamespaces(database, epoch, data_plane, self._feeder.compare_again),
            self._keys,
            QuotaAdministration(database, operations.quotas, self._feeder, self._audit),
            AuditAdministration(database),
            TokenAdministration(self._records, self._gate, operations.tokens, self._feeder),
        )

    def _wire_cdn(self) -> str:
        """Returns the base of URLs of sites and objects."""
        settings = self._settings
        cdn_address = reachable_address(bound_address(self._cdn_socket))
        cdn_url = (settings.cdn_url or f"http://{cdn_address}").rstrip("/")
        self._keys = SigningKeyFile.load_or_create(self._folder)
        signer = url_signer(self._keys)
        files = self._files = ObjectStorage(settings, signer, cdn_url, is_receiver=False)
        self._object_store_watch = ObjectStoreHealthCheck(files.objects.check, files.location)
        if settings.cdn_hosts:
            self._cdn_listeners["edge"] = listen_unix(settings.edge_cdn_socket)
        self._cdn_client = InternalClient(settings.cdn_socket)
        self._cdn = CdnProcess(self._cdn_client, self._flags, self._cdn_listeners)
        return cdn_url

    def _wire_servers(self, operations: Handlers, administration: AdminOperations) -> None:
        settings = self._settings
        table = operation_table(self._gate, operations, self._refusals)
        transport = _transport_settings(settings)
        limits = self._limits = Limits(settings.rate_limits)
        self._http = self._http_server(table, transport)
        internal: dict[str, Handler] = {
            NEXT_CHANGES: next_changes(self._topics),
            f"{_INTERNAL}.Control.Metrics": self._render,
            STORE_SPANS: self._ray_store.store_spans,
            **administration.handlers(),
        }
        self._rpc = RpcServer(
            table,
            transport,
            self._metrics,
            limits.control_plane_limit,
            f"unix:{settings.control_socket}",
            internal=internal,
            rays=self._rays.rays,
        )

    def _http_server(
        self, table: Mapping[str, Operation], internal: TransportSettings
    ) -> HttpServer:
        """Returns the server behind the front, or without the front that of a public port."""
        public = None if self._http_socket is None else transport_settings(self._settings)
        app = HttpApplication(
            table,
            public or internal,
            self._metrics,
            self._limits.control_plane_limit,
            long_polls=LongPolls(self._topics),
            rays=self._rays.rays,
        )
        if self._http_socket is not None and public is not None:
            return HttpServer(app, [self._http_socket])
        return HttpServer(app, [listen_unix(self._settings.control_http_socket)])

    def _operations(self, links: PublicUrls, data_plane: DataPlaneClient) -> Handlers:
        settings, database, records = self._settings, self._database, self._records
        one = NamespaceChange(records, self._feeder)
        uploading = UploadLifecycle(records, self._files.objects)
        self._uploading = uploading
        deletions = self._deletions = Deletions(
            database, uploading, data_plane, self._owner.source_epoch, self._runtime.remove_run
        )
        runtime = self._runtime

        def on_deleted() -> None:
            self._gate.clear_cache()
            runtime.servers.compare_again()
            deletions.start_removal()

        self._devices = DeviceLinkOperations(records, DeviceLinkKeys(self._keys), links)
        self._exports = LobbyExportOperations(
            database,
            self._files.objects,
            self._ids,
            self._record_lookup,
            runtime,
            quotas=self._quotas,
            audit=self._audit,
        )
        return Handlers(
            games=GameOperations(
                records,
                self._feeder,
                self._counts,
                links,
                region_summaries(settings.regions),
                GameDeletions(deletions, on_deleted),
            ),
            groups=GroupOperations(records, links, self._gate.clear_cache),
            quotas=QuotaOperations(
                database,
                self._quotas,
                {CONFIGURATION_BYTES: self._feeder.memory.of_group, LOG_BYTES: self._log_quota.use},
            ),
            audit=AuditLogOperations(database, self._topics),
            namespaces=NamespaceOperations(
                records, self._feeder, one, links, deletions, on_deleted, runtime.version_activated
            ),
            namespace_access=NamespaceAccessOperations(database, one, settings.domains.of_service),
            tokens=TokenOperations(
                records, self._feeder, data_plane, self._gate.clear_cache, self._tasks.finish
            ),
            versions=VersionOperations(records, deletions, self._context),
            trials=TrialOperations(records, self._composer, data_plane),
            platform=self._platform,
            devices=self._devices,
            lobbies=LobbyRecordOperations(
                database,
                data_plane,
                self._record_lookup,
                runtime.started_ms,
                runtime.problem,
                self._usage.of_owner,
                self._traffic.sessions,
            ),
            rays=self._ray_store,
            builds=BuildOperations(records, uploading, deletions, runtime),
            uploads=UploadOperations(uploading),
            sites=SiteOperations(records, uploading, deletions),
            pictures=GamePictureOperations(records, uploading, deletions, links),
            servers=ServerOperations(
                records,
                data_plane,
                runtime.servers,
                runtime,
                ServerNode(
                    {region.name_id for region in settings.regions},
                    runtime,
                    settings.edge.node_address,
                    settings.runtime.host_ports.numbers,
                    DrainFile.of(settings).refusal,
                    is_on_cluster=settings.is_on_cluster,
                ),
                runtime.problem,
                self._usage.of_owner,
            ),
            process_logs=runtime.logs,
            exports=self._exports,
        )

    def _context(
        self, builds: Mapping[str, Completeness], sites: Mapping[str, Completeness]
    ) -> ValidationContext:
        settings = self._settings
        return ValidationContext(
            player_limit_max=settings.player_limit_max,
            regions={region.name_id for region in settings.regions},
            tiers={tier.tier_name_id for tier in self._tiers},
            builds=builds,
            sites=sites,
            verification_allowed_networks=settings.verification_allowed_networks,
            captcha_providers=settings.captcha.endpoints,
            host_ports=settings.runtime.host_ports.numbers,
            is_on_cluster=settings.is_on_cluster,
        )

    async def _render(self, request: control_pb2.MetricsRequest) -> control_pb2.MetricsResponse:
        cdn = await self._cdn.scrape(request)
        return control_pb2.MetricsResponse(
            text=b"" if request.is_without_text else self._render_text(cdn),
            database_problem=self._database_watch.problem,
            object_store_problem=self._object_store_watch.problem,
            servers=self._runtime.server_states(),
            owner_epoch=self._ownership.epoch,
            nodes=self._runtime.nodes(),
            cdn_problem=self._cdn.problem,
        )

    def _render_text(self, cdn: bytes) -> bytes:
        works = (
            self._feeder,
            *self._readers.values(),
            self._ray_store,
            self._changes,
            self._uploading,
            self._deletions,
            self._devices,
            self._refusals,
            self._tokens,
            self._database_watch,
            self._object_store_watch,
            self._runtime.lobbies,
            self._runtime.servers,
            self._server_retention,
            self._exports,
            self._usage,
        )
        backup_ms = last_backup_ms(self._settings.data_dir)
        measured = metrics.render_metrics(
            self._feeder,
            self._topics.sequence,
            self._runtime.dropped_output,
            unexpected_errors={work.job.work: work.job.unexpected_errors for work in works},
            is_database_up=not self._database_watch.problem,
            is_object_store_up=not self._object_store_watch.problem,
            owner_epoch=self._ownership.epoch,
            backup_age_s=None if backup_ms is None else (now_ms() - backup_ms) / 1000,
        )
        runtime = self._runtime.render_metrics(self._usage.used)
        return self._metrics.render(measured, self._usage.render(), runtime, cdn)

    async def start(self) -> dict[str, str]:
        sys.setswitchinterval(THREAD_SWITCH_S)
        await self._counts_reader.read_current()
        # The runtime starts first, because operations need to know the build kinds that run here.
        await self._runtime.start()
        await self._http.start()
        await self._rpc.start()
        settings = self._settings
        share_with_group(
            settings.data_dir,
            self._folder,
            settings.control_http_socket,
            settings.control_socket,
            settings.edge_cdn_socket,
        )
        own = self._tasks.own
        own("cdn", self._cdn.run())
        own("database", self._database_watch.run())
        own("object_store", self._object_store_watch.run())
        own("uploads", self._uploading.run_cleanup())
        own("deletions", self._deletions.run())
        own("answers", self._changes.run_cleanup())
        own("audit", self._refusals.run())
        own("devices", self._devices.run_cleanup())
        own("feeder", self._feeder.run())
        for name, reader in self._readers.items():
            own(name, reader.run())
        own("rays", self._ray_store.run())
        own("exports", self._exports.run())
        own("log_quota", self._log_quota.run())
        own("server_retention", self._server_retention.run())
        own("usage", self._usage.run())
        for name, work in (*self._runtime.work(), *self._rays.work()):
            own(name, work)
        await self._runtime.wait_until_known()
        without_front = (
            {} if self._http_socket is None else {"control_http": bound_address(self._http_socket)}
        )
        return {
            **without_front,
            "cdn": bound_address(self._cdn_socket),
            "owner_group_id": self._owner.group_id,
            "cloud_token_file": str(self._owner.token_file),
        }

    def reload(self, reread: Callable[[], Settings]) -> None:
        """Reads the settings again after SIGHUP, and applies changed rate limits, quotas and tiers."""
        if not self._is_wired:
            self._reload_due = reread
            return
        # Beside a supervisor, the data plane names the changes.
        settings = reread_settings(reread, self._settings, names_unapplied=not self._is_supervised)
        if settings is None:
            return
        self._limits.change(settings.rate_limits)
        self._quotas.defaults = settings.quotas
        self._tiers = settings.tiers
        self._runtime.set_tiers(settings.tiers)
        self._platform.take_tiers(settings.tiers)
        _log.info("reloaded")

    async def stop(self, signals: StopSignals) -> None:
        """Stops the servers, the game runtime, the background tasks and the database, in this
        order.

        If a background task has died, raises BackgroundTaskDied at the end.
        """
        _log.info("stopping")
        grace_s = self._settings.stop_grace_ms / 1000
        await signals.end_all([self._http.stop, self._cdn.stop], grace_s)
        # The CDN stores its last rays over this server.
        # Otherwise the server would wait for the data plane's poll during its whole grace.
        asyncio.get_running_loop().call_soon(self._topics.end)
        await signals.end_all([self._rpc.stop], grace_s)
        await self._runtime.stop(is_ordered=not self._is_orphan(), forced=signals.forced)
        await self._uploading.stop()
        await self._exports.stop()
        await self._tasks.stop()
        await self._refusals.job.attempt(self._refusals.flush)
        await self._rays.close()
        await asyncio.to_thread(self._files.close)
        if self._nodes is not None:
            await self._nodes.stop()
        await self._cdn_client.close()
        await self._client.close()
        await self._database.close()
        close_listeners(self._cdn_listeners)
        _log.info("stopped")
        if self._tasks.problem is not None:
            raise BackgroundTaskDied(self._tasks.problem)


def _transport_settings(settings: Settings) -> TransportSettings:
    http, messages = settings.http_limits, settings.grpc_limits
    return TransportSettings(
        is_internal=True,
        body_limit_bytes=http.body_bytes,
        headers_limit_bytes=http.header_bytes + _ADDED_HEADERS_BYTES,
        url_limit_bytes=http.url_bytes,
        message_limit_bytes=messages.message_bytes,
    )


def _links(settings: Settings, cdn_url: str, picture: Callable[[str], str]) -> PublicUrls:
    address = reachable_address(str(settings.http))
    public_url = settings.public_base or f"{settings.http_scheme}://{address}"
    return PublicUrls(
        cdn_url=cdn_url,
        cdn_domain=settings.domains.cdn,
        public_url=public_url,
        given_hub_url=(settings.hub_url or "").rstrip("/") or None,
        picture=picture,
    )
