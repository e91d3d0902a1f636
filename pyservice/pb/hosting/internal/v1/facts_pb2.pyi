from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LobbyEndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOBBY_END_REASON_UNSPECIFIED: _ClassVar[LobbyEndReason]
    LOBBY_END_REASON_EXITED: _ClassVar[LobbyEndReason]
    LOBBY_END_REASON_START_TIMEOUT: _ClassVar[LobbyEndReason]
    LOBBY_END_REASON_SILENT: _ClassVar[LobbyEndReason]
    LOBBY_END_REASON_REMOVED: _ClassVar[LobbyEndReason]
    LOBBY_END_REASON_STOPPED: _ClassVar[LobbyEndReason]
LOBBY_END_REASON_UNSPECIFIED: LobbyEndReason
LOBBY_END_REASON_EXITED: LobbyEndReason
LOBBY_END_REASON_START_TIMEOUT: LobbyEndReason
LOBBY_END_REASON_SILENT: LobbyEndReason
LOBBY_END_REASON_REMOVED: LobbyEndReason
LOBBY_END_REASON_STOPPED: LobbyEndReason

class ReadRequest(_message.Message):
    __slots__ = ("stream", "acknowledged_lsn", "limit", "wait_ms")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_LSN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    acknowledged_lsn: int
    limit: int
    wait_ms: int
    def __init__(self, stream: _Optional[str] = ..., acknowledged_lsn: _Optional[int] = ..., limit: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("stream", "is_restarted", "facts", "lost", "oldest_lsn")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    IS_RESTARTED_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    OLDEST_LSN_FIELD_NUMBER: _ClassVar[int]
    stream: str
    is_restarted: bool
    facts: _containers.RepeatedCompositeFieldContainer[Fact]
    lost: int
    oldest_lsn: int
    def __init__(self, stream: _Optional[str] = ..., is_restarted: _Optional[bool] = ..., facts: _Optional[_Iterable[_Union[Fact, _Mapping]]] = ..., lost: _Optional[int] = ..., oldest_lsn: _Optional[int] = ...) -> None: ...

class Fact(_message.Message):
    __slots__ = ("lsn", "ts_ms", "lobby_id", "namespace_id", "made", "ready", "closed", "stopping", "ended")
    LSN_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    ts_ms: int
    lobby_id: str
    namespace_id: str
    made: LobbyMade
    ready: LobbyReady
    closed: LobbyClosed
    stopping: LobbyStopping
    ended: LobbyEnded
    def __init__(self, lsn: _Optional[int] = ..., ts_ms: _Optional[int] = ..., lobby_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., made: _Optional[_Union[LobbyMade, _Mapping]] = ..., ready: _Optional[_Union[LobbyReady, _Mapping]] = ..., closed: _Optional[_Union[LobbyClosed, _Mapping]] = ..., stopping: _Optional[_Union[LobbyStopping, _Mapping]] = ..., ended: _Optional[_Union[LobbyEnded, _Mapping]] = ...) -> None: ...

class LobbyMade(_message.Message):
    __slots__ = ("about",)
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    about: LobbyAbout
    def __init__(self, about: _Optional[_Union[LobbyAbout, _Mapping]] = ...) -> None: ...

class LobbyReady(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LobbyClosed(_message.Message):
    __slots__ = ("is_closed",)
    IS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    is_closed: bool
    def __init__(self, is_closed: _Optional[bool] = ...) -> None: ...

class LobbyStopping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LobbyEnded(_message.Message):
    __slots__ = ("about", "reason", "exit_code", "player_ms", "peak_players", "connections", "reserved_count", "connected_count", "kept_count")
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    PLAYER_MS_FIELD_NUMBER: _ClassVar[int]
    PEAK_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    about: LobbyAbout
    reason: LobbyEndReason
    exit_code: int
    player_ms: int
    peak_players: int
    connections: int
    reserved_count: int
    connected_count: int
    kept_count: int
    def __init__(self, about: _Optional[_Union[LobbyAbout, _Mapping]] = ..., reason: _Optional[_Union[LobbyEndReason, str]] = ..., exit_code: _Optional[int] = ..., player_ms: _Optional[int] = ..., peak_players: _Optional[int] = ..., connections: _Optional[int] = ..., reserved_count: _Optional[int] = ..., connected_count: _Optional[int] = ..., kept_count: _Optional[int] = ...) -> None: ...

class LobbyAbout(_message.Message):
    __slots__ = ("version_id", "game_mode", "region", "is_public", "max_players", "max_players_direct", "max_players_party", "create_ts_ms", "cpu_millicores", "memory_mb", "is_trial")
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_MODE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    IS_PUBLIC_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_DIRECT_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PARTY_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_MS_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLICORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    IS_TRIAL_FIELD_NUMBER: _ClassVar[int]
    version_id: str
    game_mode: str
    region: str
    is_public: bool
    max_players: int
    max_players_direct: int
    max_players_party: int
    create_ts_ms: int
    cpu_millicores: int
    memory_mb: int
    is_trial: bool
    def __init__(self, version_id: _Optional[str] = ..., game_mode: _Optional[str] = ..., region: _Optional[str] = ..., is_public: _Optional[bool] = ..., max_players: _Optional[int] = ..., max_players_direct: _Optional[int] = ..., max_players_party: _Optional[int] = ..., create_ts_ms: _Optional[int] = ..., cpu_millicores: _Optional[int] = ..., memory_mb: _Optional[int] = ..., is_trial: _Optional[bool] = ...) -> None: ...

class CountsRequest(_message.Message):
    __slots__ = ("after_generation", "wait_ms")
    AFTER_GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    after_generation: int
    wait_ms: int
    def __init__(self, after_generation: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class CountsResponse(_message.Message):
    __slots__ = ("generation", "is_all", "namespaces")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IS_ALL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    is_all: bool
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceCounts]
    def __init__(self, generation: _Optional[int] = ..., is_all: _Optional[bool] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceCounts, _Mapping]]] = ...) -> None: ...

