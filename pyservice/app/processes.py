"""What of the data plane is about processes, wired: which lobbies are made, who starts them, how they are reached."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, Final

from pyservice.dataplane.edge_routes import EdgeRoutes
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.idle_lobbies import IdleLobbyScaler
from pyservice.dataplane.lobby_templates import LobbyTemplates
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.rpc import Handler
from pyservice.settings import Settings, Tier

_INTERNAL: Final = "hosting.internal.v1"


class Processes:
    """Parts around one engine."""

    def __init__(self, settings: Settings, engine: Engine, namespaces: NamespaceIndex) -> None:
        job = settings.domains.job
        edge = settings.edge
        self.player_addresses = PlayerAddresses(
            job, edge.address, edge.node_address, has_certificate=bool(edge.certificates)
        )
        self.runtime = RuntimeConnection(engine, namespaces, self.player_addresses)
        self.lobby_templates = LobbyTemplates(
            self.runtime.can_start,
            has_job_domain=job is not None,
            heartbeat_grace_ms=settings.heartbeat_grace_ms,
            availability=self.runtime,
        )
        self.routes = EdgeRoutes(engine, self.player_addresses, engine.status().epoch)
        regions = [region.name_id for region in settings.regions]
        grace_ms = settings.empty_lobby_grace_ms
        self.idle_lobby_scaler = IdleLobbyScaler(
            engine, namespaces, self.lobby_templates, regions, grace_ms
        )
        self.runtime.on_lobby_crashed = self.idle_lobby_scaler.lobby_crashed
        namespaces.on_version_replaced = self.runtime.previous_versions.retire
        self.runtime.wait_server_served = self.routes.wait_server_served

    def take_tiers(self, tiers: Iterable[Tier]) -> None:
        """What lobbies that are made from now on need of a node."""
        self.runtime.set_tiers(
            {tier.tier_name_id: (tier.millicores, tier.memory) for tier in tiers}
        )

    def opened(self, http: str, grpc: str) -> None:
        """The public doors are open: game servers are told where."""
        self.runtime.http_address, self.runtime.grpc_address = http, grpc

    def handlers(self) -> dict[str, Handler]:
        """Of the internal services, by full name."""
        runtime = self.runtime
        return {
            f"{_INTERNAL}.Runtime.Wanted": runtime.wanted,
            f"{_INTERNAL}.Runtime.Report": runtime.report,
            f"{_INTERNAL}.Runtime.Lease": runtime.lease,
            f"{_INTERNAL}.Runtime.PlaceServer": runtime.place_server,
            f"{_INTERNAL}.Runtime.EndLease": runtime.end_lease,
            f"{_INTERNAL}.Runtime.Leases": runtime.leases,
            f"{_INTERNAL}.Routes.Follow": self.routes.follow,
        }

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        """What goes on as long as the plane does."""
        yield "Supply", self.idle_lobby_scaler.run()
