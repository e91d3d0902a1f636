from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import envelope_pb2 as _envelope_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateServerRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "datacenter", "lifecycle", "network", "resources", "runtime", "tags")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    DATACENTER_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    datacenter: str
    lifecycle: ServerLifecycle
    network: NewServerNetwork
    resources: ServerResources
    runtime: ServerRuntime
    tags: ServerTags
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., datacenter: _Optional[str] = ..., lifecycle: _Optional[_Union[ServerLifecycle, _Mapping]] = ..., network: _Optional[_Union[NewServerNetwork, _Mapping]] = ..., resources: _Optional[_Union[ServerResources, _Mapping]] = ..., runtime: _Optional[_Union[ServerRuntime, _Mapping]] = ..., tags: _Optional[_Union[ServerTags, _Mapping]] = ...) -> None: ...

class CreateServerResponse(_message.Message):
    __slots__ = ("server",)
    SERVER_FIELD_NUMBER: _ClassVar[int]
    server: Server
    def __init__(self, server: _Optional[_Union[Server, _Mapping]] = ...) -> None: ...

class GetServerRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "server_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    server_id: str
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., server_id: _Optional[str] = ...) -> None: ...

class GetServerResponse(_message.Message):
    __slots__ = ("server",)
    SERVER_FIELD_NUMBER: _ClassVar[int]
    server: Server
    def __init__(self, server: _Optional[_Union[Server, _Mapping]] = ...) -> None: ...

class ListServersRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "tags_json", "include_destroyed", "cursor", "limit")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TAGS_JSON_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DESTROYED_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    tags_json: str
    include_destroyed: bool
    cursor: str
    limit: int
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., tags_json: _Optional[str] = ..., include_destroyed: _Optional[bool] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListServersResponse(_message.Message):
    __slots__ = ("servers", "cursor")
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[Server]
    cursor: str
    def __init__(self, servers: _Optional[_Iterable[_Union[Server, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class DestroyServerRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "server_id", "override_kill_timeout")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_KILL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    server_id: str
    override_kill_timeout: int
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., server_id: _Optional[str] = ..., override_kill_timeout: _Optional[int] = ...) -> None: ...

class DestroyServerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerLogsRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "server_id", "stream", "watch_index", "format")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    server_id: str
    stream: str
    watch_index: str
    format: str
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., server_id: _Optional[str] = ..., stream: _Optional[str] = ..., watch_index: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class GetServerLogsResponse(_message.Message):
    __slots__ = ("lines", "timestamps", "watch", "text")
    LINES_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    timestamps: _containers.RepeatedScalarFieldContainer[str]
    watch: _envelope_pb2.Watch
    text: str
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., timestamps: _Optional[_Iterable[str]] = ..., watch: _Optional[_Union[_envelope_pb2.Watch, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class Server(_message.Message):
    __slots__ = ("id", "environment", "datacenter", "created_at", "started_at", "destroyed_at", "lifecycle", "network", "resources", "runtime", "tags", "status", "exit_code", "failure", "problem", "usage")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    DATACENTER_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    DESTROYED_AT_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    environment: str
    datacenter: str
    created_at: int
    started_at: int
    destroyed_at: int
    lifecycle: ServerLifecycle
    network: ServerNetwork
    resources: ServerResources
    runtime: ServerRuntime
    tags: _containers.ScalarMap[str, str]
    status: str
    exit_code: int
    failure: ServerFailure
    problem: str
    usage: ResourceUsage
    def __init__(self, id: _Optional[str] = ..., environment: _Optional[str] = ..., datacenter: _Optional[str] = ..., created_at: _Optional[int] = ..., started_at: _Optional[int] = ..., destroyed_at: _Optional[int] = ..., lifecycle: _Optional[_Union[ServerLifecycle, _Mapping]] = ..., network: _Optional[_Union[ServerNetwork, _Mapping]] = ..., resources: _Optional[_Union[ServerResources, _Mapping]] = ..., runtime: _Optional[_Union[ServerRuntime, _Mapping]] = ..., tags: _Optional[_Mapping[str, str]] = ..., status: _Optional[str] = ..., exit_code: _Optional[int] = ..., failure: _Optional[_Union[ServerFailure, _Mapping]] = ..., problem: _Optional[str] = ..., usage: _Optional[_Union[ResourceUsage, _Mapping]] = ...) -> None: ...

class ResourceUsage(_message.Message):
    __slots__ = ("received_bytes", "sent_bytes", "received_packets", "sent_packets", "player_count", "cpu_time_ms", "memory_bytes")
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    SENT_PACKETS_FIELD_NUMBER: _ClassVar[int]
    PLAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    CPU_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    sent_bytes: int
    received_packets: int
    sent_packets: int
    player_count: int
    cpu_time_ms: int
    memory_bytes: int
    def __init__(self, received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., received_packets: _Optional[int] = ..., sent_packets: _Optional[int] = ..., player_count: _Optional[int] = ..., cpu_time_ms: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class ServerFailure(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ServerLifecycle(_message.Message):
    __slots__ = ("kill_timeout",)
    KILL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    kill_timeout: int
    def __init__(self, kill_timeout: _Optional[int] = ...) -> None: ...

class ServerTags(_message.Message):
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

class NewServerNetwork(_message.Message):
    __slots__ = ("mode", "ports")
    MODE_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    mode: str
    ports: NewServerPorts
    def __init__(self, mode: _Optional[str] = ..., ports: _Optional[_Union[NewServerPorts, _Mapping]] = ...) -> None: ...

class NewServerPorts(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: NewServerPort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[NewServerPort, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.MessageMap[str, NewServerPort]
    def __init__(self, entries: _Optional[_Mapping[str, NewServerPort]] = ...) -> None: ...

class NewServerPort(_message.Message):
    __slots__ = ("internal_port", "protocol", "routing", "proxy_protocol")
    INTERNAL_PORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    PROXY_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    internal_port: int
    protocol: str
    routing: ServerRouting
    proxy_protocol: str
    def __init__(self, internal_port: _Optional[int] = ..., protocol: _Optional[str] = ..., routing: _Optional[_Union[ServerRouting, _Mapping]] = ..., proxy_protocol: _Optional[str] = ...) -> None: ...

class ServerNetwork(_message.Message):
    __slots__ = ("mode", "ports")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ServerPort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ServerPort, _Mapping]] = ...) -> None: ...
    MODE_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    mode: str
    ports: _containers.MessageMap[str, ServerPort]
    def __init__(self, mode: _Optional[str] = ..., ports: _Optional[_Mapping[str, ServerPort]] = ...) -> None: ...

class ServerPort(_message.Message):
    __slots__ = ("internal_port", "protocol", "public_hostname", "public_port", "routing", "proxy_protocol")
    INTERNAL_PORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_PORT_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    PROXY_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    internal_port: int
    protocol: str
    public_hostname: str
    public_port: int
    routing: ServerRouting
    proxy_protocol: str
    def __init__(self, internal_port: _Optional[int] = ..., protocol: _Optional[str] = ..., public_hostname: _Optional[str] = ..., public_port: _Optional[int] = ..., routing: _Optional[_Union[ServerRouting, _Mapping]] = ..., proxy_protocol: _Optional[str] = ...) -> None: ...

class ServerRouting(_message.Message):
    __slots__ = ("edge_guard", "host")
    EDGE_GUARD_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    edge_guard: EdgeGuardRouting
    host: HostRouting
    def __init__(self, edge_guard: _Optional[_Union[EdgeGuardRouting, _Mapping]] = ..., host: _Optional[_Union[HostRouting, _Mapping]] = ...) -> None: ...

class EdgeGuardRouting(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostRouting(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerResources(_message.Message):
    __slots__ = ("cpu", "memory")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    cpu: int
    memory: int
    def __init__(self, cpu: _Optional[int] = ..., memory: _Optional[int] = ...) -> None: ...

class ServerRuntime(_message.Message):
    __slots__ = ("build", "arguments", "environment")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUILD_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    build: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    def __init__(self, build: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ...) -> None: ...
