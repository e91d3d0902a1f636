"""The table of the control plane's operations: who may call which, and what it does (decisions 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyservice.calls import Authorize, Operation, Run
from pyservice.control.authorization import Gate
from pyservice.control.builds import Builds
from pyservice.control.device_links import Devices
from pyservice.control.game_pictures import Avatars, Pictures
from pyservice.control.games import Games
from pyservice.control.groups import Groups
from pyservice.control.lobby_exports import Exports
from pyservice.control.lobby_records import Lobbies
from pyservice.control.namespace_access import Admittance
from pyservice.control.namespaces import Namespaces
from pyservice.control.process_logs import ProcessLogs
from pyservice.control.rays import RayStore
from pyservice.control.servers import Servers
from pyservice.control.service_info import Platform
from pyservice.control.sites import Sites
from pyservice.control.tokens import Tokens
from pyservice.control.uploads import Uploads
from pyservice.control.versions import Versions

Row = tuple[str, Authorize, Run]

_PACKAGE: Final = "hosting.v1"


@dataclass(frozen=True, slots=True)
class Nouns:
    """The handlers, one object per noun."""

    games: Games
    groups: Groups
    namespaces: Namespaces
    admittance: Admittance
    tokens: Tokens
    versions: Versions
    platform: Platform
    devices: Devices
    lobbies: Lobbies
    rays: RayStore
    builds: Builds
    uploads: Uploads
    sites: Sites
    avatars: Avatars
    pictures: Pictures
    servers: Servers
    process_logs: ProcessLogs
    exports: Exports


def operations(gate: Gate, nouns: Nouns) -> dict[str, Operation]:
    """Every operation by full proto name."""
    rows: Iterable[Row] = (
        ("Games.ValidateGame", gate.cloud, nouns.games.validate),
        ("Games.CreateGame", gate.cloud_of_group, nouns.games.create),
        ("Games.GetGames", gate.cloud, nouns.games.list_),
        ("Games.GetGame", gate.cloud, nouns.games.get),
        ("Groups.CreateGroup", gate.cloud_of_identity, nouns.groups.create),
        ("Groups.GetGroup", gate.cloud_of_group, nouns.groups.get),
        ("Groups.GetGroupBilling", gate.cloud_of_group, nouns.groups.billing),
        ("Versions.CreateVersion", gate.cloud, nouns.versions.create),
        ("Versions.ValidateVersion", gate.cloud, nouns.versions.validate),
        ("Versions.ReserveVersionName", gate.cloud, nouns.versions.reserve_name),
        ("Versions.GetVersion", gate.cloud, nouns.versions.get),
        ("Versions.ListVersions", gate.cloud, nouns.versions.list_),
        ("Namespaces.ValidateNamespace", gate.cloud, nouns.namespaces.validate),
        ("Namespaces.CreateNamespace", gate.cloud, nouns.namespaces.create),
        ("Namespaces.ListNamespaces", gate.cloud, nouns.namespaces.list_),
        ("Namespaces.GetNamespace", gate.cloud, nouns.namespaces.get),
        ("Namespaces.UpdateNamespaceVersion", gate.cloud, nouns.namespaces.set_version),
        ("Namespaces.GetVersionHistory", gate.cloud, nouns.namespaces.history),
        ("Namespaces.UpdateMatchmakerConfig", gate.cloud, nouns.namespaces.set_limits),
        ("Namespaces.ValidateMatchmakerConfig", gate.cloud, nouns.namespaces.validate_limits),
        ("Namespaces.SetDomainPublicAuth", gate.cloud, nouns.admittance.set_domain_public_auth),
        ("Namespaces.AddDomain", gate.cloud, nouns.admittance.add_domain),
        ("Namespaces.RemoveDomain", gate.cloud, nouns.admittance.remove_domain),
        ("Namespaces.SetCdnAuth", gate.cloud, nouns.admittance.set_cdn_auth),
        ("Namespaces.SetAuthUser", gate.cloud, nouns.admittance.set_user),
        ("Namespaces.RemoveAuthUser", gate.cloud, nouns.admittance.remove_user),
        ("Tokens.CreateServiceToken", gate.cloud, nouns.tokens.create_service),
        ("Tokens.CreatePublicToken", gate.cloud, nouns.tokens.create_public),
        ("Tokens.CreateDevelopmentToken", gate.cloud, nouns.tokens.create_development),
        ("Tokens.ListNamespaceTokens", gate.cloud, nouns.tokens.list_of_namespace),
        ("Tokens.RevokeNamespaceToken", gate.cloud, nouns.tokens.revoke_of_namespace),
        ("Tokens.CreateGameToken", gate.cloud, nouns.tokens.create_of_game),
        ("Tokens.ListGroupTokens", gate.cloud_of_group, nouns.tokens.list_of_group),
        ("Tokens.RevokeGroupToken", gate.cloud_of_group, nouns.tokens.revoke_of_group),
        ("Tokens.InspectToken", gate.cloud, nouns.tokens.inspect),
        ("Platform.GetBootstrap", gate.anybody, nouns.platform.bootstrap),
        ("Platform.GetRegionTiers", gate.anybody, nouns.platform.tiers),
        ("Platform.ListDatacenters", gate.environment_or_cloud, nouns.platform.datacenters),
        ("Devices.PrepareDeviceLink", gate.anybody, nouns.devices.prepare),
        ("Devices.GetDeviceLink", gate.anybody, nouns.devices.get),
        ("Devices.CompleteDeviceLink", gate.cloud, nouns.devices.complete),
        ("Logs.ListLobbyRecords", gate.cloud, nouns.lobbies.list_),
        ("Logs.GetLobbyRecord", gate.cloud, nouns.lobbies.get),
        ("Rays.GetRayPerf", gate.cloud, nouns.rays.perf),
        *_of_files(gate, nouns),
        *_of_processes(gate, nouns),
    )
    return {
        f"{_PACKAGE}.{name}": Operation(f"{_PACKAGE}.{name}", authorize, run)
        for name, authorize, run in rows
    }


def _of_processes(gate: Gate, nouns: Nouns) -> Iterable[Row]:
    """What runs."""
    return (
        ("Servers.CreateServer", gate.environment_or_cloud, nouns.servers.create),
        ("Servers.GetServer", gate.environment_or_cloud, nouns.servers.get),
        ("Servers.ListServers", gate.environment_or_cloud, nouns.servers.list_),
        ("Servers.DestroyServer", gate.environment_or_cloud, nouns.servers.destroy),
        ("Servers.GetServerLogs", gate.environment_or_cloud, nouns.process_logs.of_server),
        ("Logs.GetLobbyLogs", gate.cloud, nouns.process_logs.of_lobby),
        ("Logs.ExportLobbyLogs", gate.cloud, nouns.exports.lobby_logs),
        ("Logs.ExportLobbyHistory", gate.cloud, nouns.exports.lobby_history),
    )


def _of_files(gate: Gate, nouns: Nouns) -> Iterable[Row]:
    """What is uploaded: builds, sites, pictures."""
    return (
        ("Builds.ListBuilds", gate.environment_or_cloud, nouns.builds.list_),
        ("Builds.PrepareBuild", gate.environment_or_cloud, nouns.builds.prepare),
        ("Builds.CompleteBuild", gate.environment_or_cloud, nouns.builds.complete),
        ("Builds.GetBuild", gate.environment_or_cloud, nouns.builds.get),
        ("Builds.PatchBuildTags", gate.environment_or_cloud, nouns.builds.patch_tags),
        ("Builds.ListGameBuilds", gate.cloud, nouns.builds.list_of_game),
        ("Builds.CreateGameBuild", gate.cloud, nouns.builds.create),
        ("Builds.DeleteGameBuild", gate.cloud, nouns.builds.delete),
        ("Uploads.CompleteUpload", gate.cloud, nouns.uploads.complete),
        ("Cdn.CreateGameCdnSite", gate.cloud, nouns.sites.create),
        ("Cdn.ListSites", gate.cloud, nouns.sites.list_),
        ("Avatars.PrepareCustomAvatarUpload", gate.cloud, nouns.avatars.prepare),
        ("Avatars.CompleteCustomAvatarUpload", gate.cloud, nouns.avatars.complete),
        ("Avatars.ListCustomAvatars", gate.cloud, nouns.avatars.list_),
        ("Pictures.PrepareGameBannerUpload", gate.cloud, nouns.pictures.prepare_banner),
        ("Pictures.CompleteGameBannerUpload", gate.cloud, nouns.pictures.complete_banner),
        ("Pictures.PrepareGameLogoUpload", gate.cloud, nouns.pictures.prepare_logo),
        ("Pictures.CompleteGameLogoUpload", gate.cloud, nouns.pictures.complete_logo),
    )
