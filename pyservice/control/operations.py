"""The table of the control plane's operations: who may call which, and what it does (decisions 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyservice.calls import Authorize, Operation, Run
from pyservice.control.authorization import CallAuthenticator
from pyservice.control.builds import BuildOperations
from pyservice.control.device_links import DeviceLinkOperations
from pyservice.control.game_pictures import AvatarOperations, GamePictureOperations
from pyservice.control.games import GameOperations
from pyservice.control.groups import GroupOperations
from pyservice.control.lobby_exports import LobbyExportOperations
from pyservice.control.lobby_records import LobbyRecordOperations
from pyservice.control.namespace_access import NamespaceAccessOperations
from pyservice.control.namespaces import NamespaceOperations
from pyservice.control.process_logs import ProcessLogOperations
from pyservice.control.rays import RayStore
from pyservice.control.servers import ServerOperations
from pyservice.control.service_info import ServiceInfoOperations
from pyservice.control.sites import SiteOperations
from pyservice.control.tokens import TokenOperations
from pyservice.control.uploads import UploadOperations
from pyservice.control.versions import VersionOperations

Row = tuple[str, Authorize, Run]

_PACKAGE: Final = "hosting.v1"


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers, one object per noun."""

    games: GameOperations
    groups: GroupOperations
    namespaces: NamespaceOperations
    admittance: NamespaceAccessOperations
    tokens: TokenOperations
    versions: VersionOperations
    platform: ServiceInfoOperations
    devices: DeviceLinkOperations
    lobbies: LobbyRecordOperations
    rays: RayStore
    builds: BuildOperations
    uploads: UploadOperations
    sites: SiteOperations
    avatars: AvatarOperations
    pictures: GamePictureOperations
    servers: ServerOperations
    process_logs: ProcessLogOperations
    exports: LobbyExportOperations


def operation_table(gate: CallAuthenticator, nouns: Handlers) -> dict[str, Operation]:
    """Every operation by full proto name."""
    rows: Iterable[Row] = (
        ("Games.ValidateGame", gate.require_cloud_token, nouns.games.validate),
        ("Games.CreateGame", gate.require_group_token, nouns.games.create),
        ("Games.GetGames", gate.require_cloud_token, nouns.games.list_),
        ("Games.GetGame", gate.require_cloud_token, nouns.games.get),
        ("Groups.CreateGroup", gate.require_identity_token, nouns.groups.create),
        ("Groups.GetGroup", gate.require_group_token, nouns.groups.get),
        ("Groups.GetGroupBilling", gate.require_group_token, nouns.groups.billing),
        ("Versions.CreateVersion", gate.require_cloud_token, nouns.versions.create),
        ("Versions.ValidateVersion", gate.require_cloud_token, nouns.versions.validate),
        ("Versions.ReserveVersionName", gate.require_cloud_token, nouns.versions.reserve_name),
        ("Versions.GetVersion", gate.require_cloud_token, nouns.versions.get),
        ("Versions.ListVersions", gate.require_cloud_token, nouns.versions.list_),
        ("Namespaces.ValidateNamespace", gate.require_cloud_token, nouns.namespaces.validate),
        ("Namespaces.CreateNamespace", gate.require_cloud_token, nouns.namespaces.create),
        ("Namespaces.ListNamespaces", gate.require_cloud_token, nouns.namespaces.list_),
        ("Namespaces.GetNamespace", gate.require_cloud_token, nouns.namespaces.get),
        (
            "Namespaces.UpdateNamespaceVersion",
            gate.require_cloud_token,
            nouns.namespaces.set_version,
        ),
        ("Namespaces.GetVersionHistory", gate.require_cloud_token, nouns.namespaces.history),
        (
            "Namespaces.UpdateMatchmakerConfig",
            gate.require_cloud_token,
            nouns.namespaces.set_limits,
        ),
        (
            "Namespaces.ValidateMatchmakerConfig",
            gate.require_cloud_token,
            nouns.namespaces.validate_limits,
        ),
        (
            "Namespaces.SetDomainPublicAuth",
            gate.require_cloud_token,
            nouns.admittance.set_domain_public_auth,
        ),
        ("Namespaces.AddDomain", gate.require_cloud_token, nouns.admittance.add_domain),
        ("Namespaces.RemoveDomain", gate.require_cloud_token, nouns.admittance.remove_domain),
        ("Namespaces.SetCdnAuth", gate.require_cloud_token, nouns.admittance.set_cdn_auth),
        ("Namespaces.SetAuthUser", gate.require_cloud_token, nouns.admittance.set_user),
        ("Namespaces.RemoveAuthUser", gate.require_cloud_token, nouns.admittance.remove_user),
        ("Tokens.CreateServiceToken", gate.require_cloud_token, nouns.tokens.create_service),
        ("Tokens.CreatePublicToken", gate.require_cloud_token, nouns.tokens.create_public),
        (
            "Tokens.CreateDevelopmentToken",
            gate.require_cloud_token,
            nouns.tokens.create_development,
        ),
        ("Tokens.ListNamespaceTokens", gate.require_cloud_token, nouns.tokens.list_of_namespace),
        ("Tokens.RevokeNamespaceToken", gate.require_cloud_token, nouns.tokens.revoke_of_namespace),
        ("Tokens.CreateGameToken", gate.require_cloud_token, nouns.tokens.create_of_game),
        ("Tokens.ListGroupTokens", gate.require_group_token, nouns.tokens.list_of_group),
        ("Tokens.RevokeGroupToken", gate.require_group_token, nouns.tokens.revoke_of_group),
        ("Tokens.InspectToken", gate.require_cloud_token, nouns.tokens.inspect),
        ("Platform.GetBootstrap", gate.allow_anonymous, nouns.platform.bootstrap),
        ("Platform.GetRegionTiers", gate.allow_anonymous, nouns.platform.tiers),
        (
            "Platform.ListDatacenters",
            gate.require_environment_or_cloud_token,
            nouns.platform.datacenters,
        ),
        ("Devices.PrepareDeviceLink", gate.allow_anonymous, nouns.devices.prepare),
        ("Devices.GetDeviceLink", gate.allow_anonymous, nouns.devices.get),
        ("Devices.CompleteDeviceLink", gate.require_cloud_token, nouns.devices.complete),
        ("Logs.ListLobbyRecords", gate.require_cloud_token, nouns.lobbies.list_),
        ("Logs.GetLobbyRecord", gate.require_cloud_token, nouns.lobbies.get),
        ("Rays.GetRayPerf", gate.require_cloud_token, nouns.rays.perf),
        *_of_files(gate, nouns),
        *_of_processes(gate, nouns),
    )
    return {
        f"{_PACKAGE}.{name}": Operation(f"{_PACKAGE}.{name}", authorize, run)
        for name, authorize, run in rows
    }


