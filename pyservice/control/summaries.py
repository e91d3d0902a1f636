"""How games, groups, namespaces and versions look in several answers."""

from __future__ import annotations

from pyservice.control.links import Links
from pyservice.control.timestamps import rfc3339
from pyservice.pb.hosting.v1 import games_pb2, groups_pb2
from pyservice.storage.database import Record


def group_handle(row: Record, links: Links) -> groups_pb2.GroupHandle:
    """From a row of groups."""
    return groups_pb2.GroupHandle(
        group_id=row.group_id,
        display_name=row.display_name,
        external=groups_pb2.GroupExternal(profile=links.profile(row.group_id)),
        is_developer=True,
    )


def group_summary(row: Record, links: Links, *, is_member: bool) -> groups_pb2.GroupSummary:
    """From a row of groups with its member count."""
    return groups_pb2.GroupSummary(
        group_id=row.group_id,
        display_name=row.display_name,
        external=groups_pb2.GroupExternal(profile=links.profile(row.group_id)),
        bio=row.bio,
        is_current_identity_member=is_member,
        member_count=row.member_count,
        owner_identity_id=row.owner_identity_id,
        publicity=row.publicity,
    )


def game_summary(
    row: Record, developer: groups_pb2.GroupHandle, links: Links, player_count: int
) -> games_pb2.GameSummary:
    """From a row of games."""
    return games_pb2.GameSummary(
        game_id=row.game_id,
        name_id=row.name_id,
        display_name=row.display_name,
        url=links.game(row.name_id),
        total_player_count=player_count,
        developer=developer,
        logo_url=links.shown(row.logo_upload_id, row.logo_kind),
        banner_url=links.shown(row.banner_upload_id, row.banner_kind),
    )


def namespace_summary(row: Record) -> games_pb2.NamespaceSummary:
    """From a row of namespaces."""
    return games_pb2.NamespaceSummary(
        namespace_id=row.namespace_id,
        create_ts=rfc3339(row.create_ms),
        display_name=row.display_name,
        version_id=row.version_id,
        name_id=row.name_id,
    )


def version_summary(row: Record) -> games_pb2.VersionSummary:
    """From a row of versions."""
    return games_pb2.VersionSummary(
        version_id=row.version_id,
        create_ts=rfc3339(row.create_ms),
        display_name=row.display_name,
    )
