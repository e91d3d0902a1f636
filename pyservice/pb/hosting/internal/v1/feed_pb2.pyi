from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as _configuration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ApplyRequest(_message.Message):
    __slots__ = ("configuration",)
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    configuration: _configuration_pb2.NamespaceConfiguration
    def __init__(self, configuration: _Optional[_Union[_configuration_pb2.NamespaceConfiguration, _Mapping]] = ...) -> None: ...

class ApplyManyRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ManyItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ManyItem, _Mapping]]] = ...) -> None: ...

class ManyItem(_message.Message):
    __slots__ = ("configuration", "is_check")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    IS_CHECK_FIELD_NUMBER: _ClassVar[int]
    configuration: _configuration_pb2.NamespaceConfiguration
    is_check: bool
    def __init__(self, configuration: _Optional[_Union[_configuration_pb2.NamespaceConfiguration, _Mapping]] = ..., is_check: _Optional[bool] = ...) -> None: ...

class ApplyManyResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[ApplyResponse]
    def __init__(self, answers: _Optional[_Iterable[_Union[ApplyResponse, _Mapping]]] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("applied", "stale", "refused")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    applied: Applied
    stale: Stale
    refused: Refused
    def __init__(self, applied: _Optional[_Union[Applied, _Mapping]] = ..., stale: _Optional[_Union[Stale, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("group_bytes", "total_bytes", "growth_bytes")
    GROUP_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROWTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    group_bytes: int
    total_bytes: int
    growth_bytes: int
    def __init__(self, group_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., growth_bytes: _Optional[int] = ...) -> None: ...

class Stale(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: HeldConfiguration
    def __init__(self, held: _Optional[_Union[HeldConfiguration, _Mapping]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("problems", "quota")
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    quota: QuotaUse
    def __init__(self, problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., quota: _Optional[_Union[QuotaUse, _Mapping]] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("quota", "limit", "use")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    quota: str
    limit: int
    use: int
    def __init__(self, quota: _Optional[str] = ..., limit: _Optional[int] = ..., use: _Optional[int] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("path", "reason", "held_by")
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    path: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    held_by: str
    def __init__(self, path: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., held_by: _Optional[str] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("namespace_id", "source_epoch", "revision")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    source_epoch: int
    revision: int
    def __init__(self, namespace_id: _Optional[str] = ..., source_epoch: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class RemoveResponse(_message.Message):
    __slots__ = ("removed", "stale")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    removed: Removed
    stale: Stale
    def __init__(self, removed: _Optional[_Union[Removed, _Mapping]] = ..., stale: _Optional[_Union[Stale, _Mapping]] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeldRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeldResponse(_message.Message):
    __slots__ = ("configurations", "http_address", "group_bytes", "total_bytes", "total_bytes_max")
    class GroupBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CONFIGURATIONS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUP_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    configurations: _containers.RepeatedCompositeFieldContainer[HeldConfiguration]
    http_address: str
    group_bytes: _containers.ScalarMap[str, int]
    total_bytes: int
    total_bytes_max: int
    def __init__(self, configurations: _Optional[_Iterable[_Union[HeldConfiguration, _Mapping]]] = ..., http_address: _Optional[str] = ..., group_bytes: _Optional[_Mapping[str, int]] = ..., total_bytes: _Optional[int] = ..., total_bytes_max: _Optional[int] = ...) -> None: ...

class HeldConfiguration(_message.Message):
    __slots__ = ("namespace_id", "source_epoch", "revision", "current_version_id", "name", "content")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    source_epoch: int
    revision: int
    current_version_id: str
    name: str
    content: bytes
    def __init__(self, namespace_id: _Optional[str] = ..., source_epoch: _Optional[int] = ..., revision: _Optional[int] = ..., current_version_id: _Optional[str] = ..., name: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...
