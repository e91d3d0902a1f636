"""Namespace configuration as immutable objects, with every default filled in.

The most specific level that sets a value applies: the mode's region, the mode, the matchmaker's
region, the matchmaker, and then the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

from pyservice.ids import parse_uuid
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.runtime.adapters import Adapter
from pyservice.settings.quotas import LOBBY_QUOTAS

CaptchaProvider = Literal["captcha_a", "captcha_b"]
CAPTCHA_PROVIDERS: Final[tuple[CaptchaProvider, ...]] = ("captcha_a", "captcha_b")


@dataclass(frozen=True, slots=True)
class CaptchaKeys:
    site_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CaptchaRule:
    """Captcha rule of a namespace. A client needs a new captcha pass after `ttl_ms`, or after
    `requests` requests.
    """

    providers: tuple[tuple[CaptchaProvider, CaptchaKeys], ...]
    ttl_ms: int
    requests: int


@dataclass(frozen=True, slots=True)
class VerificationRule:
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class JoinRules:
    captcha: CaptchaRule | None
    verification: VerificationRule | None


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Captcha and verification rules of a namespace.

    `find` and `create` contain the rules of the current version by game mode. `joins` contains the
    rules of every version, because a lobby keeps the join rules of its version.
    """

    captcha: CaptchaRule | None
    find: Mapping[str, VerificationRule]
    create: Mapping[str, VerificationRule]
    joins: Mapping[bytes, Mapping[str, JoinRules]]
    current_version: bytes

    def join(self, version: bytes, mode: str) -> JoinRules:
        """Returns the captcha and verification rules for joins to a lobby of this version and mode.

        For an unknown version, returns the rules of the current version.
        """
        for known in (version, self.current_version):
            rules = self.joins.get(known, _NO_RULES).get(mode)
            if rules is not None:
                return rules
        return JoinRules(self.captcha, None)