def _of_processes(gate: CallAuthenticator, nouns: Handlers) -> Iterable[Row]:
    """What runs."""
    return (
        ("Servers.CreateServer", gate.require_environment_or_cloud_token, nouns.servers.create),
        ("Servers.GetServer", gate.require_environment_or_cloud_token, nouns.servers.get),
        ("Servers.ListServers", gate.require_environment_or_cloud_token, nouns.servers.list_),
        ("Servers.DestroyServer", gate.require_environment_or_cloud_token, nouns.servers.destroy),
        (
            "Servers.GetServerLogs",
            gate.require_environment_or_cloud_token,
            nouns.process_logs.of_server,
        ),
        ("Logs.GetLobbyLogs", gate.require_cloud_token, nouns.process_logs.of_lobby),
        ("Logs.ExportLobbyLogs", gate.require_cloud_token, nouns.exports.lobby_logs),
        ("Logs.ExportLobbyHistory", gate.require_cloud_token, nouns.exports.lobby_history),
    )


def _of_files(gate: CallAuthenticator, nouns: Handlers) -> Iterable[Row]:
    """What is uploaded: builds, sites, pictures."""
    return (
        ("Builds.ListBuilds", gate.require_environment_or_cloud_token, nouns.builds.list_),
        ("Builds.PrepareBuild", gate.require_environment_or_cloud_token, nouns.builds.prepare),
        ("Builds.CompleteBuild", gate.require_environment_or_cloud_token, nouns.builds.complete),
        ("Builds.GetBuild", gate.require_environment_or_cloud_token, nouns.builds.get),
        ("Builds.PatchBuildTags", gate.require_environment_or_cloud_token, nouns.builds.patch_tags),
        ("Builds.ListGameBuilds", gate.require_cloud_token, nouns.builds.list_of_game),
        ("Builds.CreateGameBuild", gate.require_cloud_token, nouns.builds.create),
        ("Builds.DeleteGameBuild", gate.require_cloud_token, nouns.builds.delete),
        ("Uploads.CompleteUpload", gate.require_cloud_token, nouns.uploads.complete),
        ("Cdn.CreateGameCdnSite", gate.require_cloud_token, nouns.sites.create),
        ("Cdn.ListSites", gate.require_cloud_token, nouns.sites.list_),
        ("Avatars.PrepareCustomAvatarUpload", gate.require_cloud_token, nouns.avatars.prepare),
        ("Avatars.CompleteCustomAvatarUpload", gate.require_cloud_token, nouns.avatars.complete),
        ("Avatars.ListCustomAvatars", gate.require_cloud_token, nouns.avatars.list_),
        (
            "Pictures.PrepareGameBannerUpload",
            gate.require_cloud_token,
            nouns.pictures.prepare_banner,
        ),
        (
            "Pictures.CompleteGameBannerUpload",
            gate.require_cloud_token,
            nouns.pictures.complete_banner,
        ),
        ("Pictures.PrepareGameLogoUpload", gate.require_cloud_token, nouns.pictures.prepare_logo),
        ("Pictures.CompleteGameLogoUpload", gate.require_cloud_token, nouns.pictures.complete_logo),
    )
