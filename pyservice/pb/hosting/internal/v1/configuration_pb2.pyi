from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NamespaceConfiguration(_message.Message):
    __slots__ = ("namespace_id", "source_epoch", "revision", "game", "name_id", "display_name", "current_version_id", "versions", "matchmaker", "access", "revoked_token_ids", "environment_tokens", "development_tokens", "retained_versions")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    GAME_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CURRENT_VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MATCHMAKER_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    REVOKED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVELOPMENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    source_epoch: int
    revision: int
    game: GameIdentity
    name_id: str
    display_name: str
    current_version_id: str
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    matchmaker: MatchmakerLimits
    access: Access
    revoked_token_ids: _containers.RepeatedScalarFieldContainer[str]
    environment_tokens: _containers.RepeatedCompositeFieldContainer[EnvironmentToken]
    development_tokens: _containers.RepeatedCompositeFieldContainer[DevelopmentToken]
    retained_versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, namespace_id: _Optional[str] = ..., source_epoch: _Optional[int] = ..., revision: _Optional[int] = ..., game: _Optional[_Union[GameIdentity, _Mapping]] = ..., name_id: _Optional[str] = ..., display_name: _Optional[str] = ..., current_version_id: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ..., matchmaker: _Optional[_Union[MatchmakerLimits, _Mapping]] = ..., access: _Optional[_Union[Access, _Mapping]] = ..., revoked_token_ids: _Optional[_Iterable[str]] = ..., environment_tokens: _Optional[_Iterable[_Union[EnvironmentToken, _Mapping]]] = ..., development_tokens: _Optional[_Iterable[_Union[DevelopmentToken, _Mapping]]] = ..., retained_versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class GameIdentity(_message.Message):
    __slots__ = ("game_id", "name_id", "display_name", "developer_group_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVELOPER_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    name_id: str
    display_name: str
    developer_group_id: str
    def __init__(self, game_id: _Optional[str] = ..., name_id: _Optional[str] = ..., display_name: _Optional[str] = ..., developer_group_id: _Optional[str] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("version_id", "display_name", "matchmaker", "retired_ts_ms")
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    MATCHMAKER_FIELD_NUMBER: _ClassVar[int]
    RETIRED_TS_MS_FIELD_NUMBER: _ClassVar[int]
    version_id: str
    display_name: str
    matchmaker: MatchmakerConfig
    retired_ts_ms: int
    def __init__(self, version_id: _Optional[str] = ..., display_name: _Optional[str] = ..., matchmaker: _Optional[_Union[MatchmakerConfig, _Mapping]] = ..., retired_ts_ms: _Optional[int] = ...) -> None: ...

class MatchmakerConfig(_message.Message):
    __slots__ = ("captcha", "docker", "game_modes", "idle_lobbies", "max_players", "max_players_direct", "max_players_party", "regions", "tier", "dev_hostname")
    class GameModesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GameMode
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GameMode, _Mapping]] = ...) -> None: ...
    class RegionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: RegionConfig
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[RegionConfig, _Mapping]] = ...) -> None: ...
    CAPTCHA_FIELD_NUMBER: _ClassVar[int]
    DOCKER_FIELD_NUMBER: _ClassVar[int]
    GAME_MODES_FIELD_NUMBER: _ClassVar[int]
    IDLE_LOBBIES_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_DIRECT_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PARTY_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEV_HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    captcha: CaptchaConfig
    docker: DockerConfig
    game_modes: _containers.MessageMap[str, GameMode]
    idle_lobbies: IdleLobbies
    max_players: int
    max_players_direct: int
    max_players_party: int
    regions: _containers.MessageMap[str, RegionConfig]
    tier: str
    dev_hostname: str
    def __init__(self, captcha: _Optional[_Union[CaptchaConfig, _Mapping]] = ..., docker: _Optional[_Union[DockerConfig, _Mapping]] = ..., game_modes: _Optional[_Mapping[str, GameMode]] = ..., idle_lobbies: _Optional[_Union[IdleLobbies, _Mapping]] = ..., max_players: _Optional[int] = ..., max_players_direct: _Optional[int] = ..., max_players_party: _Optional[int] = ..., regions: _Optional[_Mapping[str, RegionConfig]] = ..., tier: _Optional[str] = ..., dev_hostname: _Optional[str] = ...) -> None: ...

