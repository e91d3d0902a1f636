from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SignedKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIGNED_KIND_UNSPECIFIED: _ClassVar[SignedKind]
    SIGNED_KIND_PUBLIC: _ClassVar[SignedKind]
    SIGNED_KIND_DEVELOPMENT: _ClassVar[SignedKind]
SIGNED_KIND_UNSPECIFIED: SignedKind
SIGNED_KIND_PUBLIC: SignedKind
SIGNED_KIND_DEVELOPMENT: SignedKind

class SignTokenRequest(_message.Message):
    __slots__ = ("kind", "namespace_id", "token_id", "expires_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    kind: SignedKind
    namespace_id: str
    token_id: str
    expires_ms: int
    def __init__(self, kind: _Optional[_Union[SignedKind, str]] = ..., namespace_id: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class SignTokenResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...
