"""What settings say of the service, in the messages of the operations that tell it (decisions 8.1, 8.5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from pyservice.control.resource_summaries import PublicUrls
from pyservice.pb.hosting.v1 import games_pb2
from pyservice.pb.hosting.v1 import platform_pb2 as pb
from pyservice.settings import Settings, Tier
from pyservice.settings.sections import CaptchaSettings

_LOCAL_ADDRESS: Final = "127.0.0.1"
"""Where lobbies are in local mode (decisions 5.9)."""


def bootstrap(settings: Settings, links: PublicUrls) -> pb.GetBootstrapResponse:
    """Domains, or where the doors listen when there are none."""
    domains = settings.domains
    return pb.GetBootstrapResponse(
        access=settings.access,
        captcha=_captcha(settings.captcha),
        cluster=settings.cluster,
        domains=pb.BootstrapDomains(
            main=domains.main or urlsplit(links.public_url).netloc,
            cdn=domains.cdn or urlsplit(links.cdn_url).netloc,
            job=domains.job or _LOCAL_ADDRESS,
            open_backend=domains.open_backend,
        ),
        login_methods=pb.LoginMethods(access_token=True, email=False),
        origins=pb.BootstrapOrigins(hub=links.hub_url),
    )


def _captcha(captcha: CaptchaSettings) -> pb.BootstrapCaptcha:
    """Of the service's own pages: the second provider, where the operator has a key of it."""
    site_key = captcha.captcha_b_site_key
    return pb.BootstrapCaptcha(
        captcha_b=None if site_key is None else pb.BootstrapCaptchaB(site_key=site_key)
    )


def region_tiers(tiers: Iterable[Tier]) -> list[pb.RegionTier]:
    """In the operator's order."""
    return [pb.RegionTier(**tier.model_dump()) for tier in tiers]


def datacenters(settings: Settings) -> list[pb.Datacenter]:
    """A datacenter is a region (decisions 1.5)."""
    return [
        pb.Datacenter(id=region.name_id, slug=region.name_id, name=region.region_display_name)
        for region in settings.regions
    ]


def service_domains(settings: Settings) -> list[str]:
    """What is at or below these is served by the service itself."""
    domains = settings.domains
    return [one for one in (domains.main, domains.cdn, domains.job) if one is not None]


def regions(settings: Settings) -> list[games_pb2.RegionSummary]:
    """As games have them."""
    return [
        games_pb2.RegionSummary(
            region_id=region.name_id,
            region_name_id=region.name_id,
            provider=region.provider_display_name,
            universal_region="local" if region.name_id == "local" else "unknown",
            provider_display_name=region.provider_display_name,
            region_display_name=region.region_display_name,
        )
        for region in settings.regions
    ]