class GameMode(_message.Message):
    __slots__ = ("actions", "allow_dynamic_max_players", "docker", "idle_lobbies", "listable", "max_players", "max_players_direct", "max_players_party", "regions", "taggable", "tier", "player_token_ttl", "heartbeat_timeout", "heartbeat_grace_ms", "max_drain_ms", "adapter")
    class RegionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: RegionConfig
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[RegionConfig, _Mapping]] = ...) -> None: ...
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_DYNAMIC_MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    DOCKER_FIELD_NUMBER: _ClassVar[int]
    IDLE_LOBBIES_FIELD_NUMBER: _ClassVar[int]
    LISTABLE_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_DIRECT_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PARTY_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    TAGGABLE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PLAYER_TOKEN_TTL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAIN_MS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    actions: Actions
    allow_dynamic_max_players: bool
    docker: DockerConfig
    idle_lobbies: IdleLobbies
    listable: bool
    max_players: int
    max_players_direct: int
    max_players_party: int
    regions: _containers.MessageMap[str, RegionConfig]
    taggable: bool
    tier: str
    player_token_ttl: int
    heartbeat_timeout: int
    heartbeat_grace_ms: int
    max_drain_ms: int
    adapter: AdapterConfig
    def __init__(self, actions: _Optional[_Union[Actions, _Mapping]] = ..., allow_dynamic_max_players: _Optional[bool] = ..., docker: _Optional[_Union[DockerConfig, _Mapping]] = ..., idle_lobbies: _Optional[_Union[IdleLobbies, _Mapping]] = ..., listable: _Optional[bool] = ..., max_players: _Optional[int] = ..., max_players_direct: _Optional[int] = ..., max_players_party: _Optional[int] = ..., regions: _Optional[_Mapping[str, RegionConfig]] = ..., taggable: _Optional[bool] = ..., tier: _Optional[str] = ..., player_token_ttl: _Optional[int] = ..., heartbeat_timeout: _Optional[int] = ..., heartbeat_grace_ms: _Optional[int] = ..., max_drain_ms: _Optional[int] = ..., adapter: _Optional[_Union[AdapterConfig, _Mapping]] = ...) -> None: ...

