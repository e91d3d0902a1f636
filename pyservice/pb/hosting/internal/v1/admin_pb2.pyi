from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from pyservice.pb.hosting.internal.v1 import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_KIND_UNSPECIFIED: _ClassVar[TokenKind]
    TOKEN_KIND_PUBLIC: _ClassVar[TokenKind]
    TOKEN_KIND_ENVIRONMENT: _ClassVar[TokenKind]
TOKEN_KIND_UNSPECIFIED: TokenKind
TOKEN_KIND_PUBLIC: TokenKind
TOKEN_KIND_ENVIRONMENT: TokenKind

class CreateTokenRequest(_message.Message):
    __slots__ = ("kind", "namespace", "expires_in_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    kind: TokenKind
    namespace: str
    expires_in_ms: int
    def __init__(self, kind: _Optional[_Union[TokenKind, str]] = ..., namespace: _Optional[str] = ..., expires_in_ms: _Optional[int] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("token", "token_id", "expires_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    expires_ms: int
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class RotateKeysRequest(_message.Message):
    __slots__ = ("drop_unused",)
    DROP_UNUSED_FIELD_NUMBER: _ClassVar[int]
    drop_unused: bool
    def __init__(self, drop_unused: _Optional[bool] = ...) -> None: ...

class RotateKeysResponse(_message.Message):
    __slots__ = ("current_key", "kept_keys", "dropped_keys")
    CURRENT_KEY_FIELD_NUMBER: _ClassVar[int]
    KEPT_KEYS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_KEYS_FIELD_NUMBER: _ClassVar[int]
    current_key: int
    kept_keys: _containers.RepeatedScalarFieldContainer[int]
    dropped_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, current_key: _Optional[int] = ..., kept_keys: _Optional[_Iterable[int]] = ..., dropped_keys: _Optional[_Iterable[int]] = ...) -> None: ...

class DropKeysRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, keys: _Optional[_Iterable[int]] = ...) -> None: ...

class DropKeysResponse(_message.Message):
    __slots__ = ("current_key", "kept_keys", "dropped_keys")
    CURRENT_KEY_FIELD_NUMBER: _ClassVar[int]
    KEPT_KEYS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_KEYS_FIELD_NUMBER: _ClassVar[int]
    current_key: int
    kept_keys: _containers.RepeatedScalarFieldContainer[int]
    dropped_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, current_key: _Optional[int] = ..., kept_keys: _Optional[_Iterable[int]] = ..., dropped_keys: _Optional[_Iterable[int]] = ...) -> None: ...

class StartDrainRequest(_message.Message):
    __slots__ = ("within_ms",)
    WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    within_ms: int
    def __init__(self, within_ms: _Optional[int] = ...) -> None: ...

class StartDrainResponse(_message.Message):
    __slots__ = ("deadline_ms",)
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    deadline_ms: int
    def __init__(self, deadline_ms: _Optional[int] = ...) -> None: ...

class CancelDrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelDrainResponse(_message.Message):
    __slots__ = ("was_draining",)
    WAS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    was_draining: bool
    def __init__(self, was_draining: _Optional[bool] = ...) -> None: ...

class ReadStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadStatusResponse(_message.Message):
    __slots__ = ("parts", "lobbies", "servers", "players", "room", "ports", "drain", "owner_epoch", "nodes")
    class LobbiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PARTS_FIELD_NUMBER: _ClassVar[int]
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[PartStatus]
    lobbies: _containers.ScalarMap[str, int]
    servers: ServerCounts
    players: int
    room: MachineRoom
    ports: _containers.RepeatedCompositeFieldContainer[PortRoom]
    drain: DrainStatus
    owner_epoch: int
    nodes: _containers.RepeatedCompositeFieldContainer[_control_pb2.NodeStatus]
    def __init__(self, parts: _Optional[_Iterable[_Union[PartStatus, _Mapping]]] = ..., lobbies: _Optional[_Mapping[str, int]] = ..., servers: _Optional[_Union[ServerCounts, _Mapping]] = ..., players: _Optional[int] = ..., room: _Optional[_Union[MachineRoom, _Mapping]] = ..., ports: _Optional[_Iterable[_Union[PortRoom, _Mapping]]] = ..., drain: _Optional[_Union[DrainStatus, _Mapping]] = ..., owner_epoch: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[_control_pb2.NodeStatus, _Mapping]]] = ...) -> None: ...

class PartStatus(_message.Message):
    __slots__ = ("name", "is_up", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_UP_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_up: bool
    detail: str
    def __init__(self, name: _Optional[str] = ..., is_up: _Optional[bool] = ..., detail: _Optional[str] = ...) -> None: ...

class ServerCounts(_message.Message):
    __slots__ = ("by_state",)
    class ByStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BY_STATE_FIELD_NUMBER: _ClassVar[int]
    by_state: _containers.ScalarMap[str, int]
    def __init__(self, by_state: _Optional[_Mapping[str, int]] = ...) -> None: ...

class MachineRoom(_message.Message):
    __slots__ = ("cpu_millicores", "memory_mb", "used_cpu_millicores", "used_memory_mb")
    CPU_MILLICORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    USED_CPU_MILLICORES_FIELD_NUMBER: _ClassVar[int]
    USED_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    cpu_millicores: int
    memory_mb: int
    used_cpu_millicores: int
    used_memory_mb: int
    def __init__(self, cpu_millicores: _Optional[int] = ..., memory_mb: _Optional[int] = ..., used_cpu_millicores: _Optional[int] = ..., used_memory_mb: _Optional[int] = ...) -> None: ...

class PortRoom(_message.Message):
    __slots__ = ("protocol", "free", "leased", "resting")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    free: int
    leased: int
    resting: int
    def __init__(self, protocol: _Optional[str] = ..., free: _Optional[int] = ..., leased: _Optional[int] = ..., resting: _Optional[int] = ...) -> None: ...

class DrainStatus(_message.Message):
    __slots__ = ("deadline_ms", "lobbies", "servers", "players", "is_over", "oldest_lobbies", "further_lobbies")
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    OLDEST_LOBBIES_FIELD_NUMBER: _ClassVar[int]
    FURTHER_LOBBIES_FIELD_NUMBER: _ClassVar[int]
    deadline_ms: int
    lobbies: int
    servers: int
    players: int
    is_over: bool
    oldest_lobbies: _containers.RepeatedCompositeFieldContainer[DrainedLobby]
    further_lobbies: int
    def __init__(self, deadline_ms: _Optional[int] = ..., lobbies: _Optional[int] = ..., servers: _Optional[int] = ..., players: _Optional[int] = ..., is_over: _Optional[bool] = ..., oldest_lobbies: _Optional[_Iterable[_Union[DrainedLobby, _Mapping]]] = ..., further_lobbies: _Optional[int] = ...) -> None: ...

class DrainedLobby(_message.Message):
    __slots__ = ("lobby_id", "namespace", "players", "create_ms")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    CREATE_MS_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    namespace: str
    players: int
    create_ms: int
    def __init__(self, lobby_id: _Optional[str] = ..., namespace: _Optional[str] = ..., players: _Optional[int] = ..., create_ms: _Optional[int] = ...) -> None: ...
