from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetRayPerfRequest(_message.Message):
    __slots__ = ("ray_id",)
    RAY_ID_FIELD_NUMBER: _ClassVar[int]
    ray_id: str
    def __init__(self, ray_id: _Optional[str] = ...) -> None: ...

class GetRayPerfResponse(_message.Message):
    __slots__ = ("perf_lists", "detail")
    PERF_LISTS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    perf_lists: _containers.RepeatedCompositeFieldContainer[RayPerf]
    detail: str
    def __init__(self, perf_lists: _Optional[_Iterable[_Union[RayPerf, _Mapping]]] = ..., detail: _Optional[str] = ...) -> None: ...

class RayPerf(_message.Message):
    __slots__ = ("svc_name", "ts", "duration", "req_id", "marks", "spans")
    SVC_NAME_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    REQ_ID_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    svc_name: str
    ts: str
    duration: int
    req_id: str
    marks: _containers.RepeatedCompositeFieldContainer[RayMark]
    spans: _containers.RepeatedCompositeFieldContainer[RaySpan]
    def __init__(self, svc_name: _Optional[str] = ..., ts: _Optional[str] = ..., duration: _Optional[int] = ..., req_id: _Optional[str] = ..., marks: _Optional[_Iterable[_Union[RayMark, _Mapping]]] = ..., spans: _Optional[_Iterable[_Union[RaySpan, _Mapping]]] = ...) -> None: ...

class RayMark(_message.Message):
    __slots__ = ("label", "ts", "ray_id", "req_id")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    RAY_ID_FIELD_NUMBER: _ClassVar[int]
    REQ_ID_FIELD_NUMBER: _ClassVar[int]
    label: str
    ts: str
    ray_id: str
    req_id: str
    def __init__(self, label: _Optional[str] = ..., ts: _Optional[str] = ..., ray_id: _Optional[str] = ..., req_id: _Optional[str] = ...) -> None: ...

class RaySpan(_message.Message):
    __slots__ = ("label", "start_ts", "finish_ts", "req_id")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    FINISH_TS_FIELD_NUMBER: _ClassVar[int]
    REQ_ID_FIELD_NUMBER: _ClassVar[int]
    label: str
    start_ts: str
    finish_ts: str
    req_id: str
    def __init__(self, label: _Optional[str] = ..., start_ts: _Optional[str] = ..., finish_ts: _Optional[str] = ..., req_id: _Optional[str] = ...) -> None: ...
