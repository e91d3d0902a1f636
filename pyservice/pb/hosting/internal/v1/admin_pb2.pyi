from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_KIND_UNSPECIFIED: _ClassVar[TokenKind]
    TOKEN_KIND_PUBLIC: _ClassVar[TokenKind]
    TOKEN_KIND_ENVIRONMENT: _ClassVar[TokenKind]
TOKEN_KIND_UNSPECIFIED: TokenKind
TOKEN_KIND_PUBLIC: TokenKind
TOKEN_KIND_ENVIRONMENT: TokenKind

class CreateTokenRequest(_message.Message):
    __slots__ = ("kind", "namespace", "expires_in_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    kind: TokenKind
    namespace: str
    expires_in_ms: int
    def __init__(self, kind: _Optional[_Union[TokenKind, str]] = ..., namespace: _Optional[str] = ..., expires_in_ms: _Optional[int] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("token", "token_id", "expires_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    expires_ms: int
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class RotateKeysRequest(_message.Message):
    __slots__ = ("drop_unused",)
    DROP_UNUSED_FIELD_NUMBER: _ClassVar[int]
    drop_unused: bool
    def __init__(self, drop_unused: _Optional[bool] = ...) -> None: ...

class RotateKeysResponse(_message.Message):
    __slots__ = ("current_key", "kept_keys", "dropped_keys")
    CURRENT_KEY_FIELD_NUMBER: _ClassVar[int]
    KEPT_KEYS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_KEYS_FIELD_NUMBER: _ClassVar[int]
    current_key: int
    kept_keys: _containers.RepeatedScalarFieldContainer[int]
    dropped_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, current_key: _Optional[int] = ..., kept_keys: _Optional[_Iterable[int]] = ..., dropped_keys: _Optional[_Iterable[int]] = ...) -> None: ...
