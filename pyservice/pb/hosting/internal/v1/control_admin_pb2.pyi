from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from pyservice.pb.hosting.internal.v1 import admin_pb2 as _admin_pb2
from pyservice.pb.hosting.v1 import groups_pb2 as _groups_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BillingEvent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BILLING_EVENT_UNSPECIFIED: _ClassVar[BillingEvent]
    BILLING_EVENT_PAYMENT_FAILED: _ClassVar[BillingEvent]
    BILLING_EVENT_PAYMENT_METHOD_ATTACHED: _ClassVar[BillingEvent]
    BILLING_EVENT_PAYMENT_METHOD_VALID: _ClassVar[BillingEvent]
    BILLING_EVENT_PAYMENT_SUCCEEDED: _ClassVar[BillingEvent]
BILLING_EVENT_UNSPECIFIED: BillingEvent
BILLING_EVENT_PAYMENT_FAILED: BillingEvent
BILLING_EVENT_PAYMENT_METHOD_ATTACHED: BillingEvent
BILLING_EVENT_PAYMENT_METHOD_VALID: BillingEvent
BILLING_EVENT_PAYMENT_SUCCEEDED: BillingEvent

class CreateIdentityRequest(_message.Message):
    __slots__ = ("display_name", "operator")
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    operator: str
    def __init__(self, display_name: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class CreateIdentityResponse(_message.Message):
    __slots__ = ("identity_id",)
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    identity_id: str
    def __init__(self, identity_id: _Optional[str] = ...) -> None: ...

class ListIdentitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListIdentitiesResponse(_message.Message):
    __slots__ = ("identities",)
    IDENTITIES_FIELD_NUMBER: _ClassVar[int]
    identities: _containers.RepeatedCompositeFieldContainer[IdentityRecord]
    def __init__(self, identities: _Optional[_Iterable[_Union[IdentityRecord, _Mapping]]] = ...) -> None: ...

class IdentityRecord(_message.Message):
    __slots__ = ("identity_id", "display_name", "create_ms", "group_ids", "disable_ms")
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    DISABLE_MS_FIELD_NUMBER: _ClassVar[int]
    identity_id: str
    display_name: str
    create_ms: int
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    disable_ms: int
    def __init__(self, identity_id: _Optional[str] = ..., display_name: _Optional[str] = ..., create_ms: _Optional[int] = ..., group_ids: _Optional[_Iterable[str]] = ..., disable_ms: _Optional[int] = ...) -> None: ...

class AdminCreateGroupRequest(_message.Message):
    __slots__ = ("display_name", "owner_identity_id", "operator")
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    owner_identity_id: str
    operator: str
    def __init__(self, display_name: _Optional[str] = ..., owner_identity_id: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class AdminCreateGroupResponse(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("group_id", "display_name", "bio", "publicity", "operator")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    BIO_FIELD_NUMBER: _ClassVar[int]
    PUBLICITY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    display_name: str
    bio: str
    publicity: str
    operator: str
    def __init__(self, group_id: _Optional[str] = ..., display_name: _Optional[str] = ..., bio: _Optional[str] = ..., publicity: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class UpdateGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupRecord]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupRecord, _Mapping]]] = ...) -> None: ...

class GroupRecord(_message.Message):
    __slots__ = ("group_id", "display_name", "owner_identity_id", "create_ms", "member_ids", "bio", "publicity")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    BIO_FIELD_NUMBER: _ClassVar[int]
    PUBLICITY_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    display_name: str
    owner_identity_id: str
    create_ms: int
    member_ids: _containers.RepeatedScalarFieldContainer[str]
    bio: str
    publicity: str
    def __init__(self, group_id: _Optional[str] = ..., display_name: _Optional[str] = ..., owner_identity_id: _Optional[str] = ..., create_ms: _Optional[int] = ..., member_ids: _Optional[_Iterable[str]] = ..., bio: _Optional[str] = ..., publicity: _Optional[str] = ...) -> None: ...

