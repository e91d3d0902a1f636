from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import envelope_pb2 as _envelope_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from pyservice.pb.hosting.v1 import servers_pb2 as _servers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListLobbyRecordsRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "before_create_ts", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    before_create_ts: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., before_create_ts: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListLobbyRecordsResponse(_message.Message):
    __slots__ = ("lobbies", "cursor")
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    lobbies: _containers.RepeatedCompositeFieldContainer[LobbyRecord]
    cursor: str
    def __init__(self, lobbies: _Optional[_Iterable[_Union[LobbyRecord, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class GetLobbyRecordRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "lobby_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    lobby_id: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., lobby_id: _Optional[str] = ...) -> None: ...

class GetLobbyRecordResponse(_message.Message):
    __slots__ = ("lobby",)
    LOBBY_FIELD_NUMBER: _ClassVar[int]
    lobby: LobbyRecord
    def __init__(self, lobby: _Optional[_Union[LobbyRecord, _Mapping]] = ...) -> None: ...

class LobbyRecord(_message.Message):
    __slots__ = ("lobby_id", "namespace_id", "lobby_group_name_id", "region_id", "create_ts", "start_ts", "ready_ts", "status", "publicity", "version_id", "is_closed", "is_draining", "reserved_count", "connected_count", "failure", "state", "problem", "usage", "is_trial", "suspect_count")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_GROUP_NAME_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    READY_TS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PUBLICITY_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    IS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    RESERVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    IS_TRIAL_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    namespace_id: str
    lobby_group_name_id: str
    region_id: str
    create_ts: str
    start_ts: str
    ready_ts: str
    status: LobbyRecordStatus
    publicity: str
    version_id: str
    is_closed: bool
    is_draining: bool
    reserved_count: int
    connected_count: int
    failure: str
    state: str
    problem: str
    usage: _servers_pb2.ResourceUsage
    is_trial: bool
    suspect_count: int
    def __init__(self, lobby_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., lobby_group_name_id: _Optional[str] = ..., region_id: _Optional[str] = ..., create_ts: _Optional[str] = ..., start_ts: _Optional[str] = ..., ready_ts: _Optional[str] = ..., status: _Optional[_Union[LobbyRecordStatus, _Mapping]] = ..., publicity: _Optional[str] = ..., version_id: _Optional[str] = ..., is_closed: _Optional[bool] = ..., is_draining: _Optional[bool] = ..., reserved_count: _Optional[int] = ..., connected_count: _Optional[int] = ..., failure: _Optional[str] = ..., state: _Optional[str] = ..., problem: _Optional[str] = ..., usage: _Optional[_Union[_servers_pb2.ResourceUsage, _Mapping]] = ..., is_trial: _Optional[bool] = ..., suspect_count: _Optional[int] = ...) -> None: ...

class LobbyRecordStatus(_message.Message):
    __slots__ = ("running", "stopped")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    running: LobbyRunning
    stopped: LobbyStopped
    def __init__(self, running: _Optional[_Union[LobbyRunning, _Mapping]] = ..., stopped: _Optional[_Union[LobbyStopped, _Mapping]] = ...) -> None: ...

class LobbyRunning(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LobbyStopped(_message.Message):
    __slots__ = ("stop_ts", "failed", "exit_code")
    STOP_TS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    stop_ts: str
    failed: bool
    exit_code: int
    def __init__(self, stop_ts: _Optional[str] = ..., failed: _Optional[bool] = ..., exit_code: _Optional[int] = ...) -> None: ...

class GetLobbyLogsRequest(_message.Message):
    __slots__ = ("game_id", "lobby_id", "stream", "watch_index", "format")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    lobby_id: str
    stream: str
    watch_index: str
    format: str
    def __init__(self, game_id: _Optional[str] = ..., lobby_id: _Optional[str] = ..., stream: _Optional[str] = ..., watch_index: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class GetLobbyLogsResponse(_message.Message):
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

class ExportLobbyLogsRequest(_message.Message):
    __slots__ = ("game_id", "lobby_id", "stream")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    lobby_id: str
    stream: str
    def __init__(self, game_id: _Optional[str] = ..., lobby_id: _Optional[str] = ..., stream: _Optional[str] = ...) -> None: ...

class ExportLobbyLogsResponse(_message.Message):
    __slots__ = ("url",)
    URL_FIELD_NUMBER: _ClassVar[int]
    url: str
    def __init__(self, url: _Optional[str] = ...) -> None: ...

class ExportLobbyHistoryRequest(_message.Message):
    __slots__ = ("game_id", "query_start", "query_end")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    QUERY_START_FIELD_NUMBER: _ClassVar[int]
    QUERY_END_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    query_start: int
    query_end: int
    def __init__(self, game_id: _Optional[str] = ..., query_start: _Optional[int] = ..., query_end: _Optional[int] = ...) -> None: ...

class ExportLobbyHistoryResponse(_message.Message):
    __slots__ = ("url",)
    URL_FIELD_NUMBER: _ClassVar[int]
    url: str
    def __init__(self, url: _Optional[str] = ...) -> None: ...
