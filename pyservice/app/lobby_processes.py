"""Processes of lobbies and servers, as the data plane requests them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from pyservice.dataplane.cluster_routes import ClusterRoutes
from pyservice.dataplane.draining import Draining
from pyservice.dataplane.edge_routes import EdgeRoutes
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_quota import LobbyQuota
from pyservice.dataplane.lobby_resources import LobbyResources, Resources
from pyservice.dataplane.lobby_scaling import LobbyScaler
from pyservice.dataplane.lobby_templates import LobbyTemplates
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.dataplane.player_sessions import PlayerSessions
from pyservice.dataplane.resolved_namespace import ResolvedMode, ResolvedNamespace
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.edge_guard.liveness import EdgeGuardLiveness
from pyservice.errors import ServiceError
from pyservice.process.drain_file import DrainFile
from pyservice.rpc import Handler
from pyservice.settings import Settings, Tier

_INTERNAL: Final = "hosting.internal.v1"


class LobbyProcesses:
    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        namespaces: NamespaceIndex,
        count_servers: Callable[[], int | None] = lambda: None,
        restore_id: str = "",
    ) -> None:
        job = settings.domains.job
        edge = settings.edge
        self.player_addresses = PlayerAddresses(
            job, edge.address, edge.node_address, has_certificate=bool(edge.certificates)
        )
        self._liveness = EdgeGuardLiveness(settings.data_dir)
        self.routes = self._routes(settings, engine, restore_id)
        cluster = self.routes if isinstance(self.routes, ClusterRoutes) else None
        self.player_sessions = PlayerSessions(
            engine.processes, *([] if cluster is None else [cluster.node_of])
        )
        self.runtime = RuntimeConnection(
            engine, namespaces, self.player_addresses, self.player_sessions
        )
        self.runtime.nodes = cluster
        self.lobby_resources = LobbyResources(engine, namespaces, self.runtime.size_of_lobby)
        self.quota = LobbyQuota(engine.counts, namespaces, self.lobby_resources, settings.quotas)
        self.lobby_templates = LobbyTemplates(
            self.runtime.can_start,
            has_job_domain=job is not None,
            heartbeat_grace_ms=settings.heartbeat_grace_ms,
            availability=self.runtime,
            quota=self.quota,
            prevented=self._start_refusal,
        )
        regions = [region.name_id for region in settings.regions]
        grace_ms = settings.empty_lobby_grace_ms
        self.lobby_scaler = LobbyScaler(
            engine,
            namespaces,
            self.lobby_templates,
            regions,
            grace_ms,
            is_draining=lambda: self.draining.is_draining,
            is_lobby_draining=lambda lobby: self.draining.is_lobby_draining(lobby),
        )
        self.draining = Draining(
            DrainFile.of(settings),
            engine,
            namespaces.labels,
            count_servers,
            self.lobby_scaler.all_changed,
            self.runtime.is_on_cordoned_node,
        )
        self.runtime.on_cordon = self.lobby_scaler.all_changed
        self.runtime.on_lobby_crashed = self.lobby_scaler.lobby_crashed
        namespaces.on_version_replaced = self.runtime.other_versions.keep_if_starting
        self.runtime.wait_server_served = self.routes.wait_server_served
        self.runtime.wait_lobby_served = self.routes.wait_lobby_served

    def _routes(
        self, settings: Settings, engine: Engine, restore_id: str
    ) -> EdgeRoutes | ClusterRoutes:
        addresses, epoch = self.player_addresses, engine.status().epoch

        def routes_of(node: str) -> EdgeRoutes:
            return EdgeRoutes(engine, addresses, epoch, None, restore_id, node)

        if settings.is_on_cluster:
            return ClusterRoutes(engine, routes_of)
        return EdgeRoutes(engine, addresses, epoch, self._liveness, restore_id)

    def _start_refusal(self, mode: ResolvedMode) -> ServiceError | None:
        return self.draining.refusal() or self.routes.start_refusal(mode)

    def attach_refusal(self, namespace: ResolvedNamespace) -> ServiceError | None:
        """Returns why the namespace may have no further attached lobby, or None."""
        return self.draining.refusal() or self.lobby_templates.quota_refusal(namespace)

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        sizes = {tier.tier_name_id: Resources(tier.millicores, tier.memory) for tier in tiers}
        self.runtime.set_tiers(sizes)
        self.lobby_templates.capacity_refusals.set_tiers(sizes)

    def set_addresses(self, http: str, grpc: str) -> None:
        """Sets the addresses that game servers receive."""
        self.runtime.http_address, self.runtime.grpc_address = http, grpc

    def route_handlers(self) -> dict[str, Handler]:
        """Returns the methods of an edge-guard."""
        return {
            f"{_INTERNAL}.Routes.Follow": self.routes.follow,
            f"{_INTERNAL}.Routes.CountSessions": self.player_sessions.count,
        }

    def handlers(self) -> dict[str, Handler]:
        runtime = self.runtime
        return {
            f"{_INTERNAL}.Runtime.Wanted": runtime.desired_lobbies,
            f"{_INTERNAL}.Runtime.Report": runtime.report,
            f"{_INTERNAL}.Runtime.Lease": runtime.lease,
            f"{_INTERNAL}.Runtime.PlaceServer": runtime.place_server,
            f"{_INTERNAL}.Runtime.EndLease": runtime.end_lease,
            f"{_INTERNAL}.Runtime.Leases": runtime.leases,
            f"{_INTERNAL}.Runtime.BindPorts": runtime.bind_ports,
            f"{_INTERNAL}.Runtime.NodeGone": runtime.node_gone,
            f"{_INTERNAL}.Runtime.EmptyLobbies": self.draining.empty_lobbies,
            **self.route_handlers(),
        }

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        yield "LobbyScaling", self.lobby_scaler.run()
        yield "Drain", self.draining.run()
        if isinstance(self.routes, EdgeRoutes):
            yield "EdgeGuardLiveness", self._liveness.run()
        yield "EdgeRoutes", self.routes.run()