class AddMemberRequest(_message.Message):
    __slots__ = ("group_id", "identity_id", "operator")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    identity_id: str
    operator: str
    def __init__(self, group_id: _Optional[str] = ..., identity_id: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class AddMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("group_id", "identity_id", "operator")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    identity_id: str
    operator: str
    def __init__(self, group_id: _Optional[str] = ..., identity_id: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class RemoveMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateCloudTokenRequest(_message.Message):
    __slots__ = ("group_id", "game_id", "all_groups", "identity_id", "expires_in_ms", "operator")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ALL_GROUPS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    game_id: str
    all_groups: bool
    identity_id: str
    expires_in_ms: int
    operator: str
    def __init__(self, group_id: _Optional[str] = ..., game_id: _Optional[str] = ..., all_groups: _Optional[bool] = ..., identity_id: _Optional[str] = ..., expires_in_ms: _Optional[int] = ..., operator: _Optional[str] = ...) -> None: ...

class CreateCloudTokenResponse(_message.Message):
    __slots__ = ("token", "token_id", "expires_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    expires_ms: int
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class CreateNamespaceTokenRequest(_message.Message):
    __slots__ = ("kind", "namespace", "expires_in_ms", "operator")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    kind: _admin_pb2.TokenKind
    namespace: str
    expires_in_ms: int
    operator: str
    def __init__(self, kind: _Optional[_Union[_admin_pb2.TokenKind, str]] = ..., namespace: _Optional[str] = ..., expires_in_ms: _Optional[int] = ..., operator: _Optional[str] = ...) -> None: ...

class CreateNamespaceTokenResponse(_message.Message):
    __slots__ = ("token", "token_id", "expires_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    expires_ms: int
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ("identity_id", "group_id", "kind", "with_ended", "before_token_id")
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WITH_ENDED_FIELD_NUMBER: _ClassVar[int]
    BEFORE_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    identity_id: str
    group_id: str
    kind: str
    with_ended: bool
    before_token_id: str
    def __init__(self, identity_id: _Optional[str] = ..., group_id: _Optional[str] = ..., kind: _Optional[str] = ..., with_ended: _Optional[bool] = ..., before_token_id: _Optional[str] = ...) -> None: ...

class ListTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[ListedToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[ListedToken, _Mapping]]] = ...) -> None: ...

class ListedToken(_message.Message):
    __slots__ = ("token_id", "kind", "state", "identity_id", "display_name", "group_id", "game_id", "namespace", "creator_token_id", "create_ms", "expires_ms", "revoke_ms")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CREATOR_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    REVOKE_MS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    kind: str
    state: str
    identity_id: str
    display_name: str
    group_id: str
    game_id: str
    namespace: str
    creator_token_id: str
    create_ms: int
    expires_ms: int
    revoke_ms: int
    def __init__(self, token_id: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., identity_id: _Optional[str] = ..., display_name: _Optional[str] = ..., group_id: _Optional[str] = ..., game_id: _Optional[str] = ..., namespace: _Optional[str] = ..., creator_token_id: _Optional[str] = ..., create_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., revoke_ms: _Optional[int] = ...) -> None: ...

class RevokeTokensRequest(_message.Message):
    __slots__ = ("token_ids", "cascade", "operator")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[str]
    cascade: bool
    operator: str
    def __init__(self, token_ids: _Optional[_Iterable[str]] = ..., cascade: _Optional[bool] = ..., operator: _Optional[str] = ...) -> None: ...

class RevokeTokensResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DisableIdentityRequest(_message.Message):
    __slots__ = ("identity_id", "operator")
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    identity_id: str
    operator: str
    def __init__(self, identity_id: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class DisableIdentityResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EnableIdentityRequest(_message.Message):
    __slots__ = ("identity_id", "operator")
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    identity_id: str
    operator: str
    def __init__(self, identity_id: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class EnableIdentityResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordBillingRequest(_message.Message):
    __slots__ = ("group_id", "event", "ts_ms", "operator")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    event: BillingEvent
    ts_ms: int
    operator: str
    def __init__(self, group_id: _Optional[str] = ..., event: _Optional[_Union[BillingEvent, str]] = ..., ts_ms: _Optional[int] = ..., operator: _Optional[str] = ...) -> None: ...

class RecordBillingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RotateControlKeysRequest(_message.Message):
    __slots__ = ("drop_unused", "operator")
    DROP_UNUSED_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    drop_unused: bool
    operator: str
    def __init__(self, drop_unused: _Optional[bool] = ..., operator: _Optional[str] = ...) -> None: ...

class RotateControlKeysResponse(_message.Message):
    __slots__ = ("current_key", "kept_keys", "dropped_keys")
    CURRENT_KEY_FIELD_NUMBER: _ClassVar[int]
    KEPT_KEYS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_KEYS_FIELD_NUMBER: _ClassVar[int]
    current_key: int
    kept_keys: _containers.RepeatedScalarFieldContainer[int]
    dropped_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, current_key: _Optional[int] = ..., kept_keys: _Optional[_Iterable[int]] = ..., dropped_keys: _Optional[_Iterable[int]] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[_groups_pb2.GroupQuota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[_groups_pb2.GroupQuota, _Mapping]]] = ...) -> None: ...

class SetQuotasRequest(_message.Message):
    __slots__ = ("group_id", "limits", "operator")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    limits: _containers.ScalarMap[str, int]
    operator: str
    def __init__(self, group_id: _Optional[str] = ..., limits: _Optional[_Mapping[str, int]] = ..., operator: _Optional[str] = ...) -> None: ...

class SetQuotasResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetQuotasRequest(_message.Message):
    __slots__ = ("group_id", "quotas", "operator")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    quotas: _containers.RepeatedScalarFieldContainer[str]
    operator: str
    def __init__(self, group_id: _Optional[str] = ..., quotas: _Optional[_Iterable[str]] = ..., operator: _Optional[str] = ...) -> None: ...

class ResetQuotasResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("group_id", "identity_id", "since_ms", "limit")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    identity_id: str
    since_ms: int
    limit: int
    def __init__(self, group_id: _Optional[str] = ..., identity_id: _Optional[str] = ..., since_ms: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[_groups_pb2.AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[_groups_pb2.AuditEntry, _Mapping]]] = ...) -> None: ...

class ListOrphansRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListOrphansResponse(_message.Message):
    __slots__ = ("orphans",)
    ORPHANS_FIELD_NUMBER: _ClassVar[int]
    orphans: _containers.RepeatedCompositeFieldContainer[Orphan]
    def __init__(self, orphans: _Optional[_Iterable[_Union[Orphan, _Mapping]]] = ...) -> None: ...

class Orphan(_message.Message):
    __slots__ = ("namespace_id", "name", "source_epoch")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    name: str
    source_epoch: int
    def __init__(self, namespace_id: _Optional[str] = ..., name: _Optional[str] = ..., source_epoch: _Optional[int] = ...) -> None: ...

class RemoveOrphansRequest(_message.Message):
    __slots__ = ("namespace_ids", "all", "operator")
    NAMESPACE_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    namespace_ids: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    operator: str
    def __init__(self, namespace_ids: _Optional[_Iterable[str]] = ..., all: _Optional[bool] = ..., operator: _Optional[str] = ...) -> None: ...

class RemoveOrphansResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.RepeatedCompositeFieldContainer[Orphan]
    def __init__(self, removed: _Optional[_Iterable[_Union[Orphan, _Mapping]]] = ...) -> None: ...
