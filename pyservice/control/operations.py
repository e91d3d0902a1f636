from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyservice.calls import Authorize, Operation, Run
from pyservice.control.audit_log import AuditLogOperations
from pyservice.control.authorization import CallAuthenticator
from pyservice.control.builds import BuildOperations
from pyservice.control.device_links import DeviceLinkOperations
from pyservice.control.game_pictures import GamePictureOperations
from pyservice.control.games import GameOperations
from pyservice.control.groups import GroupOperations
from pyservice.control.lobby_exports import LobbyExportOperations
from pyservice.control.lobby_records import LobbyRecordOperations
from pyservice.control.namespace_access import NamespaceAccessOperations
from pyservice.control.namespaces import NamespaceOperations
from pyservice.control.process_logs import ProcessLogOperations
from pyservice.control.quotas import QuotaOperations
from pyservice.control.rays import RayStore
from pyservice.control.refused_changes import RefusedChanges, is_change
from pyservice.control.servers import ServerOperations
from pyservice.control.service_info import ServiceInfoOperations
from pyservice.control.sites import SiteOperations
from pyservice.control.tokens import TokenOperations
from pyservice.control.trials import TrialOperations
from pyservice.control.uploads import UploadOperations
from pyservice.control.versions import VersionOperations

_PACKAGE: Final = "hosting.v1"


@dataclass(frozen=True, slots=True)
class Handlers:
    games: GameOperations
    groups: GroupOperations
    quotas: QuotaOperations
    audit: AuditLogOperations
    namespaces: NamespaceOperations
    namespace_access: NamespaceAccessOperations
    tokens: TokenOperations
    versions: VersionOperations
    trials: TrialOperations
    platform: ServiceInfoOperations
    devices: DeviceLinkOperations
    lobbies: LobbyRecordOperations
    rays: RayStore
    builds: BuildOperations
    uploads: UploadOperations
    sites: SiteOperations
    pictures: GamePictureOperations
    servers: ServerOperations
    process_logs: ProcessLogOperations
    exports: LobbyExportOperations


