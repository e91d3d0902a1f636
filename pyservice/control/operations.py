"""The table of the control plane's operations: who may call which, and what it does (decisions 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyservice.calls import Authorize, Operation, Run
from pyservice.control.access import Gate
from pyservice.control.admittance import Admittance
from pyservice.control.games import Games
from pyservice.control.groups import Groups
from pyservice.control.namespaces import Namespaces
from pyservice.control.tokens import Tokens
from pyservice.control.versions import Versions

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


def operations(gate: Gate, nouns: Nouns) -> dict[str, Operation]:
    """Every operation by full proto name."""
    rows: Iterable[tuple[str, Authorize, Run]] = (
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
    )
    return {
        f"{_PACKAGE}.{name}": Operation(f"{_PACKAGE}.{name}", authorize, run)
        for name, authorize, run in rows
    }
