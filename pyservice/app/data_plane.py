"""Data plane process: creates and connects its engine, journal, feed, servers and lobby processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from pyservice.app.lobby_processes import LobbyProcesses
from pyservice.app.public_servers import (
    PublicListeners,
    PublicServers,
    ServerContext,
    transport_settings,
    warn_without_front,
)
from pyservice.auth import keyring
from pyservice.auth.authorization import Authorizer
from pyservice.calls import Operation
from pyservice.dataplane import engine
from pyservice.dataplane.admission import Admission
from pyservice.dataplane.admission_checks import CaptchaCheck, VerificationCheck
from pyservice.dataplane.attached_lobbies import AttachedLobbies, AttachedLobbyContext
from pyservice.dataplane.channel_events import ChannelEvents
from pyservice.dataplane.cloud_token_check import CloudTokenCheck
from pyservice.dataplane.configuration_feed import ConfigurationFeed
from pyservice.dataplane.development_mocks import MockOperations
from pyservice.dataplane.facts_outbox import FactsOutbox
from pyservice.dataplane.feed_files import FeedFileError, FeedFiles
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.health_monitors import (
    CompactionMonitor,
    ControlPlaneMonitor,
    DiskReserveMonitor,
    EventLoopMonitor,
    JournalStallMonitor,
)
from pyservice.dataplane.machine_status import MachineStatus
from pyservice.dataplane.matchmaker import Matchmaker
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import NativeMatchmaker, OpenFailed
from pyservice.dataplane.operation_table import operation_table
from pyservice.dataplane.outbound_http import OutboundHttpClient
from pyservice.dataplane.readiness import HealthMonitors, Phase, Readiness
from pyservice.dataplane.static_feed import FeedOverSocket, StaticFeed
from pyservice.dataplane.token_signing import MacKeyRotation, TokenAdministration, TokenSigning
from pyservice.dataplane.trials import Trials
from pyservice.durable_files import is_disk_full
from pyservice.edge.http_server import HttpServer, listen_unix
from pyservice.edge.metrics_listener import Probes
from pyservice.edge_guard.admin_socket import EdgeGuardMetrics
from pyservice.front.front_server import FrontConfig
from pyservice.front.public_certificate import (
    CertificateUnusable,
    open_certificate,
    reload_certificate,
)
from pyservice.network.hosts import AllowedDestinations, allow_any
from pyservice.observability.health import DescriptorMonitor
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import RequestMetrics
from pyservice.observability.ray_export import DATA_SERVICE, RayExport, store_over_socket
from pyservice.pb.hosting.internal.v1 import admin_pb2, control_pb2, feed_pb2
from pyservice.process.background_tasks import BackgroundTasks
from pyservice.process.drain_file import DrainFile
from pyservice.process.listening_sockets import (
    LISTENERS_OF_ROLE,
    bound_address,
    close_listeners,
    open_listeners,
)
from pyservice.process.settings_reload import reread_settings
from pyservice.process.stop_signals import StopSignals
from pyservice.rpc import InternalClient, InternalServer
from pyservice.settings import ListenAddress, Settings
from pyservice.settings.database_url import database_location
from pyservice.transport.native import PublicCertificate
from pyservice.transport.rate_limits import Limits
from pyservice.watch import Topics

START_FAILURES: Final = (*(keyring.KeyringError, FeedFileError, OpenFailed, CertificateUnusable),)
"""Logged without a traceback."""

_INTERNAL: Final = "hosting.internal.v1"
_RETRY_MS: Final = 1_000
_GROUP_PART: Final = 8
_GROUP_LEAST: Final = 32
"""Requests that one group may have at servers of third parties: this part of the passed ones, or more."""
_PROBES_GRACE_S: Final = 1.0

_log = get_logger("service")


class DataPlane:
    def __init__(
        self,
        settings: Settings,
        inherited: Mapping[str, int] = MappingProxyType({}),
        *,
        is_supervised: bool = False,
    ) -> None:
        """Opens the public ports, so that clients wait for the end of `recover` instead of failing.

        `inherited` has descriptors of listening sockets that are already open.

        If `is_supervised`, the control plane starts too, and counts as starting until its first
        response.
        """
        self._settings = settings
        self._is_supervised = is_supervised
        self._drain_file = DrainFile.of(settings)
        self._certificate: PublicCertificate | None = None
        self._tiers = settings.tiers
        self._phase = Phase()
        self._readiness: Readiness | None = None
        # If a background task dies, the data plane continues to serve players and reports that it
        # is not ready.
        self._tasks = BackgroundTasks()
        self._reload_lock = asyncio.Lock()
        self._public_listeners = listeners = open_listeners(
            settings, LISTENERS_OF_ROLE["data"], inherited
        )
        self._http_socket = listeners["http"]
        self._http_address = bound_address(self._http_socket)
        self._probes_socket = listeners["metrics"]
        self._grpc_socket = listeners.get("grpc")
        self._keyring = keyring.load_or_create(settings.data_dir)
        self._metrics = RequestMetrics(version=engine.version, build_profile=engine.build_profile)
        self._limits = Limits(settings.rate_limits)
        self._namespaces = NamespaceIndex()
        self._feed = ConfigurationFeed(
            FeedFiles(settings.data_dir / "feed"),
            self._namespaces,
            _operator_limits(settings),
            self._metrics.feed,
            held_bytes_max=settings.data_plane_configuration_bytes,
        )
        # The journal recovery needs the configuration.
        self._feed.load()
        self._client = InternalClient(settings.admin_socket)
        over_socket, path = FeedOverSocket(self._client), settings.feed_file
        self._static_feed = StaticFeed(path, over_socket, self._feed) if path else None
        self._control_client = InternalClient(settings.control_socket)
        self._cloud_tokens = CloudTokenCheck(self._control_client)
        self._control = ControlPlaneMonitor(self._control_metrics, is_awaited=is_supervised)
        self._edge = EdgeGuardMetrics(settings.data_dir)
        probes = Probes(self._conditions, self._metrics, self._render, self._scrape)
        self._probes = HttpServer(probes, [self._probes_socket])

    async def recover(self, signals: StopSignals) -> bool:
        """Starts the health probes, recovers the engine, starts the admin socket and loads the feed
        file (`--feed`).

        While the disk is full, retries the recovery. Returns False if a stop signal arrived first.
        """
        await self._probes.start()
        if not self._is_supervised:
            self._drain_file.forget_ended()
        journal_dir = self._settings.data_dir / "journal"
        limits = _engine_limits(self._settings)
        while not signals.stop.is_set():
            try:
                recovered = await signals.unless_hung(
                    asyncio.to_thread(engine.open_engine, journal_dir, self._keyring, limits)
                )
            except OSError as error:
                if not is_disk_full(error):
                    raise
                _log.error("disk full; recovery is retried", error=str(error), retry_ms=_RETRY_MS)
                await signals.wait_stop(_RETRY_MS)
            else:
                self._engine = self._feed.live_lobbies = recovered
                self._wire_servers()
                self._wire_monitors()
                self._engine.start()
                await self._internal.start()
                await signals.unless_stopped(self._feed_file())
                return True
        await self._probes.stop(_PROBES_GRACE_S)
        close_listeners(self._public_listeners)
        return False

    def _wire_servers(self) -> None:
        settings = self._settings
        # An ACME directory connects to the front, which starts next.
        self._certificate = open_certificate(settings)
        topics = Topics()
        # Each waiting request is one of those that the front passes on, which all groups share.
        passed_max = transport_settings(settings).data_requests_max
        present_max = max(_GROUP_LEAST, passed_max // _GROUP_PART)
        self._to_games = OutboundHttpClient(
            AllowedDestinations(settings.verification_allowed_networks), present_max=present_max
        )
        self._to_providers = OutboundHttpClient(allow_any, label="captcha", present_max=present_max)
        self._processes = LobbyProcesses(
            settings,
            self._engine,
            self._namespaces,
            self._count_servers,
            self._keyring.facts_stream,
        )
        self._processes.set_tiers(self._tiers)
        self._metrics.capacity_refusals = self._processes.lobby_templates.capacity_refusals.by_tier
        self._feed.on_namespace_changed = self._processes.lobby_scaler.namespace_changed
        self._feed.end_lobbies = self._processes.lobby_scaler.end_all
        self._matchmaker = self._native_matchmaker()
        table = self._operations(topics)
        store = store_over_socket(self._control_client.call)
        self._rays = RayExport(
            settings, DATA_SERVICE, self._metrics.rays, store, self._engine.namespace_of_lobby
        )
        context = ServerContext(settings, self._metrics, self._limits, self._rays.rays)
        self._servers = PublicServers(
            context, table, topics, self._front_config(), self._listeners()
        )
        for name, work in (
            *self._servers.work(self._control_client),
            *self._rays.work(),
            *self._processes.work(),
        ):
            self._tasks.own(name, work)
        if settings.is_on_cluster:
            # A single machine does not need its import.
            from pyservice.app.route_listener import serve_routes

            handlers = self._processes.route_handlers()
            self._tasks.own("RouteListener", serve_routes(settings, handlers))
        self._internal = self._internal_server()

    def _internal_server(self) -> InternalServer:
        settings = self._settings
        administration = TokenAdministration(
            self._namespaces,
            self._engine,
            self._static_feed,
            MacKeyRotation(settings.data_dir, self._engine),
        )
        facts = FactsOutbox(
            self._engine,
            self._processes.lobby_resources.of_lobby,
            self._source_of,
            settings.suspect_slot_ms,
        )
        trials = Trials(
            self._feed,
            self._engine.processes,
            self._processes.lobby_templates,
            self._processes.runtime,
            [region.name_id for region in settings.regions],
        )
        return InternalServer(
            {
                f"{_INTERNAL}.Feed.Apply": self._feed.apply,
                f"{_INTERNAL}.Feed.ApplyMany": self._feed.apply_many,
                f"{_INTERNAL}.Feed.Remove": self._feed.remove,
                f"{_INTERNAL}.Feed.Held": self._held_configurations,
                f"{_INTERNAL}.Signing.SignToken": TokenSigning(self._namespaces, self._engine).sign,
                f"{_INTERNAL}.Facts.Read": facts.read,
                f"{_INTERNAL}.Facts.Counts": facts.counts,
                f"{_INTERNAL}.Facts.Lobbies": facts.lobbies,
                f"{_INTERNAL}.Trials.StartTrial": trials.start,
                f"{_INTERNAL}.Admin.CreateToken": administration.create_token,
                f"{_INTERNAL}.Admin.RotateKeys": administration.rotate_keys,
                f"{_INTERNAL}.Admin.DropKeys": administration.drop_keys,
                f"{_INTERNAL}.Admin.StartDrain": self._processes.draining.start,
                f"{_INTERNAL}.Admin.CancelDrain": self._processes.draining.cancel,
                f"{_INTERNAL}.Admin.ReadStatus": self._read_status,
                **self._processes.handlers(),
            },
            settings.admin_socket,
        )

    def _count_servers(self) -> int | None:
        """Returns the number of dynamic servers, or None if it is not known."""
        if self._settings.feed_file is not None and not self._is_supervised:
            return 0
        servers = self._control.servers
        return None if servers is None else sum(servers.values())

    async def _read_status(
        self, request: admin_pb2.ReadStatusRequest
    ) -> admin_pb2.ReadStatusResponse:
        assert self._readiness is not None
        status = MachineStatus(
            self._readiness,
            self._conditions,
            self._engine,
            self._processes.runtime,
            self._control,
            self._processes.draining,
        )
        return await status.read(request)

    def _source_of(self, namespace_id: bytes, address: str) -> int:
        return self._matchmaker.source(namespace_id, True, bytes(4), address)

    def _native_matchmaker(self) -> NativeMatchmaker:
        regions = [
            (
                region.name_id,
                region.provider_display_name,
                region.region_display_name,
                region.latitude,
                region.longitude,
            )
            for region in self._settings.regions
        ]
        addresses = self._processes.player_addresses.native
        limits = self._limits.of_clients
        return self._engine.matchmaker(self._namespaces.native, regions, addresses, limits)

    def _front_config(self) -> FrontConfig:
        settings = self._settings
        return FrontConfig(
            self._matchmaker,
            settings.data_http_socket,
            settings.control_http_socket,
            self._certificate,
        )

    def _listeners(self) -> PublicListeners:
        settings = self._settings
        edge = None if settings.domains.main is None else listen_unix(settings.edge_http_socket)
        return PublicListeners(self._http_socket, self._grpc_socket, edge)

    async def _held_configurations(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse:
        response = await self._feed.held_configurations(request)
        response.http_address = self._http_address
        return response

    def _operations(self, topics: Topics) -> dict[str, Operation]:
        settings, engine_, namespaces = self._settings, self._engine, self._namespaces
        native, processes = self._matchmaker, self._processes
        admission = Admission(
            native,
            engine_,
            namespaces,
            CaptchaCheck(self._to_providers, engine_.player_records, settings.captcha.endpoints),
            VerificationCheck(self._to_games),
        )
        attached_lobbies = AttachedLobbies(
            native,
            engine_,
            namespaces,
            AttachedLobbyContext(
                heartbeat_timeout_ms=settings.attached_heartbeat_timeout_ms,
                heartbeat_grace_ms=settings.heartbeat_grace_ms,
                can_access_game=self._cloud_tokens.reaches,
                quota_refusal=processes.attach_refusal,
            ),
        )
        table = operation_table(
            Authorizer(native, self._cloud_tokens),
            Matchmaker(
                native,
                engine_,
                namespaces,
                admission,
                processes.lobby_templates,
                processes.routes.wait_lobby_served,
            ),
            attached_lobbies,
            MockOperations(native, engine_, namespaces),
        )
        return table | ChannelEvents(native, engine_, topics).operations()

    def _wire_monitors(self) -> None:
        settings = self._settings
        monitors = HealthMonitors(
            journal=JournalStallMonitor(self._engine.status),
            storage=DiskReserveMonitor(settings.data_dir, settings.storage_reserve_bytes),
            loop=EventLoopMonitor(),
            descriptors=DescriptorMonitor(),
            compaction=CompactionMonitor(self._engine.failed_compactions),
            control=self._control,
        )
        static_feed, url = self._static_feed, settings.database_url
        self._readiness = Readiness(
            phase=self._phase,
            monitors=monitors,
            status=self._engine.status,
            namespaces=lambda: len(self._namespaces),
            feed_problems=lambda: static_feed.problems if static_feed else (),
            waiting_long_polls=lambda: self._servers.waiting_long_polls,
            runtime=self._processes.runtime.describe,
            edge_guard=self._processes.routes.describe,
            is_edge_guard_dead=lambda: self._processes.routes.is_edge_guard_dead,
            is_runtime_connected=lambda: self._processes.runtime.is_connected,
            drain=self._processes.draining.describe,
            database_location=database_location(url.get_secret_value()) if url else None,
        )
        for monitor in monitors:
            self._tasks.own(type(monitor).__name__, monitor.run())

    async def _scrape(self) -> bytes:
        if self._settings.is_on_cluster:
            # Each node has an edge-guard with metrics of its own.
            return await self._control.scrape()
        control, edge = await asyncio.gather(self._control.scrape(), self._edge.scrape())
        return edge + control

    def _conditions(self) -> Mapping[str, str | None]:
        if self._readiness is None:
            return {"process": "recovering"}
        conditions = self._readiness.conditions()
        if self._tasks.problem is not None:
            conditions = {**conditions, "tasks": self._tasks.problem}
        return conditions

    def _render(self) -> bytes:
        if self._readiness is None:
            return b""
        native = self._engine.render_metrics(self._namespaces.labels())
        return native + self._readiness.render()

    async def _control_metrics(
        self, request: control_pb2.MetricsRequest
    ) -> control_pb2.MetricsResponse:
        name = f"{_INTERNAL}.Control.Metrics"
        response: control_pb2.MetricsResponse = await self._control_client.call(name, request)
        return response

    async def _feed_file(self) -> None:
        """Starts to follow the feed file (`--feed`), and waits for the first attempt to load it.

        A failed load is retried in the background. Until then, the stored namespace configurations
        stay in use.
        """
        if self._static_feed is not None:
            self._tasks.own(type(self._static_feed).__name__, self._static_feed.run())
            await self._static_feed.wait_fed()

    async def start(self) -> dict[str, str]:
        warn_without_front(self._settings)
        # Clients that connected during the recovery may hold state from before the restart.
        self._processes.runtime.expect_runtime()
        self._processes.routes.expect_edge_guard()
        grpc_port = await self._servers.start()
        http = self._http_address
        grpc = str(ListenAddress(self._settings.grpc.host, grpc_port))
        self._processes.set_addresses(http, grpc)
        self._phase.name = "serving"
        return {
            "http": http,
            "grpc": grpc,
            "metrics": bound_address(self._probes_socket),
            "admin": str(self._settings.admin_socket),
        }

    def reload(self, reread: Callable[[], Settings]) -> None:
        """Reads the settings again after SIGHUP, and applies changed rate limits, quotas and tiers.

        Also reads the certificate and the feed file (`--feed`) again.
        """
        self._tasks.finish("reload", self._reload(reread))

    async def _reload(self, reread: Callable[[], Settings]) -> None:
        async with self._reload_lock:
            # A thread, because the check of a large feed file takes a second.
            settings = await asyncio.to_thread(
                reread_settings, reread, self._settings, names_unapplied=True
            )
            if settings is None or not reload_certificate(self._certificate, settings):
                return
            self._limits.change(settings.rate_limits)
            self._tiers = settings.tiers
            self._feed.group_bytes_max = settings.quotas.configuration_bytes
            if self._readiness is not None:
                self._processes.set_tiers(self._tiers)
                self._processes.quota.defaults = settings.quotas
            if self._static_feed is not None:
                self._static_feed.reload()
            _log.info("reloaded")

    async def stop(self, signals: StopSignals) -> None:
        """Reports not ready, waits `lame_duck_ms`, finishes the requests and then syncs the
        journal.

        A second stop signal forces the shutdown.
        """
        was_serving = self._phase.is_serving
        self._phase.name = "stopping"
        self._control.is_stopping = True
        _log.info("stopping", lame_duck_ms=self._settings.lame_duck_ms if was_serving else 0)
        if was_serving:
            self._processes.routes.is_stopping = True
            self._servers.report_stopping()
            await signals.pause(self._settings.lame_duck_ms)
            self._engine.cancel_holds()
            await self._servers.stop(signals)
        await self._tasks.stop()
        await self._rays.close()
        await self._to_games.close()
        await self._to_providers.close()
        await self._client.close()
        await self._control_client.close()
        await self._internal.stop(0.0)
        await signals.unless_hung(self._engine.close())
        await self._probes.stop(_PROBES_GRACE_S)
        close_listeners(self._public_listeners)
        if not self._is_supervised:
            self._drain_file.cancel_at_stop()
        _log.info("stopped")


def _operator_limits(settings: Settings) -> OperatorLimits:
    return OperatorLimits(
        settings.player_limit_max,
        {region.name_id for region in settings.regions},
        settings.verification_allowed_networks,
        settings.captcha.endpoints,
        settings.runtime.host_ports.numbers,
        settings.quotas.configuration_bytes,
    )


def _engine_limits(settings: Settings) -> engine.EngineLimits:
    return engine.EngineLimits(
        find_wait_ms=settings.find_wait_ms,
        start_limit_ms=settings.start_limit_ms,
        port_quarantine_ms=settings.port_rest_ms,
        public_ports=settings.public_ports,
        binds_ports_later=settings.is_on_cluster,
        segment_bytes=settings.journal.segment_bytes,
        boot_id_path=settings.journal.boot_id_path,
    )
