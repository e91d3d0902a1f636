"""Table of the quotas: limits of the records and resources of a developer group.

The command `quota`, the operation `GetGroupQuotas`, the reference page and the checks are derived
from `QuotaSettings`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from pyservice.errors import ServiceError

Scope = Literal["identity", "group", "game", "namespace"]
"""A limit of scope `game` or `namespace` applies to each game or namespace of a group."""
Unit = Literal["count", "bytes", "millicores", "megabytes"]

LIMIT_MAX: Final = 1 << 53
"""Largest limit. Up to this value JSON numbers are exact."""

_UNIT_WORDS: Final[dict[Unit, str]] = {
    "count": "",
    "bytes": " bytes",
    "millicores": " millicores",
    "megabytes": " MB",
}
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


def _quota(default: int, scope: Scope, unit: Unit, meaning: str) -> Any:
    extra: dict[str, JsonValue] = {"scope": scope, "unit": unit}
    return Field(default=default, ge=0, le=LIMIT_MAX, description=meaning, json_schema_extra=extra)


class QuotaSettings(BaseModel):
    """Default limits. They are read again when the service receives SIGHUP."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int = _quota(3, "identity", "count", "groups that an identity owns")
    games: int = _quota(100, "group", "count", "games")
    cloud_tokens: int = _quota(1_000, "group", "count", "valid `cloud_` tokens, also of its games")
    namespaces: int = _quota(100, "game", "count", "namespaces")
    versions: int = _quota(1_000, "game", "count", "versions")
    version_bytes: int = _quota(512 * _MIB, "group", "bytes", "configurations of all versions")
    configuration_bytes: int = _quota(
        64 * _MIB, "group", "bytes", "configurations of all namespaces, in the data plane's memory"
    )
    builds: int = _quota(500, "game", "count", "builds, also incomplete ones")
    build_bytes: int = _quota(64 * _GIB, "group", "bytes", "announced content of builds")
    sites: int = _quota(500, "game", "count", "sites, also incomplete ones")
    site_bytes: int = _quota(16 * _GIB, "group", "bytes", "announced files of sites")
    pictures: int = _quota(1_000, "game", "count", "avatars, banners and logos")
    picture_bytes: int = _quota(512 * _MIB, "group", "bytes", "announced content of pictures")
    namespace_tokens: int = _quota(
        1_000, "namespace", "count", "valid `env_`, `pub_` and `dev_` tokens"
    )
    domains: int = _quota(100, "namespace", "count", "domains")
    lobbies: int = _quota(1_000, "group", "count", "lobbies that have not ended")
    servers: int = _quota(200, "group", "count", "dynamic servers that have not ended")
    export_bytes: int = _quota(_GIB, "group", "bytes", "exports that have not expired")
    server_cpu_millicores: int = _quota(
        64_000, "group", "millicores", "processor of dynamic servers that have not ended"
    )
    server_memory_mb: int = _quota(
        262_144, "group", "megabytes", "memory of dynamic servers that have not ended"
    )
    lobby_cpu_millicores: int = _quota(
        64_000, "group", "millicores", "processor of lobbies that the service runs, by tier"
    )
    lobby_memory_mb: int = _quota(
        262_144, "group", "megabytes", "memory of lobbies that the service runs, by tier"
    )
    log_bytes: int = _quota(
        4 * _GIB, "group", "bytes", "stored logs of lobbies and servers; the oldest are removed"
    )


LOBBY_QUOTAS: Final = ("lobbies", "lobby_cpu_millicores", "lobby_memory_mb")
"""The quotas that the data plane checks: number, processor and memory of lobbies."""


class Quota(NamedTuple):
    name: str
    scope: Scope
    unit: Unit
    default: int
    meaning: str

    def exceeded(self, limit: int, use: int) -> ServiceError:
        unit = _UNIT_WORDS[self.unit]
        return ServiceError(
            "QUOTA_EXCEEDED",
            f"The quota {self.name} allows {limit:,}{unit} for each {self.scope}, and {use:,} are "
            "in use. Delete some that you no longer need, or ask the operator for a higher limit.",
            metadata={
                "quota": self.name,
                "scope": self.scope,
                "limit": str(limit),
                "use": str(use),
            },
        )


def _declared() -> list[Quota]:
    quotas = []
    for name, field in QuotaSettings.model_fields.items():
        extra: Any = field.json_schema_extra
        meaning = field.description or ""
        quotas.append(Quota(name, extra["scope"], extra["unit"], field.default, meaning))
    return quotas


QUOTAS: Final = {quota.name: quota for quota in _declared()}
