"""What of the data plane is about processes, wired: which lobbies are made, who starts them, how they are reached."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, Final

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.making import Making
from pyservice.dataplane.namespaces import Namespaces
from pyservice.dataplane.routes import RouteBook
from pyservice.dataplane.runners import Runners
from pyservice.dataplane.supply import Supply
from pyservice.dataplane.ways_in import WayIn
from pyservice.rpc import Handler
from pyservice.settings import Settings, Tier

_INTERNAL: Final = "hosting.internal.v1"


class Processes:
    """Parts around one engine."""

    def __init__(self, settings: Settings, engine: Engine, namespaces: Namespaces) -> None:
        job = settings.domains.job
        edge = settings.edge
        self.way_in = WayIn(
            job, edge.address, edge.node_address, has_certificate=bool(edge.certificates)
        )
        self.runners = Runners(engine, namespaces, self.way_in)
        self.making = Making(
            self.runners.can_start,
            has_job_domain=job is not None,
            heartbeat_grace_ms=settings.heartbeat_grace_ms,
            settled=self.runners,
        )
        self.routes = RouteBook(engine, self.way_in, engine.status().epoch)
        regions = [region.name_id for region in settings.regions]
        grace_ms = settings.empty_lobby_grace_ms
        self.supply = Supply(engine, namespaces, self.making, regions, grace_ms)
        self.runners.crashed = self.supply.crashed
        namespaces.retiring = self.runners.former.retire
        self.runners.server_served = self.routes.server_served

    def take_tiers(self, tiers: Iterable[Tier]) -> None:
        """What lobbies that are made from now on need of a node."""
        self.runners.take_tiers(
            {tier.tier_name_id: (tier.millicores, tier.memory) for tier in tiers}
        )

    def opened(self, http: str, grpc: str) -> None:
        """The public doors are open: game servers are told where."""
        self.runners.http_address, self.runners.grpc_address = http, grpc

    def handlers(self) -> dict[str, Handler]:
        """Of the internal services, by full name."""
        runners = self.runners
        return {
            f"{_INTERNAL}.Runtime.Wanted": runners.wanted,
            f"{_INTERNAL}.Runtime.Report": runners.report,
            f"{_INTERNAL}.Runtime.Lease": runners.lease,
            f"{_INTERNAL}.Runtime.PlaceServer": runners.place_server,
            f"{_INTERNAL}.Runtime.EndLease": runners.end_lease,
            f"{_INTERNAL}.Runtime.Leases": runners.leases,
            f"{_INTERNAL}.Routes.Follow": self.routes.follow,
        }

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        """What goes on as long as the plane does."""
        yield "Supply", self.supply.run()
