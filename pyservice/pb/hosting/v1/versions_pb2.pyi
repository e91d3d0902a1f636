from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import envelope_pb2 as _envelope_pb2
from pyservice.pb.hosting.v1 import games_pb2 as _games_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateVersionRequest(_message.Message):
    __slots__ = ("game_id", "display_name", "config")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    display_name: str
    config: CloudConfig
    def __init__(self, game_id: _Optional[str] = ..., display_name: _Optional[str] = ..., config: _Optional[_Union[CloudConfig, _Mapping]] = ...) -> None: ...

class CreateVersionResponse(_message.Message):
    __slots__ = ("version_id",)
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    version_id: str
    def __init__(self, version_id: _Optional[str] = ...) -> None: ...

class ValidateVersionRequest(_message.Message):
    __slots__ = ("game_id", "display_name", "config")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    display_name: str
    config: CloudConfig
    def __init__(self, game_id: _Optional[str] = ..., display_name: _Optional[str] = ..., config: _Optional[_Union[CloudConfig, _Mapping]] = ...) -> None: ...

class ValidateVersionResponse(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[_envelope_pb2.FieldProblem]
    def __init__(self, errors: _Optional[_Iterable[_Union[_envelope_pb2.FieldProblem, _Mapping]]] = ...) -> None: ...

class ReserveVersionNameRequest(_message.Message):
    __slots__ = ("game_id",)
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    def __init__(self, game_id: _Optional[str] = ...) -> None: ...

class ReserveVersionNameResponse(_message.Message):
    __slots__ = ("version_display_name",)
    VERSION_DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    version_display_name: str
    def __init__(self, version_display_name: _Optional[str] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ("game_id", "version_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    version_id: str
    def __init__(self, game_id: _Optional[str] = ..., version_id: _Optional[str] = ...) -> None: ...

class GetVersionResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: GameVersion
    def __init__(self, version: _Optional[_Union[GameVersion, _Mapping]] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("game_id", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions", "cursor")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[_games_pb2.VersionSummary]
    cursor: str
    def __init__(self, versions: _Optional[_Iterable[_Union[_games_pb2.VersionSummary, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class GameVersion(_message.Message):
    __slots__ = ("config", "create_ts", "display_name", "version_id")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    config: CloudConfig
    create_ts: str
    display_name: str
    version_id: str
    def __init__(self, config: _Optional[_Union[CloudConfig, _Mapping]] = ..., create_ts: _Optional[str] = ..., display_name: _Optional[str] = ..., version_id: _Optional[str] = ...) -> None: ...

class CloudConfig(_message.Message):
    __slots__ = ("cdn", "engine", "kv", "matchmaker", "scripts")
    CDN_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    MATCHMAKER_FIELD_NUMBER: _ClassVar[int]
    SCRIPTS_FIELD_NUMBER: _ClassVar[int]
    cdn: VersionCdn
    engine: VersionEngine
    kv: bytes
    matchmaker: VersionMatchmaker
    scripts: VersionTexts
    def __init__(self, cdn: _Optional[_Union[VersionCdn, _Mapping]] = ..., engine: _Optional[_Union[VersionEngine, _Mapping]] = ..., kv: _Optional[bytes] = ..., matchmaker: _Optional[_Union[VersionMatchmaker, _Mapping]] = ..., scripts: _Optional[_Union[VersionTexts, _Mapping]] = ...) -> None: ...

class VersionTexts(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.ScalarMap[str, str]
    def __init__(self, entries: _Optional[_Mapping[str, str]] = ...) -> None: ...

class VersionTextList(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entries: _Optional[_Iterable[str]] = ...) -> None: ...

class VersionCdn(_message.Message):
    __slots__ = ("build_command", "build_env", "build_output", "routes", "site_id")
    BUILD_COMMAND_FIELD_NUMBER: _ClassVar[int]
    BUILD_ENV_FIELD_NUMBER: _ClassVar[int]
    BUILD_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    build_command: str
    build_env: VersionTexts
    build_output: str
    routes: VersionRoutes
    site_id: str
    def __init__(self, build_command: _Optional[str] = ..., build_env: _Optional[_Union[VersionTexts, _Mapping]] = ..., build_output: _Optional[str] = ..., routes: _Optional[_Union[VersionRoutes, _Mapping]] = ..., site_id: _Optional[str] = ...) -> None: ...

class VersionRoutes(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[VersionRoute]
    def __init__(self, entries: _Optional[_Iterable[_Union[VersionRoute, _Mapping]]] = ...) -> None: ...

class VersionRoute(_message.Message):
    __slots__ = ("glob", "middlewares", "priority")
    GLOB_FIELD_NUMBER: _ClassVar[int]
    MIDDLEWARES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    glob: str
    middlewares: VersionMiddlewares
    priority: int
    def __init__(self, glob: _Optional[str] = ..., middlewares: _Optional[_Union[VersionMiddlewares, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...

class VersionMiddlewares(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[VersionMiddleware]
    def __init__(self, entries: _Optional[_Iterable[_Union[VersionMiddleware, _Mapping]]] = ...) -> None: ...

class VersionMiddleware(_message.Message):
    __slots__ = ("kind",)
    KIND_FIELD_NUMBER: _ClassVar[int]
    kind: VersionMiddlewareKind
    def __init__(self, kind: _Optional[_Union[VersionMiddlewareKind, _Mapping]] = ...) -> None: ...

class VersionMiddlewareKind(_message.Message):
    __slots__ = ("custom_headers",)
    CUSTOM_HEADERS_FIELD_NUMBER: _ClassVar[int]
    custom_headers: VersionCustomHeaders
    def __init__(self, custom_headers: _Optional[_Union[VersionCustomHeaders, _Mapping]] = ...) -> None: ...

class VersionCustomHeaders(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: VersionHeaders
    def __init__(self, headers: _Optional[_Union[VersionHeaders, _Mapping]] = ...) -> None: ...

class VersionHeaders(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[VersionHeader]
    def __init__(self, entries: _Optional[_Iterable[_Union[VersionHeader, _Mapping]]] = ...) -> None: ...

class VersionHeader(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class VersionEngine(_message.Message):
    __slots__ = ("custom", "godot", "html5", "unity", "unreal")
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    GODOT_FIELD_NUMBER: _ClassVar[int]
    HTML5_FIELD_NUMBER: _ClassVar[int]
    UNITY_FIELD_NUMBER: _ClassVar[int]
    UNREAL_FIELD_NUMBER: _ClassVar[int]
    custom: bytes
    godot: bytes
    html5: bytes
    unity: bytes
    unreal: VersionUnreal
    def __init__(self, custom: _Optional[bytes] = ..., godot: _Optional[bytes] = ..., html5: _Optional[bytes] = ..., unity: _Optional[bytes] = ..., unreal: _Optional[_Union[VersionUnreal, _Mapping]] = ...) -> None: ...

class VersionUnreal(_message.Message):
    __slots__ = ("game_module",)
    GAME_MODULE_FIELD_NUMBER: _ClassVar[int]
    game_module: str
    def __init__(self, game_module: _Optional[str] = ...) -> None: ...

class VersionMatchmaker(_message.Message):
    __slots__ = ("captcha", "dev_hostname", "docker", "game_modes", "idle_lobbies", "max_players", "max_players_direct", "max_players_party", "regions", "tier")
    CAPTCHA_FIELD_NUMBER: _ClassVar[int]
    DEV_HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    DOCKER_FIELD_NUMBER: _ClassVar[int]
    GAME_MODES_FIELD_NUMBER: _ClassVar[int]
    IDLE_LOBBIES_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_DIRECT_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PARTY_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    captcha: VersionCaptcha
    dev_hostname: str
    docker: VersionDocker
    game_modes: VersionGameModes
    idle_lobbies: VersionIdleLobbies
    max_players: int
    max_players_direct: int
    max_players_party: int
    regions: VersionRegions
    tier: str
    def __init__(self, captcha: _Optional[_Union[VersionCaptcha, _Mapping]] = ..., dev_hostname: _Optional[str] = ..., docker: _Optional[_Union[VersionDocker, _Mapping]] = ..., game_modes: _Optional[_Union[VersionGameModes, _Mapping]] = ..., idle_lobbies: _Optional[_Union[VersionIdleLobbies, _Mapping]] = ..., max_players: _Optional[int] = ..., max_players_direct: _Optional[int] = ..., max_players_party: _Optional[int] = ..., regions: _Optional[_Union[VersionRegions, _Mapping]] = ..., tier: _Optional[str] = ...) -> None: ...

class VersionCaptcha(_message.Message):
    __slots__ = ("captcha_a", "captcha_b", "requests_before_reverify", "verification_ttl")
    CAPTCHA_A_FIELD_NUMBER: _ClassVar[int]
    CAPTCHA_B_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_BEFORE_REVERIFY_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_TTL_FIELD_NUMBER: _ClassVar[int]
    captcha_a: VersionCaptchaProvider
    captcha_b: VersionCaptchaProvider
    requests_before_reverify: int
    verification_ttl: int
    def __init__(self, captcha_a: _Optional[_Union[VersionCaptchaProvider, _Mapping]] = ..., captcha_b: _Optional[_Union[VersionCaptchaProvider, _Mapping]] = ..., requests_before_reverify: _Optional[int] = ..., verification_ttl: _Optional[int] = ...) -> None: ...

class VersionCaptchaProvider(_message.Message):
    __slots__ = ("secret_key", "site_key")
    SECRET_KEY_FIELD_NUMBER: _ClassVar[int]
    SITE_KEY_FIELD_NUMBER: _ClassVar[int]
    secret_key: str
    site_key: str
    def __init__(self, secret_key: _Optional[str] = ..., site_key: _Optional[str] = ...) -> None: ...

class VersionGameModes(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: VersionGameMode
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[VersionGameMode, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.MessageMap[str, VersionGameMode]
    def __init__(self, entries: _Optional[_Mapping[str, VersionGameMode]] = ...) -> None: ...

class VersionGameMode(_message.Message):
    __slots__ = ("actions", "allow_dynamic_max_players", "docker", "idle_lobbies", "listable", "max_players", "max_players_direct", "max_players_party", "regions", "taggable", "tier", "player_token_ttl", "heartbeat_timeout", "heartbeat_grace_ms", "max_drain_ms", "adapter")
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
    actions: VersionActions
    allow_dynamic_max_players: bool
    docker: VersionDocker
    idle_lobbies: VersionIdleLobbies
    listable: bool
    max_players: int
    max_players_direct: int
    max_players_party: int
    regions: VersionRegions
    taggable: bool
    tier: str
    player_token_ttl: int
    heartbeat_timeout: int
    heartbeat_grace_ms: int
    max_drain_ms: int
    adapter: VersionAdapter
    def __init__(self, actions: _Optional[_Union[VersionActions, _Mapping]] = ..., allow_dynamic_max_players: _Optional[bool] = ..., docker: _Optional[_Union[VersionDocker, _Mapping]] = ..., idle_lobbies: _Optional[_Union[VersionIdleLobbies, _Mapping]] = ..., listable: _Optional[bool] = ..., max_players: _Optional[int] = ..., max_players_direct: _Optional[int] = ..., max_players_party: _Optional[int] = ..., regions: _Optional[_Union[VersionRegions, _Mapping]] = ..., taggable: _Optional[bool] = ..., tier: _Optional[str] = ..., player_token_ttl: _Optional[int] = ..., heartbeat_timeout: _Optional[int] = ..., heartbeat_grace_ms: _Optional[int] = ..., max_drain_ms: _Optional[int] = ..., adapter: _Optional[_Union[VersionAdapter, _Mapping]] = ...) -> None: ...

class VersionAdapter(_message.Message):
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

class VersionActions(_message.Message):
    __slots__ = ("create", "find", "join")
    CREATE_FIELD_NUMBER: _ClassVar[int]
    FIND_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    create: VersionCreateAction
    find: VersionAction
    join: VersionAction
    def __init__(self, create: _Optional[_Union[VersionCreateAction, _Mapping]] = ..., find: _Optional[_Union[VersionAction, _Mapping]] = ..., join: _Optional[_Union[VersionAction, _Mapping]] = ...) -> None: ...

class VersionAction(_message.Message):
    __slots__ = ("enabled", "verification")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    verification: VersionVerification
    def __init__(self, enabled: _Optional[bool] = ..., verification: _Optional[_Union[VersionVerification, _Mapping]] = ...) -> None: ...

class VersionCreateAction(_message.Message):
    __slots__ = ("enabled", "enable_private", "enable_public", "verification")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PRIVATE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PUBLIC_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    enable_private: bool
    enable_public: bool
    verification: VersionVerification
    def __init__(self, enabled: _Optional[bool] = ..., enable_private: _Optional[bool] = ..., enable_public: _Optional[bool] = ..., verification: _Optional[_Union[VersionVerification, _Mapping]] = ...) -> None: ...

class VersionVerification(_message.Message):
    __slots__ = ("url", "headers")
    URL_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    url: str
    headers: VersionTexts
    def __init__(self, url: _Optional[str] = ..., headers: _Optional[_Union[VersionTexts, _Mapping]] = ...) -> None: ...

class VersionDocker(_message.Message):
    __slots__ = ("args", "build_args", "dockerfile", "env", "image", "image_id", "network_mode", "ports")
    ARGS_FIELD_NUMBER: _ClassVar[int]
    BUILD_ARGS_FIELD_NUMBER: _ClassVar[int]
    DOCKERFILE_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ID_FIELD_NUMBER: _ClassVar[int]
    NETWORK_MODE_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    args: VersionTextList
    build_args: VersionTexts
    dockerfile: str
    env: VersionTexts
    image: str
    image_id: str
    network_mode: str
    ports: VersionPorts
    def __init__(self, args: _Optional[_Union[VersionTextList, _Mapping]] = ..., build_args: _Optional[_Union[VersionTexts, _Mapping]] = ..., dockerfile: _Optional[str] = ..., env: _Optional[_Union[VersionTexts, _Mapping]] = ..., image: _Optional[str] = ..., image_id: _Optional[str] = ..., network_mode: _Optional[str] = ..., ports: _Optional[_Union[VersionPorts, _Mapping]] = ...) -> None: ...

class VersionPorts(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: VersionPort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[VersionPort, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.MessageMap[str, VersionPort]
    def __init__(self, entries: _Optional[_Mapping[str, VersionPort]] = ...) -> None: ...

class VersionPort(_message.Message):
    __slots__ = ("dev_port", "dev_port_range", "dev_protocol", "port_range", "protocol", "proxy", "port", "proxy_protocol")
    DEV_PORT_FIELD_NUMBER: _ClassVar[int]
    DEV_PORT_RANGE_FIELD_NUMBER: _ClassVar[int]
    DEV_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PORT_RANGE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PROXY_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    dev_port: int
    dev_port_range: VersionPortRange
    dev_protocol: str
    port_range: VersionPortRange
    protocol: str
    proxy: str
    port: int
    proxy_protocol: str
    def __init__(self, dev_port: _Optional[int] = ..., dev_port_range: _Optional[_Union[VersionPortRange, _Mapping]] = ..., dev_protocol: _Optional[str] = ..., port_range: _Optional[_Union[VersionPortRange, _Mapping]] = ..., protocol: _Optional[str] = ..., proxy: _Optional[str] = ..., port: _Optional[int] = ..., proxy_protocol: _Optional[str] = ...) -> None: ...

class VersionPortRange(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class VersionIdleLobbies(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class VersionRegions(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: VersionRegion
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[VersionRegion, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.MessageMap[str, VersionRegion]
    def __init__(self, entries: _Optional[_Mapping[str, VersionRegion]] = ...) -> None: ...

class VersionRegion(_message.Message):
    __slots__ = ("idle_lobbies", "tier")
    IDLE_LOBBIES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    idle_lobbies: VersionIdleLobbies
    tier: str
    def __init__(self, idle_lobbies: _Optional[_Union[VersionIdleLobbies, _Mapping]] = ..., tier: _Optional[str] = ...) -> None: ...

class StartTrialRequest(_message.Message):
    __slots__ = ("game_id", "version_id", "namespace_id", "game_mode", "timeout_ms")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_MODE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    version_id: str
    namespace_id: str
    game_mode: str
    timeout_ms: int
    def __init__(self, game_id: _Optional[str] = ..., version_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., game_mode: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class StartTrialResponse(_message.Message):
    __slots__ = ("lobby_id",)
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    def __init__(self, lobby_id: _Optional[str] = ...) -> None: ...

class DeleteVersionRequest(_message.Message):
    __slots__ = ("game_id", "version_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    version_id: str
    def __init__(self, game_id: _Optional[str] = ..., version_id: _Optional[str] = ...) -> None: ...

class DeleteVersionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
