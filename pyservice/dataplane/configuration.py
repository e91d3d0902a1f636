"""A fed namespace as the operations use it: resolved once, when it is taken, into frozen tables.

Owns the resolution of decisions 4. What is refused is in `feed_rules`, who may come in is in
`namespaces`, what a call may do is in `admission`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyservice.ids import parse_uuid
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb

MAX_PLAYERS: Final = 32
PLAYER_TOKEN_TTL_MS: Final = 120_000
_PROTOCOL: Final = "https"
_TLS_PROTOCOLS: Final = frozenset({"https", "tcp_tls"})


@dataclass(frozen=True, slots=True)
class ModePort:
    """A port that every lobby of a mode has."""

    is_tls: bool
    has_range: bool


@dataclass(frozen=True, slots=True)
class ResolvedMode:
    """A game mode with every default filled in. None: the operator's setting holds."""

    name: str
    max_players: int
    max_players_direct: int
    max_players_party: int
    regions: frozenset[str] | None
    """None: all regions."""
    is_find_enabled: bool
    is_join_enabled: bool
    is_listable: bool
    is_taggable: bool
    is_max_players_dynamic: bool
    player_token_ttl_ms: int
    heartbeat_timeout_ms: int | None
    heartbeat_grace_ms: int | None
    ports: Mapping[str, ModePort]

    def allows_region(self, region: str) -> bool:
        return self.regions is None or region in self.regions


@dataclass(frozen=True, slots=True)
class ResolvedNamespace:
    """A namespace with the modes of its current version."""

    namespace_id: bytes
    game_id: bytes
    game_name: str
    name: str
    version_id: bytes
    modes: Mapping[str, ResolvedMode]
    lobby_count_max: int
    source_limit: int
    """Players of one client address: `max_players` of mm-config."""

    @property
    def label(self) -> str:
        """How metrics and people call it."""
        return f"{self.game_name}/{self.name}"


def raw_id(text: str) -> bytes:
    """The bytes of an id that was checked before. Raises ValueError for what is none."""
    raw = parse_uuid(text)
    if raw is None:
        raise ValueError(f"not an id: {text!r}")
    return raw


def resolve(configuration: pb.NamespaceConfiguration) -> ResolvedNamespace:
    """The tables of a configuration that keeps the rules of `feed_rules`."""
    current = configuration.current_version_id
    modes: dict[str, ResolvedMode] = {}
    for version in configuration.versions:
        if version.version_id == current:
            modes = {
                name: _resolve_mode(name, mode, version.matchmaker)
                for name, mode in version.matchmaker.game_modes.items()
            }
    return ResolvedNamespace(
        namespace_id=raw_id(configuration.namespace_id),
        game_id=raw_id(configuration.game.game_id),
        game_name=configuration.game.name_id,
        name=configuration.name_id,
        version_id=raw_id(current),
        modes=MappingProxyType(modes),
        lobby_count_max=configuration.matchmaker.lobby_count_max,
        source_limit=configuration.matchmaker.max_players,
    )


def _resolve_mode(name: str, mode: pb.GameMode, above: pb.MatchmakerConfig) -> ResolvedMode:
    max_players = _limit("max_players", mode, above, MAX_PLAYERS)
    actions = mode.actions
    regions = mode.regions or above.regions
    # A mode's docker replaces the matchmaker level's as a whole (only env would be merged).
    docker = mode.docker if mode.HasField("docker") else above.docker
    return ResolvedMode(
        name=name,
        max_players=max_players,
        max_players_direct=_limit("max_players_direct", mode, above, max_players),
        max_players_party=_limit("max_players_party", mode, above, max_players),
        regions=frozenset(regions) or None,
        is_find_enabled=not actions.HasField("find") or actions.find.enabled,
        is_join_enabled=not actions.HasField("join") or actions.join.enabled,
        is_listable=mode.listable if mode.HasField("listable") else True,
        is_taggable=mode.taggable,
        is_max_players_dynamic=mode.allow_dynamic_max_players,
        player_token_ttl_ms=(
            mode.player_token_ttl if mode.HasField("player_token_ttl") else PLAYER_TOKEN_TTL_MS
        ),
        heartbeat_timeout_ms=(
            mode.heartbeat_timeout if mode.HasField("heartbeat_timeout") else None
        ),
        heartbeat_grace_ms=(
            mode.heartbeat_grace_ms if mode.HasField("heartbeat_grace_ms") else None
        ),
        ports=MappingProxyType(
            {
                port_name: ModePort(
                    is_tls=(port.protocol or _PROTOCOL) in _TLS_PROTOCOLS,
                    has_range=port.HasField("port_range"),
                )
                for port_name, port in docker.ports.items()
            }
        ),
    )


def _limit(field: str, mode: pb.GameMode, above: pb.MatchmakerConfig, default: int) -> int:
    for level in (mode, above):
        if level.HasField(field):
            value: int = getattr(level, field)
            return value
    return default
