import datetime

from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from pyservice.pb.hosting.v1 import envelope_pb2 as _envelope_pb2
from pyservice.pb.hosting.v1 import lobby_pb2 as _lobby_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetLiveEventsRequest(_message.Message):
    __slots__ = ("watch_index",)
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    watch_index: str
    def __init__(self, watch_index: _Optional[str] = ...) -> None: ...

class GetLiveEventsResponse(_message.Message):
    __slots__ = ("events", "watch")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[LiveEvent]
    watch: _envelope_pb2.Watch
    def __init__(self, events: _Optional[_Iterable[_Union[LiveEvent, _Mapping]]] = ..., watch: _Optional[_Union[_envelope_pb2.Watch, _Mapping]] = ...) -> None: ...

class StreamLiveEventsRequest(_message.Message):
    __slots__ = ("watch_index",)
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    watch_index: str
    def __init__(self, watch_index: _Optional[str] = ...) -> None: ...

class StreamLiveEventsResponse(_message.Message):
    __slots__ = ("events", "watch")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[LiveEvent]
    watch: _envelope_pb2.Watch
    def __init__(self, events: _Optional[_Iterable[_Union[LiveEvent, _Mapping]]] = ..., watch: _Optional[_Union[_envelope_pb2.Watch, _Mapping]] = ...) -> None: ...

class LiveEvent(_message.Message):
    __slots__ = ("ts", "kind")
    TS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ts: _timestamp_pb2.Timestamp
    kind: LiveEventKind
    def __init__(self, ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[_Union[LiveEventKind, _Mapping]] = ...) -> None: ...

class LiveEventKind(_message.Message):
    __slots__ = ("matchmaker_lobby_join",)
    MATCHMAKER_LOBBY_JOIN_FIELD_NUMBER: _ClassVar[int]
    matchmaker_lobby_join: MatchmakerLobbyJoin
    def __init__(self, matchmaker_lobby_join: _Optional[_Union[MatchmakerLobbyJoin, _Mapping]] = ...) -> None: ...

class MatchmakerLobbyJoin(_message.Message):
    __slots__ = ("lobby", "ports", "player")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _lobby_pb2.Port
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_lobby_pb2.Port, _Mapping]] = ...) -> None: ...
    LOBBY_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    lobby: _lobby_pb2.Lobby
    ports: _containers.MessageMap[str, _lobby_pb2.Port]
    player: _lobby_pb2.Player
    def __init__(self, lobby: _Optional[_Union[_lobby_pb2.Lobby, _Mapping]] = ..., ports: _Optional[_Mapping[str, _lobby_pb2.Port]] = ..., player: _Optional[_Union[_lobby_pb2.Player, _Mapping]] = ...) -> None: ...