class NamespaceCounts(_message.Message):
    __slots__ = ("namespace_id", "player_count", "lobby_count")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PLAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOBBY_COUNT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    player_count: int
    lobby_count: int
    def __init__(self, namespace_id: _Optional[str] = ..., player_count: _Optional[int] = ..., lobby_count: _Optional[int] = ...) -> None: ...

class LobbiesRequest(_message.Message):
    __slots__ = ("lobby_ids", "sessions", "sessions_age_ms")
    LOBBY_IDS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    lobby_ids: _containers.RepeatedScalarFieldContainer[str]
    sessions: _containers.RepeatedCompositeFieldContainer[LobbySessions]
    sessions_age_ms: int
    def __init__(self, lobby_ids: _Optional[_Iterable[str]] = ..., sessions: _Optional[_Iterable[_Union[LobbySessions, _Mapping]]] = ..., sessions_age_ms: _Optional[int] = ...) -> None: ...

class LobbySessions(_message.Message):
    __slots__ = ("lobby_id", "clients", "others")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    clients: _containers.RepeatedCompositeFieldContainer[ClientSessions]
    others: int
    def __init__(self, lobby_id: _Optional[str] = ..., clients: _Optional[_Iterable[_Union[ClientSessions, _Mapping]]] = ..., others: _Optional[int] = ...) -> None: ...

class ClientSessions(_message.Message):
    __slots__ = ("address", "count")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    address: str
    count: int
    def __init__(self, address: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class LobbiesResponse(_message.Message):
    __slots__ = ("lobbies",)
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    lobbies: _containers.RepeatedCompositeFieldContainer[LobbySlots]
    def __init__(self, lobbies: _Optional[_Iterable[_Union[LobbySlots, _Mapping]]] = ...) -> None: ...

class LobbySlots(_message.Message):
    __slots__ = ("lobby_id", "reserved_count", "connected_count", "kept_count", "suspect_count")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    reserved_count: int
    connected_count: int
    kept_count: int
    suspect_count: int
    def __init__(self, lobby_id: _Optional[str] = ..., reserved_count: _Optional[int] = ..., connected_count: _Optional[int] = ..., kept_count: _Optional[int] = ..., suspect_count: _Optional[int] = ...) -> None: ...
