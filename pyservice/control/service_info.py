"""Operations that describe the service from its settings: bootstrap, tiers, datacenters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.pb.hosting.v1 import platform_pb2 as pb
from pyservice.storage.database import Database


class ServiceInfoOperations:
    def __init__(
        self,
        database: Database,
        bootstrap: Callable[[], pb.GetBootstrapResponse],
        tiers: Iterable[pb.RegionTier],
        datacenters: Sequence[pb.Datacenter],
    ) -> None:
        self._database = database
        self._bootstrap = bootstrap
        self._datacenters = datacenters
        self.take_tiers(tiers)

    def take_tiers(self, tiers: Iterable[pb.RegionTier]) -> None:
        self._tiers = sorted(tiers, key=_size, reverse=True)

    async def bootstrap(
        self, request: pb.GetBootstrapRequest, caller: Caller
    ) -> pb.GetBootstrapResponse:
        return self._bootstrap()

    async def tiers(
        self, request: pb.GetRegionTiersRequest, caller: Caller
    ) -> pb.GetRegionTiersResponse:
        return pb.GetRegionTiersResponse(tiers=self._tiers)

    async def datacenters(
        self, request: pb.ListDatacentersRequest, caller: Caller
    ) -> pb.ListDatacentersResponse:
        async with self._database.read() as tx:
            await authorization.find_namespace(tx, caller, request)
        return pb.ListDatacentersResponse(datacenters=self._datacenters)


def _size(tier: pb.RegionTier) -> tuple[Fraction, int, int]:
    cores = Fraction(tier.service_cores_numerator, tier.service_cores_denominator)
    return cores, tier.cpu, tier.memory
