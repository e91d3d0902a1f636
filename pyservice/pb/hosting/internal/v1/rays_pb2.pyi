from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoreSpansRequest(_message.Message):
    __slots__ = ("span_sets",)
    SPAN_SETS_FIELD_NUMBER: _ClassVar[int]
    span_sets: _containers.RepeatedCompositeFieldContainer[SpanSet]
    def __init__(self, span_sets: _Optional[_Iterable[_Union[SpanSet, _Mapping]]] = ...) -> None: ...

class StoreSpansResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SpanSet(_message.Message):
    __slots__ = ("ray_id", "span_id", "parent_span_id", "service", "operation", "door", "code", "start_ns", "end_ns", "spans", "marks", "caller")
    RAY_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ray_id: str
    span_id: str
    parent_span_id: str
    service: str
    operation: str
    door: str
    code: str
    start_ns: int
    end_ns: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    marks: _containers.RepeatedCompositeFieldContainer[Mark]
    caller: RayCaller
    def __init__(self, ray_id: _Optional[str] = ..., span_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ..., service: _Optional[str] = ..., operation: _Optional[str] = ..., door: _Optional[str] = ..., code: _Optional[str] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., marks: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., caller: _Optional[_Union[RayCaller, _Mapping]] = ...) -> None: ...

class RayCaller(_message.Message):
    __slots__ = ("namespace_id", "identity_id", "group_id", "game_id", "named_game", "upload_id")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMED_GAME_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    identity_id: str
    group_id: str
    game_id: str
    named_game: str
    upload_id: str
    def __init__(self, namespace_id: _Optional[str] = ..., identity_id: _Optional[str] = ..., group_id: _Optional[str] = ..., game_id: _Optional[str] = ..., named_game: _Optional[str] = ..., upload_id: _Optional[str] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("label", "span_id", "start_ns", "end_ns", "parent_span_id")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    label: str
    span_id: str
    start_ns: int
    end_ns: int
    parent_span_id: str
    def __init__(self, label: _Optional[str] = ..., span_id: _Optional[str] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., parent_span_id: _Optional[str] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("label", "at_ns")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    label: str
    at_ns: int
    def __init__(self, label: _Optional[str] = ..., at_ns: _Optional[int] = ...) -> None: ...
