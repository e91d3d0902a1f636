from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import envelope_pb2 as _envelope_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateGroupRequest(_message.Message):
    __slots__ = ("display_name",)
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    def __init__(self, display_name: _Optional[str] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class GetGroupResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: GroupSummary
    def __init__(self, group: _Optional[_Union[GroupSummary, _Mapping]] = ...) -> None: ...

class GetGroupQuotasRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class GetGroupQuotasResponse(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[GroupQuota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[GroupQuota, _Mapping]]] = ...) -> None: ...

class GroupQuota(_message.Message):
    __slots__ = ("quota", "scope", "unit", "limit", "is_default", "use", "object_id")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    quota: str
    scope: str
    unit: str
    limit: int
    is_default: bool
    use: int
    object_id: str
    def __init__(self, quota: _Optional[str] = ..., scope: _Optional[str] = ..., unit: _Optional[str] = ..., limit: _Optional[int] = ..., is_default: _Optional[bool] = ..., use: _Optional[int] = ..., object_id: _Optional[str] = ...) -> None: ...

class GetGroupAuditRequest(_message.Message):
    __slots__ = ("group_id", "limit", "cursor", "watch_index")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    limit: int
    cursor: str
    watch_index: str
    def __init__(self, group_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ..., watch_index: _Optional[str] = ...) -> None: ...

class GetGroupAuditResponse(_message.Message):
    __slots__ = ("entries", "cursor", "watch")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    cursor: str
    watch: _envelope_pb2.Watch
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., cursor: _Optional[str] = ..., watch: _Optional[_Union[_envelope_pb2.Watch, _Mapping]] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("audit_id", "ts", "actor", "operation", "outcome", "group_id", "identity_id", "token_id", "address", "game_id", "namespace_id", "object_type", "object_id", "actor_name")
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    audit_id: str
    ts: str
    actor: str
    operation: str
    outcome: str
    group_id: str
    identity_id: str
    token_id: str
    address: str
    game_id: str
    namespace_id: str
    object_type: str
    object_id: str
    actor_name: str
    def __init__(self, audit_id: _Optional[str] = ..., ts: _Optional[str] = ..., actor: _Optional[str] = ..., operation: _Optional[str] = ..., outcome: _Optional[str] = ..., group_id: _Optional[str] = ..., identity_id: _Optional[str] = ..., token_id: _Optional[str] = ..., address: _Optional[str] = ..., game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., object_type: _Optional[str] = ..., object_id: _Optional[str] = ..., actor_name: _Optional[str] = ...) -> None: ...

class GetGroupBillingRequest(_message.Message):
    __slots__ = ("group_id", "watch_index")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    watch_index: str
    def __init__(self, group_id: _Optional[str] = ..., watch_index: _Optional[str] = ...) -> None: ...

class GetGroupBillingResponse(_message.Message):
    __slots__ = ("group", "watch")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    group: GroupBilling
    watch: _envelope_pb2.Watch
    def __init__(self, group: _Optional[_Union[GroupBilling, _Mapping]] = ..., watch: _Optional[_Union[_envelope_pb2.Watch, _Mapping]] = ...) -> None: ...

class GroupBilling(_message.Message):
    __slots__ = ("payment_failed_ts", "payment_method_attached_ts", "payment_method_valid_ts", "payment_succeeded_ts")
    PAYMENT_FAILED_TS_FIELD_NUMBER: _ClassVar[int]
    PAYMENT_METHOD_ATTACHED_TS_FIELD_NUMBER: _ClassVar[int]
    PAYMENT_METHOD_VALID_TS_FIELD_NUMBER: _ClassVar[int]
    PAYMENT_SUCCEEDED_TS_FIELD_NUMBER: _ClassVar[int]
    payment_failed_ts: str
    payment_method_attached_ts: str
    payment_method_valid_ts: str
    payment_succeeded_ts: str
    def __init__(self, payment_failed_ts: _Optional[str] = ..., payment_method_attached_ts: _Optional[str] = ..., payment_method_valid_ts: _Optional[str] = ..., payment_succeeded_ts: _Optional[str] = ...) -> None: ...

class GroupHandle(_message.Message):
    __slots__ = ("group_id", "display_name", "external", "avatar_url", "is_developer")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    AVATAR_URL_FIELD_NUMBER: _ClassVar[int]
    IS_DEVELOPER_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    display_name: str
    external: GroupExternal
    avatar_url: str
    is_developer: bool
    def __init__(self, group_id: _Optional[str] = ..., display_name: _Optional[str] = ..., external: _Optional[_Union[GroupExternal, _Mapping]] = ..., avatar_url: _Optional[str] = ..., is_developer: _Optional[bool] = ...) -> None: ...

class GroupExternal(_message.Message):
    __slots__ = ("profile",)
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    profile: str
    def __init__(self, profile: _Optional[str] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group_id", "display_name", "external", "bio", "is_current_identity_member", "member_count", "owner_identity_id", "publicity", "avatar_url", "is_developer")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    BIO_FIELD_NUMBER: _ClassVar[int]
    IS_CURRENT_IDENTITY_MEMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    OWNER_IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLICITY_FIELD_NUMBER: _ClassVar[int]
    AVATAR_URL_FIELD_NUMBER: _ClassVar[int]
    IS_DEVELOPER_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    display_name: str
    external: GroupExternal
    bio: str
    is_current_identity_member: bool
    member_count: int
    owner_identity_id: str
    publicity: str
    avatar_url: str
    is_developer: bool
    def __init__(self, group_id: _Optional[str] = ..., display_name: _Optional[str] = ..., external: _Optional[_Union[GroupExternal, _Mapping]] = ..., bio: _Optional[str] = ..., is_current_identity_member: _Optional[bool] = ..., member_count: _Optional[int] = ..., owner_identity_id: _Optional[str] = ..., publicity: _Optional[str] = ..., avatar_url: _Optional[str] = ..., is_developer: _Optional[bool] = ...) -> None: ...
