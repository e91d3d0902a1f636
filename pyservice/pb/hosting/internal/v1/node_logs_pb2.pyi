from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CopyRequest(_message.Message):
    __slots__ = ("node", "parts", "version", "wait_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    node: str
    parts: _containers.RepeatedCompositeFieldContainer[LogPart]
    version: int
    wait_ms: int
    def __init__(self, node: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[LogPart, _Mapping]]] = ..., version: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class LogPart(_message.Message):
    __slots__ = ("run_id", "pod_uid", "after", "cursor", "lines", "has_gap", "is_all", "is_last")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    HAS_GAP_FIELD_NUMBER: _ClassVar[int]
    IS_ALL_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    pod_uid: str
    after: bytes
    cursor: bytes
    lines: bytes
    has_gap: bool
    is_all: bool
    is_last: bool
    def __init__(self, run_id: _Optional[str] = ..., pod_uid: _Optional[str] = ..., after: _Optional[bytes] = ..., cursor: _Optional[bytes] = ..., lines: _Optional[bytes] = ..., has_gap: _Optional[bool] = ..., is_all: _Optional[bool] = ..., is_last: _Optional[bool] = ...) -> None: ...

class CopyResponse(_message.Message):
    __slots__ = ("version", "runs", "now_us")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    version: int
    runs: _containers.RepeatedCompositeFieldContainer[CopiedRun]
    now_us: int
    def __init__(self, version: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[CopiedRun, _Mapping]]] = ..., now_us: _Optional[int] = ...) -> None: ...

class CopiedRun(_message.Message):
    __slots__ = ("run_id", "pod_uid", "cursor", "is_read", "has_ended")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    IS_READ_FIELD_NUMBER: _ClassVar[int]
    HAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    pod_uid: str
    cursor: bytes
    is_read: bool
    has_ended: bool
    def __init__(self, run_id: _Optional[str] = ..., pod_uid: _Optional[str] = ..., cursor: _Optional[bytes] = ..., is_read: _Optional[bool] = ..., has_ended: _Optional[bool] = ...) -> None: ...

class LogCursor(_message.Message):
    __slots__ = ("pod_uid", "start", "first_time", "offset", "std_out", "std_err")
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STD_OUT_FIELD_NUMBER: _ClassVar[int]
    STD_ERR_FIELD_NUMBER: _ClassVar[int]
    pod_uid: str
    start: int
    first_time: str
    offset: int
    std_out: OpenLine
    std_err: OpenLine
    def __init__(self, pod_uid: _Optional[str] = ..., start: _Optional[int] = ..., first_time: _Optional[str] = ..., offset: _Optional[int] = ..., std_out: _Optional[_Union[OpenLine, _Mapping]] = ..., std_err: _Optional[_Union[OpenLine, _Mapping]] = ...) -> None: ...

class OpenLine(_message.Message):
    __slots__ = ("text", "is_continuation", "time_us")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    is_continuation: bool
    time_us: int
    def __init__(self, text: _Optional[bytes] = ..., is_continuation: _Optional[bool] = ..., time_us: _Optional[int] = ...) -> None: ...