_NO_RULES: Final[Mapping[str, JoinRules]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ResolvedVersion:
    """Configuration of a version. All namespaces with equal content share one object.

    `content` is the only copy of large values, such as environment variables. A retained version
    has no `modes`.
    """

    content: bytes = field(repr=False)
    modes: Mapping[str, ResolvedMode]
    dev_hostname: str | None
    captcha: CaptchaRule | None
    find: Mapping[str, VerificationRule]
    create: Mapping[str, VerificationRule]
    joins: Mapping[str, JoinRules]
    max_drain_ms: Mapping[str, int]

    @property
    def has_admission_rules(self) -> bool:
        return self.captcha is not None or any(rule.verification for rule in self.joins.values())


def version_content(matchmaker: pb.MatchmakerConfig) -> bytes:
    return matchmaker.SerializeToString(deterministic=True)


def resolve_version(content: bytes, *, is_retained: bool = False) -> ResolvedVersion:
    matchmaker = pb.MatchmakerConfig.FromString(content)
    captcha = _captcha_rule(matchmaker.captcha)
    without_verification = JoinRules(captcha, None)
    find: dict[str, VerificationRule] = {}
    create: dict[str, VerificationRule] = {}
    joins: dict[str, JoinRules] = {}
    for name, mode in matchmaker.game_modes.items():
        verification = _verification_rule(mode.actions.join)
        joins[name] = JoinRules(captcha, verification) if verification else without_verification
        _put(find, name, _verification_rule(mode.actions.find))
        _put(create, name, _verification_rule(mode.actions.create))
    modes = {}
    if not is_retained:
        modes = {
            name: _resolve_mode(name, mode, matchmaker, content)
            for name, mode in matchmaker.game_modes.items()
        }
    return ResolvedVersion(
        content,
        MappingProxyType(modes),
        matchmaker.dev_hostname or None,
        captcha,
        MappingProxyType(find),
        MappingProxyType(create),
        MappingProxyType(joins),
        MappingProxyType(
            {
                name: mode.max_drain_ms
                for name, mode in matchmaker.game_modes.items()
                if mode.HasField("max_drain_ms")
            }
        ),
    )


VersionsById = Mapping[str, ResolvedVersion]


def _admission_rules(
    configuration: pb.NamespaceConfiguration, versions: VersionsById
) -> AdmissionRules | None:
    current = versions.get(configuration.current_version_id)
    is_any = any(version.has_admission_rules for version in versions.values())
    if not is_any and (current is None or not (current.find or current.create)):
        return None
    return AdmissionRules(
        current.captcha if current else None,
        current.find if current else MappingProxyType({}),
        current.create if current else MappingProxyType({}),
        MappingProxyType(
            {parse_uuid(name) or b"": version.joins for name, version in versions.items()}
        ),
        parse_uuid(configuration.current_version_id) or b"",
    )


def _put(rules: dict[str, VerificationRule], name: str, rule: VerificationRule | None) -> None:
    if rule is not None:
        rules[name] = rule


def _captcha_rule(captcha: pb.CaptchaConfig) -> CaptchaRule | None:
    providers = tuple(
        (name, CaptchaKeys(getattr(captcha, name).site_key, getattr(captcha, name).secret_key))
        for name in CAPTCHA_PROVIDERS
        if captcha.HasField(name)
    )
    if not providers:
        return None
    return CaptchaRule(providers, captcha.verification_ttl, captcha.requests_before_reverify)


def _verification_rule(action: pb.Action | pb.CreateAction) -> VerificationRule | None:
    if not action.HasField("verification"):
        return None
    verification = action.verification
    return VerificationRule(verification.url, tuple(sorted(verification.headers.items())))


MAX_PLAYERS: Final = 32
PLAYER_TOKEN_TTL_MS: Final = 120_000
MAX_DRAIN_MS: Final = 21_600_000
TIER: Final = "basic-1d8"
_PROTOCOL: Final = "https"
_PROXY: Final = "edge-guard"
_NETWORK_MODE: Final = "bridge"
_TLS_PROTOCOLS: Final = frozenset({"https", "tcp_tls"})


@dataclass(frozen=True, slots=True)
class ModePort:
    protocol: str = _PROTOCOL
    proxy: str = _PROXY
    port: int | None = None
    """Port that the process binds in a container. None: the service selects one."""
    port_range: tuple[int, int] | None = None
    """First and last public port of a port without a proxy."""
    sends_proxy_header: bool = False

    @property
    def is_tls(self) -> bool:
        return self.protocol in _TLS_PROTOCOLS

    @property
    def has_range(self) -> bool:
        return self.port_range is not None


@dataclass(frozen=True, slots=True)
class DevPort:
    """A port on a developer's machine. Without `port` and `port_range`, it is the default port of
    the protocol.
    """

    protocol: str = _PROTOCOL
    port: int | None = None
    port_range: tuple[int, int] | None = None

    @property
    def is_tls(self) -> bool:
        return self.protocol in _TLS_PROTOCOLS


@dataclass(frozen=True, slots=True)
class LobbyRuntime:
    """Program that the service starts for each lobby of a game mode.

    Without `image_id`, the service starts no program. The game mode then has only attached lobbies.
    """

    image_id: str | None = None
    network_mode: str = _NETWORK_MODE
    content: bytes = field(default=b"", repr=False, compare=False)
    """Content of the version, which `args` and `env` are read from when a lobby starts."""
    mode: str = field(default="", repr=False, compare=False)

    @property
    def args(self) -> tuple[str, ...]:
        return tuple(self._docker().args)

    @property
    def env(self) -> dict[str, str]:
        """Variables of the matchmaker and of the mode. Variables of the mode take precedence."""
        return {**_parsed(self.content).docker.env, **self._docker().env}

    def _docker(self) -> pb.DockerConfig:
        matchmaker = _parsed(self.content)
        mode = matchmaker.game_modes.get(self.mode)
        return mode.docker if mode is not None and mode.HasField("docker") else matchmaker.docker


@dataclass(frozen=True, slots=True)
class RegionSettings:
    tier: str = TIER
    idle_min: int = 0
    idle_max: int = 0


@dataclass(frozen=True, slots=True)
class ResolvedMode:
    """Settings of a game mode. If a heartbeat field is None, the operator's setting applies."""

    name: str
    max_players: int
    max_players_direct: int
    max_players_party: int
    regions: frozenset[str] | None
    is_find_enabled: bool
    is_join_enabled: bool
    create_publicities: frozenset[str]
    """Publicities that a create may request: public, private. Empty: create is disabled."""
    is_listable: bool
    is_taggable: bool
    is_max_players_dynamic: bool
    player_token_ttl_ms: int
    heartbeat_timeout_ms: int | None
    heartbeat_grace_ms: int | None
    max_drain_ms: int
    ports: Mapping[str, ModePort]
    dev_ports: Mapping[str, DevPort]
    runtime: LobbyRuntime
    default_settings: RegionSettings
    region_settings: Mapping[str, RegionSettings]
    adapter: Adapter | None = None
    """None: the lobby server calls the service."""

    @property
    def port_ranges(self) -> dict[str, bool]:
        """Whether each port is a range. Native code reads it."""
        return {name: port.has_range for name, port in self.ports.items()}

    def allows_region(self, region: str) -> bool:
        return self.regions is None or region in self.regions

    def settings_in(self, region: str) -> RegionSettings:
        return self.region_settings.get(region, self.default_settings)


@dataclass(frozen=True, slots=True)
class RetiredVersion:
    since_ms: int
    """In Unix ms."""
    max_drain_ms: Mapping[str, int]

    def drain_deadline_ms(self, mode: str) -> int:
        """Returns the deadline (Unix ms) for a game mode's lobbies after their version was
        replaced.
        """
        return self.since_ms + self.max_drain_ms.get(mode, MAX_DRAIN_MS)


@dataclass(frozen=True, slots=True)
class ResolvedNamespace:
    namespace_id: bytes
    game_id: bytes
    tenant: bytes
    """Tenant for requests to third parties: the developer group if known, else the game."""
    game_name: str
    name: str
    version_id: bytes
    modes: Mapping[str, ResolvedMode]
    lobby_count_max: int
    source_limit: int
    admission_rules: AdmissionRules | None = None
    dev_hostname: str | None = None
    retired: Mapping[bytes, RetiredVersion] = field(default_factory=dict)
    has_group: bool = False
    """Whether a developer group is known. `tenant` is then the group."""
    group_limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of lobbies that the operator set for the group, by quota."""

    @property
    def label(self) -> str:
        return f"{self.game_name}/{self.name}"

    @property
    def group(self) -> bytes | None:
        return self.tenant if self.has_group else None


def raw_id(text: str) -> bytes:
    raw = parse_uuid(text)
    if raw is None:
        raise ValueError(f"not an id: {text!r}")
    return raw


def resolve_namespace(
    configuration: pb.NamespaceConfiguration, versions: VersionsById
) -> ResolvedNamespace:
    """Returns the configuration with defaults. `configuration` needs no content of versions."""
    current = configuration.current_version_id
    running = versions.get(current)
    return ResolvedNamespace(
        namespace_id=raw_id(configuration.namespace_id),
        game_id=raw_id(configuration.game.game_id),
        tenant=raw_id(configuration.game.developer_group_id or configuration.game.game_id),
        game_name=configuration.game.name_id,
        name=configuration.name_id,
        version_id=raw_id(current),
        modes=running.modes if running else MappingProxyType({}),
        lobby_count_max=configuration.matchmaker.lobby_count_max,
        source_limit=configuration.matchmaker.max_players,
        admission_rules=_admission_rules(configuration, versions),
        dev_hostname=running.dev_hostname if running else None,
        retired=MappingProxyType(
            {
                raw_id(version.version_id): RetiredVersion(
                    version.retired_ts_ms, versions[version.version_id].max_drain_ms
                )
                for version in configuration.retained_versions
            }
        ),
        has_group=configuration.game.HasField("developer_group_id"),
        group_limits=_group_limits(configuration.matchmaker),
    )


def _group_limits(limits: pb.MatchmakerLimits) -> Mapping[str, int]:
    fields = {name: f"group_{name}_max" for name in LOBBY_QUOTAS}
    own = {name: getattr(limits, field) for name, field in fields.items() if limits.HasField(field)}
    return MappingProxyType(own)


def _resolve_mode(
    name: str, mode: pb.GameMode, matchmaker: pb.MatchmakerConfig, content: bytes
) -> ResolvedMode:
    max_players = _limit("max_players", mode, matchmaker, MAX_PLAYERS)
    actions = mode.actions
    regions = frozenset(mode.regions or matchmaker.regions) or None
    docker = mode.docker if mode.HasField("docker") else matchmaker.docker
    return ResolvedMode(
        name=name,
        max_players=max_players,
        max_players_direct=_limit("max_players_direct", mode, matchmaker, max_players),
        max_players_party=_limit("max_players_party", mode, matchmaker, max_players),
        regions=regions,
        is_find_enabled=not actions.HasField("find") or actions.find.enabled,
        is_join_enabled=not actions.HasField("join") or actions.join.enabled,
        create_publicities=_publicities(actions),
        is_listable=_own_field(mode, "listable", True),
        is_taggable=mode.taggable,
        is_max_players_dynamic=mode.allow_dynamic_max_players,
        player_token_ttl_ms=_own_field(mode, "player_token_ttl", PLAYER_TOKEN_TTL_MS),
        heartbeat_timeout_ms=_own_field(mode, "heartbeat_timeout", None),
        heartbeat_grace_ms=_own_field(mode, "heartbeat_grace_ms", None),
        max_drain_ms=_own_field(mode, "max_drain_ms", MAX_DRAIN_MS),
        ports=MappingProxyType({name: _port(port) for name, port in docker.ports.items()}),
        dev_ports=MappingProxyType({name: _dev_port(port) for name, port in docker.ports.items()}),
        runtime=_runtime(docker, name, content),
        adapter=Adapter.of(mode.adapter, docker.ports) if mode.HasField("adapter") else None,
        default_settings=_region_settings([mode, matchmaker]),
        region_settings=MappingProxyType(
            {
                region: _region_settings_in(region, mode, matchmaker)
                for region in sorted(regions or ())
            }
        ),
    )


def _publicities(actions: pb.Actions) -> frozenset[str]:
    if not actions.HasField("create") or not actions.create.enabled:
        return frozenset()
    enabled = {
        "public": _own_field(actions.create, "enable_public", False),
        "private": _own_field(actions.create, "enable_private", True),
    }
    return frozenset(publicity for publicity, is_enabled in enabled.items() if is_enabled)


def _own_field(message: Any, name: str, default: Any) -> Any:
    return getattr(message, name) if message.HasField(name) else default


def _limit(field: str, mode: pb.GameMode, matchmaker: pb.MatchmakerConfig, default: int) -> int:
    for level in (mode, matchmaker):
        if level.HasField(field):
            value: int = getattr(level, field)
            return value
    return default


def _port(port: pb.PortConfig) -> ModePort:
    return ModePort(
        protocol=_own_field(port, "protocol", _PROTOCOL),
        proxy=_own_field(port, "proxy", _PROXY),
        port=_own_field(port, "port", None),
        port_range=_port_range(port, "port_range"),
        sends_proxy_header=port.proxy_protocol == "v2",
    )


def _dev_port(port: pb.PortConfig) -> DevPort:
    protocol = _own_field(port, "dev_protocol", None) or _own_field(port, "protocol", _PROTOCOL)
    if port.HasField("dev_port"):
        return DevPort(protocol, port.dev_port)
    span = _port_range(port, "dev_port_range") or _port_range(port, "port_range")
    return DevPort(protocol, None if span else _own_field(port, "port", None), span)


def _port_range(port: pb.PortConfig, name: str) -> tuple[int, int] | None:
    ends = getattr(port, name)
    return (ends.min, ends.max) if port.HasField(name) else None


def _runtime(docker: pb.DockerConfig, mode: str, content: bytes) -> LobbyRuntime:
    return LobbyRuntime(
        image_id=_own_field(docker, "image_id", None),
        network_mode=_own_field(docker, "network_mode", _NETWORK_MODE),
        content=content,
        mode=mode,
    )


@lru_cache(maxsize=1)
def _parsed(content: bytes) -> pb.MatchmakerConfig:
    return pb.MatchmakerConfig.FromString(content)


def _region_settings_in(
    region: str, mode: pb.GameMode, matchmaker: pb.MatchmakerConfig
) -> RegionSettings:
    levels: list[Any] = []
    for level in (mode, matchmaker):
        if region in level.regions:
            levels.append(level.regions[region])
        levels.append(level)
    return _region_settings(levels)


def _region_settings(levels: list[Any]) -> RegionSettings:
    tier = next((level.tier for level in levels if level.HasField("tier")), TIER)
    idle = next((level.idle_lobbies for level in levels if level.HasField("idle_lobbies")), None)
    return RegionSettings(tier, idle.min, idle.max) if idle is not None else RegionSettings(tier)