class AdapterConfig(_message.Message):
    __slots__ = ("ready", "port", "log_match", "query", "query_port", "query_path", "players", "unknown_players")
    READY_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LOG_MATCH_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    QUERY_PORT_FIELD_NUMBER: _ClassVar[int]
    QUERY_PATH_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    ready: str
    port: str
    log_match: str
    query: str
    query_port: str
    query_path: str
    players: str
    unknown_players: str
    def __init__(self, ready: _Optional[str] = ..., port: _Optional[str] = ..., log_match: _Optional[str] = ..., query: _Optional[str] = ..., query_port: _Optional[str] = ..., query_path: _Optional[str] = ..., players: _Optional[str] = ..., unknown_players: _Optional[str] = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("create", "find", "join")
    CREATE_FIELD_NUMBER: _ClassVar[int]
    FIND_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    create: CreateAction
    find: Action
    join: Action
    def __init__(self, create: _Optional[_Union[CreateAction, _Mapping]] = ..., find: _Optional[_Union[Action, _Mapping]] = ..., join: _Optional[_Union[Action, _Mapping]] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("enabled", "verification")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    verification: Verification
    def __init__(self, enabled: _Optional[bool] = ..., verification: _Optional[_Union[Verification, _Mapping]] = ...) -> None: ...

class CreateAction(_message.Message):
    __slots__ = ("enabled", "enable_private", "enable_public", "verification")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PRIVATE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PUBLIC_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    enable_private: bool
    enable_public: bool
    verification: Verification
    def __init__(self, enabled: _Optional[bool] = ..., enable_private: _Optional[bool] = ..., enable_public: _Optional[bool] = ..., verification: _Optional[_Union[Verification, _Mapping]] = ...) -> None: ...

class Verification(_message.Message):
    __slots__ = ("url", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    URL_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    url: str
    headers: _containers.ScalarMap[str, str]
    def __init__(self, url: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CaptchaConfig(_message.Message):
    __slots__ = ("captcha_a", "captcha_b", "requests_before_reverify", "verification_ttl")
    CAPTCHA_A_FIELD_NUMBER: _ClassVar[int]
    CAPTCHA_B_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_BEFORE_REVERIFY_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_TTL_FIELD_NUMBER: _ClassVar[int]
    captcha_a: CaptchaProvider
    captcha_b: CaptchaProvider
    requests_before_reverify: int
    verification_ttl: int
    def __init__(self, captcha_a: _Optional[_Union[CaptchaProvider, _Mapping]] = ..., captcha_b: _Optional[_Union[CaptchaProvider, _Mapping]] = ..., requests_before_reverify: _Optional[int] = ..., verification_ttl: _Optional[int] = ...) -> None: ...

class CaptchaProvider(_message.Message):
    __slots__ = ("secret_key", "site_key")
    SECRET_KEY_FIELD_NUMBER: _ClassVar[int]
    SITE_KEY_FIELD_NUMBER: _ClassVar[int]
    secret_key: str
    site_key: str
    def __init__(self, secret_key: _Optional[str] = ..., site_key: _Optional[str] = ...) -> None: ...

class DockerConfig(_message.Message):
    __slots__ = ("args", "env", "image_id", "network_mode", "ports")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PortConfig
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PortConfig, _Mapping]] = ...) -> None: ...
    ARGS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ID_FIELD_NUMBER: _ClassVar[int]
    NETWORK_MODE_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    args: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    image_id: str
    network_mode: str
    ports: _containers.MessageMap[str, PortConfig]
    def __init__(self, args: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., image_id: _Optional[str] = ..., network_mode: _Optional[str] = ..., ports: _Optional[_Mapping[str, PortConfig]] = ...) -> None: ...

class PortConfig(_message.Message):
    __slots__ = ("port", "port_range", "protocol", "proxy", "dev_port", "dev_port_range", "dev_protocol", "proxy_protocol")
    PORT_FIELD_NUMBER: _ClassVar[int]
    PORT_RANGE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    DEV_PORT_FIELD_NUMBER: _ClassVar[int]
    DEV_PORT_RANGE_FIELD_NUMBER: _ClassVar[int]
    DEV_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROXY_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    port: int
    port_range: PortConfigRange
    protocol: str
    proxy: str
    dev_port: int
    dev_port_range: PortConfigRange
    dev_protocol: str
    proxy_protocol: str
    def __init__(self, port: _Optional[int] = ..., port_range: _Optional[_Union[PortConfigRange, _Mapping]] = ..., protocol: _Optional[str] = ..., proxy: _Optional[str] = ..., dev_port: _Optional[int] = ..., dev_port_range: _Optional[_Union[PortConfigRange, _Mapping]] = ..., dev_protocol: _Optional[str] = ..., proxy_protocol: _Optional[str] = ...) -> None: ...

class PortConfigRange(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class IdleLobbies(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class RegionConfig(_message.Message):
    __slots__ = ("idle_lobbies", "tier")
    IDLE_LOBBIES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    idle_lobbies: IdleLobbies
    tier: str
    def __init__(self, idle_lobbies: _Optional[_Union[IdleLobbies, _Mapping]] = ..., tier: _Optional[str] = ...) -> None: ...

class MatchmakerLimits(_message.Message):
    __slots__ = ("group_lobbies_max", "group_configuration_bytes_max", "group_lobby_cpu_millicores_max", "group_lobby_memory_mb_max", "lobby_count_max", "max_players")
    GROUP_LOBBIES_MAX_FIELD_NUMBER: _ClassVar[int]
    GROUP_CONFIGURATION_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    GROUP_LOBBY_CPU_MILLICORES_MAX_FIELD_NUMBER: _ClassVar[int]
    GROUP_LOBBY_MEMORY_MB_MAX_FIELD_NUMBER: _ClassVar[int]
    LOBBY_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    group_lobbies_max: int
    group_configuration_bytes_max: int
    group_lobby_cpu_millicores_max: int
    group_lobby_memory_mb_max: int
    lobby_count_max: int
    max_players: int
    def __init__(self, group_lobbies_max: _Optional[int] = ..., group_configuration_bytes_max: _Optional[int] = ..., group_lobby_cpu_millicores_max: _Optional[int] = ..., group_lobby_memory_mb_max: _Optional[int] = ..., lobby_count_max: _Optional[int] = ..., max_players: _Optional[int] = ...) -> None: ...

class Access(_message.Message):
    __slots__ = ("enable_domain_public_auth", "domains", "cdn_domains")
    ENABLE_DOMAIN_PUBLIC_AUTH_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    CDN_DOMAINS_FIELD_NUMBER: _ClassVar[int]
    enable_domain_public_auth: bool
    domains: _containers.RepeatedScalarFieldContainer[str]
    cdn_domains: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, enable_domain_public_auth: _Optional[bool] = ..., domains: _Optional[_Iterable[str]] = ..., cdn_domains: _Optional[_Iterable[str]] = ...) -> None: ...

class EnvironmentToken(_message.Message):
    __slots__ = ("token_id", "sha256", "expires_ms")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    sha256: bytes
    expires_ms: int
    def __init__(self, token_id: _Optional[str] = ..., sha256: _Optional[bytes] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class DevelopmentToken(_message.Message):
    __slots__ = ("token_id", "expires_ms", "hostname", "ports")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DevelopmentPort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DevelopmentPort, _Mapping]] = ...) -> None: ...
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    expires_ms: int
    hostname: str
    ports: _containers.MessageMap[str, DevelopmentPort]
    def __init__(self, token_id: _Optional[str] = ..., expires_ms: _Optional[int] = ..., hostname: _Optional[str] = ..., ports: _Optional[_Mapping[str, DevelopmentPort]] = ...) -> None: ...

class DevelopmentPort(_message.Message):
    __slots__ = ("port", "port_range", "protocol")
    PORT_FIELD_NUMBER: _ClassVar[int]
    PORT_RANGE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    port: int
    port_range: PortConfigRange
    protocol: str
    def __init__(self, port: _Optional[int] = ..., port_range: _Optional[_Union[PortConfigRange, _Mapping]] = ..., protocol: _Optional[str] = ...) -> None: ...
