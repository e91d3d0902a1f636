from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PreparedUpload(_message.Message):
    __slots__ = ("upload_id", "answer")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    answer: bytes
    def __init__(self, upload_id: _Optional[str] = ..., answer: _Optional[bytes] = ...) -> None: ...

class VersionSet(_message.Message):
    __slots__ = ("entry_id",)
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    entry_id: str
    def __init__(self, entry_id: _Optional[str] = ...) -> None: ...

class NamespacesDeleted(_message.Message):
    __slots__ = ("namespace_ids",)
    NAMESPACE_IDS_FIELD_NUMBER: _ClassVar[int]
    namespace_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace_ids: _Optional[_Iterable[str]] = ...) -> None: ...