def operation_table(
    authenticator: CallAuthenticator, handlers: Handlers, refusals: RefusedChanges
) -> dict[str, Operation]:
    anonymous = authenticator.allow_anonymous
    cloud, service_or_cloud = (
        authenticator.require_cloud_token,
        authenticator.require_service_or_cloud_token,
    )
    group, identity = authenticator.require_group_token, authenticator.require_identity_token
    rows: Iterable[tuple[str, Authorize, Run]] = (
        ("Games.ValidateGame", cloud, handlers.games.validate),
        ("Games.CreateGame", group, handlers.games.create),
        ("Games.GetGames", cloud, handlers.games.list_),
        ("Games.GetGame", cloud, handlers.games.get),
        ("Games.DeleteGame", group, handlers.games.delete),
        ("Groups.CreateGroup", identity, handlers.groups.create),
        ("Groups.GetGroup", group, handlers.groups.get),
        ("Groups.GetGroupQuotas", group, handlers.quotas.get),
        ("Groups.GetGroupAudit", group, handlers.audit.get),
        ("Groups.GetGroupBilling", group, handlers.groups.billing),
        ("Versions.CreateVersion", cloud, handlers.versions.create),
        ("Versions.ValidateVersion", cloud, handlers.versions.validate),
        ("Versions.ReserveVersionName", cloud, handlers.versions.reserve_name),
        ("Versions.GetVersion", cloud, handlers.versions.get),
        ("Versions.StartTrial", cloud, handlers.trials.start),
        ("Versions.ListVersions", cloud, handlers.versions.list_),
        ("Versions.DeleteVersion", cloud, handlers.versions.delete),
        ("Namespaces.ValidateNamespace", cloud, handlers.namespaces.validate),
        ("Namespaces.CreateNamespace", cloud, handlers.namespaces.create),
        ("Namespaces.ListNamespaces", cloud, handlers.namespaces.list_),
        ("Namespaces.GetNamespace", cloud, handlers.namespaces.get),
        ("Namespaces.DeleteNamespace", cloud, handlers.namespaces.delete),
        ("Namespaces.UpdateNamespaceVersion", cloud, handlers.namespaces.set_version),
        ("Namespaces.GetVersionHistory", cloud, handlers.namespaces.history),
        ("Namespaces.UpdateMatchmakerConfig", cloud, handlers.namespaces.set_limits),
        ("Namespaces.PatchMatchmakerConfig", cloud, handlers.namespaces.change_limits),
        ("Namespaces.ValidateMatchmakerConfig", cloud, handlers.namespaces.validate_limits),
        ("Namespaces.SetDomainPublicAuth", cloud, handlers.namespace_access.set_domain_public_auth),
        ("Namespaces.AddDomain", cloud, handlers.namespace_access.add_domain),
        ("Namespaces.RemoveDomain", cloud, handlers.namespace_access.remove_domain),
        ("Namespaces.SetCdnAuth", cloud, handlers.namespace_access.set_cdn_auth),
        ("Namespaces.SetAuthUser", cloud, handlers.namespace_access.set_user),
        ("Namespaces.RemoveAuthUser", cloud, handlers.namespace_access.remove_user),
        ("Tokens.CreateServiceToken", cloud, handlers.tokens.create_service),
        ("Tokens.CreatePublicToken", cloud, handlers.tokens.create_public),
        ("Tokens.CreateDevelopmentToken", cloud, handlers.tokens.create_development),
        ("Tokens.ListNamespaceTokens", cloud, handlers.tokens.list_of_namespace),
        ("Tokens.RevokeNamespaceToken", cloud, handlers.tokens.revoke_of_namespace),
        ("Tokens.CreateGameToken", cloud, handlers.tokens.create_of_game),
        ("Tokens.ListGroupTokens", group, handlers.tokens.list_of_group),
        ("Tokens.RevokeGroupToken", group, handlers.tokens.revoke_of_group),
        ("Tokens.InspectToken", cloud, handlers.tokens.inspect),
        ("Platform.GetBootstrap", anonymous, handlers.platform.bootstrap),
        ("Platform.GetRegionTiers", anonymous, handlers.platform.tiers),
        ("Platform.ListDatacenters", service_or_cloud, handlers.platform.datacenters),
        ("Devices.PrepareDeviceLink", anonymous, handlers.devices.prepare),
        ("Devices.GetDeviceLink", anonymous, handlers.devices.get),
        ("Devices.CompleteDeviceLink", cloud, handlers.devices.complete),
        ("Logs.ListLobbyRecords", cloud, handlers.lobbies.list_),
        ("Logs.GetLobbyRecord", cloud, handlers.lobbies.get),
        ("Rays.GetRayPerf", cloud, handlers.rays.perf),
        ("Servers.CreateServer", service_or_cloud, handlers.servers.create),
        ("Servers.GetServer", service_or_cloud, handlers.servers.get),
        ("Servers.ListServers", service_or_cloud, handlers.servers.list_),
        ("Servers.DestroyServer", service_or_cloud, handlers.servers.destroy),
        ("Servers.GetServerLogs", service_or_cloud, handlers.process_logs.of_server),
        ("Logs.GetLobbyLogs", cloud, handlers.process_logs.of_lobby),
        ("Logs.ExportLobbyLogs", cloud, handlers.exports.lobby_logs),
        ("Logs.ExportLobbyHistory", cloud, handlers.exports.lobby_history),
        ("Builds.ListBuilds", service_or_cloud, handlers.builds.list_),
        ("Builds.PrepareBuild", service_or_cloud, handlers.builds.prepare),
        ("Builds.CompleteBuild", service_or_cloud, handlers.builds.complete),
        ("Builds.GetBuild", service_or_cloud, handlers.builds.get),
        ("Builds.PatchBuildTags", service_or_cloud, handlers.builds.patch_tags),
        ("Builds.ListGameBuilds", cloud, handlers.builds.list_of_game),
        ("Builds.CreateGameBuild", cloud, handlers.builds.create),
        ("Builds.DeleteGameBuild", cloud, handlers.builds.delete),
        ("Uploads.CompleteUpload", cloud, handlers.uploads.complete),
        ("Cdn.CreateGameCdnSite", cloud, handlers.sites.create),
        ("Cdn.ListSites", cloud, handlers.sites.list_),
        ("Cdn.DeleteSite", cloud, handlers.sites.delete),
        ("Avatars.PrepareCustomAvatarUpload", cloud, handlers.pictures.prepare("avatar")),
        ("Avatars.CompleteCustomAvatarUpload", cloud, handlers.pictures.complete("avatar")),
        ("Avatars.ListCustomAvatars", cloud, handlers.pictures.list_avatars),
        ("Avatars.DeleteCustomAvatar", cloud, handlers.pictures.delete_avatar),
        ("Pictures.PrepareGameBannerUpload", cloud, handlers.pictures.prepare("banner")),
        ("Pictures.CompleteGameBannerUpload", cloud, handlers.pictures.complete("banner")),
        ("Pictures.PrepareGameLogoUpload", cloud, handlers.pictures.prepare("logo")),
        ("Pictures.CompleteGameLogoUpload", cloud, handlers.pictures.complete("logo")),
        ("Pictures.DeleteGameBanner", cloud, handlers.pictures.delete_shown("banner")),
        ("Pictures.DeleteGameLogo", cloud, handlers.pictures.delete_shown("logo")),
    )
    operations = {}
    for row_name, authorize, run in rows:
        name = f"{_PACKAGE}.{row_name}"
        if is_change(name):
            authorize = refusals.authorize_and_note(name, authorize)
            run = refusals.run_and_note(run)
        operations[name] = Operation(name, authorize, run)
    return operations
