"""Operations that describe the service from its settings: bootstrap, tiers, datacenters."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from urllib.parse import urlsplit

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.resource_summaries import PublicUrls
from pyservice.pb.hosting.v1 import platform_pb2 as pb
from pyservice.settings import Settings, Tier
from pyservice.settings.sections import CaptchaSettings
from pyservice.storage.database import Database


class ServiceInfoOperations:
    def __init__(self, settings: Settings, database: Database, links: PublicUrls) -> None:
        self._settings = settings
        self._database = database
        self._links = links
        self._datacenters = [
            pb.Datacenter(id=region.name_id, slug=region.name_id, name=region.region_display_name)
            for region in settings.regions
        ]
        self.take_tiers(settings.tiers)

    def take_tiers(self, tiers: Iterable[Tier]) -> None:
        messages = (pb.RegionTier(**tier.model_dump()) for tier in tiers)
        self._tiers = sorted(messages, key=_size, reverse=True)

    async def bootstrap(
        self, request: pb.GetBootstrapRequest, caller: Caller
    ) -> pb.GetBootstrapResponse:
        return bootstrap(self._settings, self._links)

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


def bootstrap(settings: Settings, links: PublicUrls) -> pb.GetBootstrapResponse:
    domains = settings.domains
    return pb.GetBootstrapResponse(
        access=settings.access,
        captcha=_captcha(settings.captcha),
        cluster=settings.cluster,
        domains=pb.BootstrapDomains(
            main=domains.main or urlsplit(links.public_url).netloc,
            cdn=domains.cdn or urlsplit(links.cdn_url).netloc,
            job=domains.job or settings.edge.address,
            open_backend=domains.open_backend,
        ),
        login_methods=pb.LoginMethods(access_token=True, email=False),
        origins=pb.BootstrapOrigins(hub=links.hub_url, api=links.public_url),
    )


def _captcha(captcha: CaptchaSettings) -> pb.BootstrapCaptcha:
    site_key = captcha.captcha_b_site_key
    return pb.BootstrapCaptcha(
        captcha_b=None if site_key is None else pb.BootstrapCaptchaB(site_key=site_key)
    )


def _size(tier: pb.RegionTier) -> tuple[Fraction, int, int]:
    cores = Fraction(tier.service_cores_numerator, tier.service_cores_denominator)
    return cores, tier.cpu, tier.memory
