from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NextChangesRequest(_message.Message):
    __slots__ = ("run", "after_sequence", "wait_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    after_sequence: int
    wait_ms: int
    def __init__(self, run: _Optional[str] = ..., after_sequence: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class NextChangesResponse(_message.Message):
    __slots__ = ("run", "sequence", "changes", "is_complete")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    run: str
    sequence: int
    changes: _containers.RepeatedCompositeFieldContainer[TopicChange]
    is_complete: bool
    def __init__(self, run: _Optional[str] = ..., sequence: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[TopicChange, _Mapping]]] = ..., is_complete: _Optional[bool] = ...) -> None: ...

class TopicChange(_message.Message):
    __slots__ = ("topic", "sequence")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    sequence: int
    def __init__(self, topic: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class CheckTokenRequest(_message.Message):
    __slots__ = ("token", "game_id")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    token: str
    game_id: str
    def __init__(self, token: _Optional[str] = ..., game_id: _Optional[str] = ...) -> None: ...

class CheckTokenResponse(_message.Message):
    __slots__ = ("token_id", "identity_id", "group_id", "game_id", "reaches_game")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    REACHES_GAME_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    identity_id: str
    group_id: str
    game_id: str
    reaches_game: bool
    def __init__(self, token_id: _Optional[str] = ..., identity_id: _Optional[str] = ..., group_id: _Optional[str] = ..., game_id: _Optional[str] = ..., reaches_game: _Optional[bool] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ("is_without_text",)
    IS_WITHOUT_TEXT_FIELD_NUMBER: _ClassVar[int]
    is_without_text: bool
    def __init__(self, is_without_text: _Optional[bool] = ...) -> None: ...

class MetricsResponse(_message.Message):
    __slots__ = ("text", "database_problem", "object_store_problem", "servers", "owner_epoch", "nodes", "cdn_problem")
    class ServersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATABASE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    OBJECT_STORE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CDN_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    database_problem: str
    object_store_problem: str
    servers: _containers.ScalarMap[str, int]
    owner_epoch: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    cdn_problem: str
    def __init__(self, text: _Optional[bytes] = ..., database_problem: _Optional[str] = ..., object_store_problem: _Optional[str] = ..., servers: _Optional[_Mapping[str, int]] = ..., owner_epoch: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., cdn_problem: _Optional[str] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("name", "state", "lobbies", "servers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    lobbies: int
    servers: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., lobbies: _Optional[int] = ..., servers: _Optional[int] = ...) -> None: ...
