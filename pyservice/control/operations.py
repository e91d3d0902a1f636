"""Table of the control plane's operations: required token and handler of each."""

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
    """Returns every operation by full proto name."""
    cloud, group = gate.require_cloud_token, gate.require_group_token
    anonymous, environment_or_cloud = gate.allow_anonymous, gate.require_environment_or_cloud_token
    rows: Iterable[Row] = (
        ("Games.ValidateGame", cloud, nouns.games.validate),
        ("Games.CreateGame", group, nouns.games.create),
        ("Games.GetGames", cloud, nouns.games.list_),
        ("Games.GetGame", cloud, nouns.games.get),
        ("Groups.CreateGroup", gate.require_identity_token, nouns.groups.create),
        ("Groups.GetGroup", group, nouns.groups.get),
        ("Groups.GetGroupBilling", group, nouns.groups.billing),
        ("Versions.CreateVersion", cloud, nouns.versions.create),
        ("Versions.ValidateVersion", cloud, nouns.versions.validate),
        ("Versions.ReserveVersionName", cloud, nouns.versions.reserve_name),
        ("Versions.GetVersion", cloud, nouns.versions.get),
        ("Versions.ListVersions", cloud, nouns.versions.list_),
        ("Namespaces.ValidateNamespace", cloud, nouns.namespaces.validate),
        ("Namespaces.CreateNamespace", cloud, nouns.namespaces.create),
        ("Namespaces.ListNamespaces", cloud, nouns.namespaces.list_),
        ("Namespaces.GetNamespace", cloud, nouns.namespaces.get),
        ("Namespaces.UpdateNamespaceVersion", cloud, nouns.namespaces.set_version),
        ("Namespaces.GetVersionHistory", cloud, nouns.namespaces.history),
        ("Namespaces.UpdateMatchmakerConfig", cloud, nouns.namespaces.set_limits),
        ("Namespaces.ValidateMatchmakerConfig", cloud, nouns.namespaces.validate_limits),
        ("Namespaces.SetDomainPublicAuth", cloud, nouns.admittance.set_domain_public_auth),
        ("Namespaces.AddDomain", cloud, nouns.admittance.add_domain),
        ("Namespaces.RemoveDomain", cloud, nouns.admittance.remove_domain),
        ("Namespaces.SetCdnAuth", cloud, nouns.admittance.set_cdn_auth),
        ("Namespaces.SetAuthUser", cloud, nouns.admittance.set_user),
        ("Namespaces.RemoveAuthUser", cloud, nouns.admittance.remove_user),
        ("Tokens.CreateServiceToken", cloud, nouns.tokens.create_service),
        ("Tokens.CreatePublicToken", cloud, nouns.tokens.create_public),
        ("Tokens.CreateDevelopmentToken", cloud, nouns.tokens.create_development),
        ("Tokens.ListNamespaceTokens", cloud, nouns.tokens.list_of_namespace),
        ("Tokens.RevokeNamespaceToken", cloud, nouns.tokens.revoke_of_namespace),
        ("Tokens.CreateGameToken", cloud, nouns.tokens.create_of_game),
        ("Tokens.ListGroupTokens", group, nouns.tokens.list_of_group),
        ("Tokens.RevokeGroupToken", group, nouns.tokens.revoke_of_group),
        ("Tokens.InspectToken", cloud, nouns.tokens.inspect),
        ("Platform.GetBootstrap", anonymous, nouns.platform.bootstrap),
        ("Platform.GetRegionTiers", anonymous, nouns.platform.tiers),
        ("Platform.ListDatacenters", environment_or_cloud, nouns.platform.datacenters),
        ("Devices.PrepareDeviceLink", anonymous, nouns.devices.prepare),
        ("Devices.GetDeviceLink", anonymous, nouns.devices.get),
        ("Devices.CompleteDeviceLink", cloud, nouns.devices.complete),
        ("Logs.ListLobbyRecords", cloud, nouns.lobbies.list_),
        ("Logs.GetLobbyRecord", cloud, nouns.lobbies.get),
        ("Rays.GetRayPerf", cloud, nouns.rays.perf),
        *_of_files(gate, nouns),
        *_of_processes(gate, nouns),
    )
    return {
        f"{_PACKAGE}.{name}": Operation(f"{_PACKAGE}.{name}", authorize, run)
        for name, authorize, run in rows
    }


def _of_processes(gate: CallAuthenticator, nouns: Handlers) -> Iterable[Row]:
    cloud, environment_or_cloud = gate.require_cloud_token, gate.require_environment_or_cloud_token
    return (
        ("Servers.CreateServer", environment_or_cloud, nouns.servers.create),
        ("Servers.GetServer", environment_or_cloud, nouns.servers.get),
        ("Servers.ListServers", environment_or_cloud, nouns.servers.list_),
        ("Servers.DestroyServer", environment_or_cloud, nouns.servers.destroy),
        ("Servers.GetServerLogs", environment_or_cloud, nouns.process_logs.of_server),
        ("Logs.GetLobbyLogs", cloud, nouns.process_logs.of_lobby),
        ("Logs.ExportLobbyLogs", cloud, nouns.exports.lobby_logs),
        ("Logs.ExportLobbyHistory", cloud, nouns.exports.lobby_history),
    )


def _of_files(gate: CallAuthenticator, nouns: Handlers) -> Iterable[Row]:
    cloud, environment_or_cloud = gate.require_cloud_token, gate.require_environment_or_cloud_token
    return (
        ("Builds.ListBuilds", environment_or_cloud, nouns.builds.list_),
        ("Builds.PrepareBuild", environment_or_cloud, nouns.builds.prepare),
        ("Builds.CompleteBuild", environment_or_cloud, nouns.builds.complete),
        ("Builds.GetBuild", environment_or_cloud, nouns.builds.get),
        ("Builds.PatchBuildTags", environment_or_cloud, nouns.builds.patch_tags),
        ("Builds.ListGameBuilds", cloud, nouns.builds.list_of_game),
        ("Builds.CreateGameBuild", cloud, nouns.builds.create),
        ("Builds.DeleteGameBuild", cloud, nouns.builds.delete),
        ("Uploads.CompleteUpload", cloud, nouns.uploads.complete),
        ("Cdn.CreateGameCdnSite", cloud, nouns.sites.create),
        ("Cdn.ListSites", cloud, nouns.sites.list_),
        ("Avatars.PrepareCustomAvatarUpload", cloud, nouns.avatars.prepare),
        ("Avatars.CompleteCustomAvatarUpload", cloud, nouns.avatars.complete),
        ("Avatars.ListCustomAvatars", cloud, nouns.avatars.list_),
        ("Pictures.PrepareGameBannerUpload", cloud, nouns.pictures.prepare_banner),
        ("Pictures.CompleteGameBannerUpload", cloud, nouns.pictures.complete_banner),
        ("Pictures.PrepareGameLogoUpload", cloud, nouns.pictures.prepare_logo),
        ("Pictures.CompleteGameLogoUpload", cloud, nouns.pictures.complete_logo),
    )
