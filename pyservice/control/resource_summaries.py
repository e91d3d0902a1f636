from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyservice.pb.hosting.v1 import games_pb2, groups_pb2
from pyservice.settings.sections import Region
from pyservice.storage.database import Record
from pyservice.timestamps import rfc3339


@dataclass(slots=True)
class PublicUrls:
    """Builder of public URLs. Without public domains, `cdn_domain` is None and all sites have URLs
    below `cdn_url`.
    """

    cdn_url: str
    cdn_domain: str | None
    public_url: str
    given_hub_url: str | None
    picture: Callable[[str], str]

    @property
    def hub_url(self) -> str:
        return self.given_hub_url or self.public_url

    def site_url(self, game_name_id: str, name_id: str) -> str:
        hosts = self.cdn_hosts(game_name_id, name_id)
        return f"https://{hosts[-1]}" if hosts else f"{self.cdn_url}/{game_name_id}/{name_id}/"

    def cdn_hosts(self, game_name_id: str, name_id: str) -> list[str]:
        """Returns the CDN host names of a site, or an empty list without a CDN domain."""
        if self.cdn_domain is None:
            return []
        hosts = [f"{game_name_id}--{name_id}.{self.cdn_domain}"]
        return [*hosts, f"{game_name_id}.{self.cdn_domain}"] if name_id == "prod" else hosts

    def picture_url(self, upload_id: str | None, kind: str | None) -> str | None:
        return None if upload_id is None else self.picture(f"{upload_id}.{kind}")

    def device_link_url(self, token: str) -> str:
        """Returns the page for a device link. Without a hub it is a page of this service."""
        page = (
            f"{self.public_url}/link"
            if self.given_hub_url is None
            else f"{self.hub_url}/devices/link"
        )
        return f"{page}#{token}"

    def group_profile_url(self, group_id: str) -> str:
        return f"{self.hub_url}/groups/{group_id}"


def group_handle(row: Record, links: PublicUrls) -> groups_pb2.GroupHandle:
    return groups_pb2.GroupHandle(
        group_id=row.group_id,
        display_name=row.display_name,
        external=groups_pb2.GroupExternal(profile=links.group_profile_url(row.group_id)),
        is_developer=True,
    )


def group_summary(row: Record, links: PublicUrls, *, is_member: bool) -> groups_pb2.GroupSummary:
    return groups_pb2.GroupSummary(
        group_id=row.group_id,
        display_name=row.display_name,
        external=groups_pb2.GroupExternal(profile=links.group_profile_url(row.group_id)),
        bio=row.bio,
        is_current_identity_member=is_member,
        member_count=row.member_count,
        owner_identity_id=row.owner_identity_id,
        publicity=row.publicity,
        is_developer=True,
    )


def game_summary(
    row: Record, developer: groups_pb2.GroupHandle, links: PublicUrls, player_count: int
) -> games_pb2.GameSummary:
    return games_pb2.GameSummary(
        game_id=row.game_id,
        name_id=row.name_id,
        display_name=row.display_name,
        url=links.site_url(row.name_id, "prod"),
        total_player_count=player_count,
        developer=developer,
        logo_url=links.picture_url(row.logo_upload_id, row.logo_kind),
        banner_url=links.picture_url(row.banner_upload_id, row.banner_kind),
    )


def region_summaries(regions: Iterable[Region]) -> list[games_pb2.RegionSummary]:
    return [
        games_pb2.RegionSummary(
            region_id=region.name_id,
            region_name_id=region.name_id,
            provider=region.provider_display_name,
            universal_region="local" if region.name_id == "local" else "unknown",
            provider_display_name=region.provider_display_name,
            region_display_name=region.region_display_name,
        )
        for region in regions
    ]


def namespace_summary(row: Record) -> games_pb2.NamespaceSummary:
    return games_pb2.NamespaceSummary(
        namespace_id=row.namespace_id,
        create_ts=rfc3339(row.create_ms),
        display_name=row.display_name,
        version_id=row.version_id,
        name_id=row.name_id,
    )


def version_summary(row: Record) -> games_pb2.VersionSummary:
    return games_pb2.VersionSummary(
        version_id=row.version_id, create_ts=rfc3339(row.create_ms), display_name=row.display_name
    )
