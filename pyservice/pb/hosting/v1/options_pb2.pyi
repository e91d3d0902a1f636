from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Credential(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CREDENTIAL_UNSPECIFIED: _ClassVar[Credential]
    CREDENTIAL_NONE: _ClassVar[Credential]
    CREDENTIAL_ORIGIN: _ClassVar[Credential]
    CREDENTIAL_PUBLIC: _ClassVar[Credential]
    CREDENTIAL_ENVIRONMENT: _ClassVar[Credential]
    CREDENTIAL_DEVELOPMENT: _ClassVar[Credential]
    CREDENTIAL_LOBBY: _ClassVar[Credential]
    CREDENTIAL_CLOUD: _ClassVar[Credential]
    CREDENTIAL_CHANNEL: _ClassVar[Credential]

class RawJson(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RAW_JSON_UNSPECIFIED: _ClassVar[RawJson]
    RAW_JSON_VALUE: _ClassVar[RawJson]
    RAW_JSON_OBJECT: _ClassVar[RawJson]
CREDENTIAL_UNSPECIFIED: Credential
CREDENTIAL_NONE: Credential
CREDENTIAL_ORIGIN: Credential
CREDENTIAL_PUBLIC: Credential
CREDENTIAL_ENVIRONMENT: Credential
CREDENTIAL_DEVELOPMENT: Credential
CREDENTIAL_LOBBY: Credential
CREDENTIAL_CLOUD: Credential
CREDENTIAL_CHANNEL: Credential
RAW_JSON_UNSPECIFIED: RawJson
RAW_JSON_VALUE: RawJson
RAW_JSON_OBJECT: RawJson
OPERATION_FIELD_NUMBER: _ClassVar[int]
operation: _descriptor.FieldDescriptor
FORM_FIELD_NUMBER: _ClassVar[int]
form: _descriptor.FieldDescriptor

class Operation(_message.Message):
    __slots__ = ("slug", "body_limit_bytes", "credentials", "errors", "ignores_key")
    SLUG_FIELD_NUMBER: _ClassVar[int]
    BODY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    IGNORES_KEY_FIELD_NUMBER: _ClassVar[int]
    slug: str
    body_limit_bytes: int
    credentials: _containers.RepeatedScalarFieldContainer[Credential]
    errors: _containers.RepeatedScalarFieldContainer[str]
    ignores_key: bool
    def __init__(self, slug: _Optional[str] = ..., body_limit_bytes: _Optional[int] = ..., credentials: _Optional[_Iterable[_Union[Credential, str]]] = ..., errors: _Optional[_Iterable[str]] = ..., ignores_key: _Optional[bool] = ...) -> None: ...

class FieldForm(_message.Message):
    __slots__ = ("always_null", "omit_empty", "unwrap", "raw_json", "plain_text")
    ALWAYS_NULL_FIELD_NUMBER: _ClassVar[int]
    OMIT_EMPTY_FIELD_NUMBER: _ClassVar[int]
    UNWRAP_FIELD_NUMBER: _ClassVar[int]
    RAW_JSON_FIELD_NUMBER: _ClassVar[int]
    PLAIN_TEXT_FIELD_NUMBER: _ClassVar[int]
    always_null: bool
    omit_empty: bool
    unwrap: bool
    raw_json: RawJson
    plain_text: bool
    def __init__(self, always_null: _Optional[bool] = ..., omit_empty: _Optional[bool] = ..., unwrap: _Optional[bool] = ..., raw_json: _Optional[_Union[RawJson, str]] = ..., plain_text: _Optional[bool] = ...) -> None: ...
