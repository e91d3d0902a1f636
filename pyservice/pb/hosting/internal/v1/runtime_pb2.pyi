from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WantedRequest(_message.Message):
    __slots__ = ("run", "after_sequence", "wait_ms", "capacity", "unspecified", "unreachable", "silent_nodes", "cordoned_nodes")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    UNSPECIFIED_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    SILENT_NODES_FIELD_NUMBER: _ClassVar[int]
    CORDONED_NODES_FIELD_NUMBER: _ClassVar[int]
    run: str
    after_sequence: int
    wait_ms: int
    capacity: Capacity
    unspecified: _containers.RepeatedScalarFieldContainer[str]
    unreachable: _containers.RepeatedCompositeFieldContainer[UnreachableLobby]
    silent_nodes: _containers.RepeatedScalarFieldContainer[str]
    cordoned_nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run: _Optional[str] = ..., after_sequence: _Optional[int] = ..., wait_ms: _Optional[int] = ..., capacity: _Optional[_Union[Capacity, _Mapping]] = ..., unspecified: _Optional[_Iterable[str]] = ..., unreachable: _Optional[_Iterable[_Union[UnreachableLobby, _Mapping]]] = ..., silent_nodes: _Optional[_Iterable[str]] = ..., cordoned_nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class UnreachableLobby(_message.Message):
    __slots__ = ("lobby_id", "problem")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    problem: str
    def __init__(self, lobby_id: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("kinds", "cpu_millicores", "memory_mb", "free_cpu_millicores", "free_memory_mb", "isolation", "unenforced", "is_elastic")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLICORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    FREE_CPU_MILLICORES_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    UNENFORCED_FIELD_NUMBER: _ClassVar[int]
    IS_ELASTIC_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    cpu_millicores: int
    memory_mb: int
    free_cpu_millicores: int
    free_memory_mb: int
    isolation: str
    unenforced: _containers.RepeatedScalarFieldContainer[str]
    is_elastic: bool
    def __init__(self, kinds: _Optional[_Iterable[str]] = ..., cpu_millicores: _Optional[int] = ..., memory_mb: _Optional[int] = ..., free_cpu_millicores: _Optional[int] = ..., free_memory_mb: _Optional[int] = ..., isolation: _Optional[str] = ..., unenforced: _Optional[_Iterable[str]] = ..., is_elastic: _Optional[bool] = ...) -> None: ...

class WantedResponse(_message.Message):
    __slots__ = ("run", "sequence", "is_complete", "lobbies", "gone", "http_address", "grpc_address", "silent_nodes")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SILENT_NODES_FIELD_NUMBER: _ClassVar[int]
    run: str
    sequence: int
    is_complete: bool
    lobbies: _containers.RepeatedCompositeFieldContainer[WantedLobby]
    gone: _containers.RepeatedScalarFieldContainer[str]
    http_address: str
    grpc_address: str
    silent_nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run: _Optional[str] = ..., sequence: _Optional[int] = ..., is_complete: _Optional[bool] = ..., lobbies: _Optional[_Iterable[_Union[WantedLobby, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ..., http_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., silent_nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class WantedLobby(_message.Message):
    __slots__ = ("lobby_id", "namespace_id", "version_id", "is_stopping", "spec", "is_later", "is_ready")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    IS_STOPPING_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    IS_LATER_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    namespace_id: str
    version_id: str
    is_stopping: bool
    spec: LobbySpec
    is_later: bool
    is_ready: bool
    def __init__(self, lobby_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., version_id: _Optional[str] = ..., is_stopping: _Optional[bool] = ..., spec: _Optional[_Union[LobbySpec, _Mapping]] = ..., is_later: _Optional[bool] = ..., is_ready: _Optional[bool] = ...) -> None: ...

class LobbySpec(_message.Message):
    __slots__ = ("game_id", "namespace_name", "game_mode", "region", "max_players", "max_players_direct", "max_players_party", "tags", "lobby_config", "lobby_token", "build_id", "args", "env", "network_mode", "tier", "ports", "adapter")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
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
        value: RuntimePort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[RuntimePort, _Mapping]] = ...) -> None: ...
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    GAME_MODE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_DIRECT_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PARTY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    LOBBY_CONFIG_FIELD_NUMBER: _ClassVar[int]
    LOBBY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    NETWORK_MODE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_name: str
    game_mode: str
    region: str
    max_players: int
    max_players_direct: int
    max_players_party: int
    tags: _containers.ScalarMap[str, str]
    lobby_config: bytes
    lobby_token: str
    build_id: str
    args: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    network_mode: str
    tier: str
    ports: _containers.MessageMap[str, RuntimePort]
    adapter: RuntimeAdapter
    def __init__(self, game_id: _Optional[str] = ..., namespace_name: _Optional[str] = ..., game_mode: _Optional[str] = ..., region: _Optional[str] = ..., max_players: _Optional[int] = ..., max_players_direct: _Optional[int] = ..., max_players_party: _Optional[int] = ..., tags: _Optional[_Mapping[str, str]] = ..., lobby_config: _Optional[bytes] = ..., lobby_token: _Optional[str] = ..., build_id: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., network_mode: _Optional[str] = ..., tier: _Optional[str] = ..., ports: _Optional[_Mapping[str, RuntimePort]] = ..., adapter: _Optional[_Union[RuntimeAdapter, _Mapping]] = ...) -> None: ...

class RuntimeAdapter(_message.Message):
    __slots__ = ("ready", "port", "log_match", "query", "query_port", "query_path", "players")
    READY_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LOG_MATCH_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    QUERY_PORT_FIELD_NUMBER: _ClassVar[int]
    QUERY_PATH_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    ready: str
    port: str
    log_match: str
    query: str
    query_port: str
    query_path: str
    players: str
    def __init__(self, ready: _Optional[str] = ..., port: _Optional[str] = ..., log_match: _Optional[str] = ..., query: _Optional[str] = ..., query_port: _Optional[str] = ..., query_path: _Optional[str] = ..., players: _Optional[str] = ...) -> None: ...

class RuntimePort(_message.Message):
    __slots__ = ("protocol", "internal_port", "range_min", "range_max")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_PORT_FIELD_NUMBER: _ClassVar[int]
    RANGE_MIN_FIELD_NUMBER: _ClassVar[int]
    RANGE_MAX_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    internal_port: int
    range_min: int
    range_max: int
    def __init__(self, protocol: _Optional[str] = ..., internal_port: _Optional[int] = ..., range_min: _Optional[int] = ..., range_max: _Optional[int] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[LobbyReport]
    def __init__(self, reports: _Optional[_Iterable[_Union[LobbyReport, _Mapping]]] = ...) -> None: ...

class LobbyReport(_message.Message):
    __slots__ = ("lobby_id", "placed", "over", "ready", "players")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    placed: Placed
    over: Over
    ready: Ready
    players: PlayerCount
    def __init__(self, lobby_id: _Optional[str] = ..., placed: _Optional[_Union[Placed, _Mapping]] = ..., over: _Optional[_Union[Over, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., players: _Optional[_Union[PlayerCount, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlayerCount(_message.Message):
    __slots__ = ("connected", "may_free")
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MAY_FREE_FIELD_NUMBER: _ClassVar[int]
    connected: int
    may_free: bool
    def __init__(self, connected: _Optional[int] = ..., may_free: _Optional[bool] = ...) -> None: ...

class Placed(_message.Message):
    __slots__ = ("backends",)
    class BackendsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Backend
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Backend, _Mapping]] = ...) -> None: ...
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    backends: _containers.MessageMap[str, Backend]
    def __init__(self, backends: _Optional[_Mapping[str, Backend]] = ...) -> None: ...

class Backend(_message.Message):
    __slots__ = ("address", "port")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    address: str
    port: int
    def __init__(self, address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("exit_code", "reason", "message", "kind")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: str
    message: str
    kind: str
    def __init__(self, exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("server_id", "namespace_id", "region", "protocols", "proxy_header_ports")
    class ProtocolsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    PROXY_HEADER_PORTS_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    namespace_id: str
    region: str
    protocols: _containers.ScalarMap[str, str]
    proxy_header_ports: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, server_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., region: _Optional[str] = ..., protocols: _Optional[_Mapping[str, str]] = ..., proxy_header_ports: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("ports",)
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PublicPort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PublicPort, _Mapping]] = ...) -> None: ...
    PORTS_FIELD_NUMBER: _ClassVar[int]
    ports: _containers.MessageMap[str, PublicPort]
    def __init__(self, ports: _Optional[_Mapping[str, PublicPort]] = ...) -> None: ...

class PublicPort(_message.Message):
    __slots__ = ("hostname", "port", "is_tls")
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    IS_TLS_FIELD_NUMBER: _ClassVar[int]
    hostname: str
    port: int
    is_tls: bool
    def __init__(self, hostname: _Optional[str] = ..., port: _Optional[int] = ..., is_tls: _Optional[bool] = ...) -> None: ...

class PlaceServerRequest(_message.Message):
    __slots__ = ("server_id", "backends")
    class BackendsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Backend
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Backend, _Mapping]] = ...) -> None: ...
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    backends: _containers.MessageMap[str, Backend]
    def __init__(self, server_id: _Optional[str] = ..., backends: _Optional[_Mapping[str, Backend]] = ...) -> None: ...

class PlaceServerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndLeaseRequest(_message.Message):
    __slots__ = ("server_id",)
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    def __init__(self, server_id: _Optional[str] = ...) -> None: ...

class EndLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeasesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeasesResponse(_message.Message):
    __slots__ = ("server_ids",)
    SERVER_IDS_FIELD_NUMBER: _ClassVar[int]
    server_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, server_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class BindPortsRequest(_message.Message):
    __slots__ = ("owner_id", "node", "host")
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    node: str
    host: str
    def __init__(self, owner_id: _Optional[str] = ..., node: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class BindPortsResponse(_message.Message):
    __slots__ = ("ports",)
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PublicPort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PublicPort, _Mapping]] = ...) -> None: ...
    PORTS_FIELD_NUMBER: _ClassVar[int]
    ports: _containers.MessageMap[str, PublicPort]
    def __init__(self, ports: _Optional[_Mapping[str, PublicPort]] = ...) -> None: ...

class NodeGoneRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class NodeGoneResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EmptyLobbiesRequest(_message.Message):
    __slots__ = ("empty_ms",)
    EMPTY_MS_FIELD_NUMBER: _ClassVar[int]
    empty_ms: int
    def __init__(self, empty_ms: _Optional[int] = ...) -> None: ...

class EmptyLobbiesResponse(_message.Message):
    __slots__ = ("lobby_ids",)
    LOBBY_IDS_FIELD_NUMBER: _ClassVar[int]
    lobby_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lobby_ids: _Optional[_Iterable[str]] = ...) -> None: ...
