from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateServiceTokenRequest(_message.Message):
    __slots__ = ("game_id", "environment_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ...) -> None: ...

class CreateServiceTokenResponse(_message.Message):
    __slots__ = ("token", "token_id", "expires_ts")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TS_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    expires_ts: str
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ts: _Optional[str] = ...) -> None: ...

class CreatePublicTokenRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "reuse")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    REUSE_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    reuse: bool
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., reuse: _Optional[bool] = ...) -> None: ...

class CreatePublicTokenResponse(_message.Message):
    __slots__ = ("token", "token_id", "expires_ts")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TS_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    expires_ts: str
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ts: _Optional[str] = ...) -> None: ...

class CreateDevelopmentTokenRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "hostname", "ports", "lobby_ports")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DevelopmentPort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DevelopmentPort, _Mapping]] = ...) -> None: ...
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    LOBBY_PORTS_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    hostname: str
    ports: _containers.MessageMap[str, DevelopmentPort]
    lobby_ports: bytes
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., hostname: _Optional[str] = ..., ports: _Optional[_Mapping[str, DevelopmentPort]] = ..., lobby_ports: _Optional[bytes] = ...) -> None: ...

class DevelopmentPort(_message.Message):
    __slots__ = ("port", "port_range", "protocol")
    PORT_FIELD_NUMBER: _ClassVar[int]
    PORT_RANGE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    port: int
    port_range: DevelopmentPortRange
    protocol: str
    def __init__(self, port: _Optional[int] = ..., port_range: _Optional[_Union[DevelopmentPortRange, _Mapping]] = ..., protocol: _Optional[str] = ...) -> None: ...

class DevelopmentPortRange(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class CreateDevelopmentTokenResponse(_message.Message):
    __slots__ = ("token", "token_id", "expires_ts")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TS_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    expires_ts: str
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ts: _Optional[str] = ...) -> None: ...

class ListNamespaceTokensRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListNamespaceTokensResponse(_message.Message):
    __slots__ = ("tokens", "cursor")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenRecord]
    cursor: str
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenRecord, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class TokenRecord(_message.Message):
    __slots__ = ("token_id", "kind", "create_ts", "expires_ts", "revoke_ts", "game_id", "creator", "identity_id", "group_id")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TS_FIELD_NUMBER: _ClassVar[int]
    REVOKE_TS_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    kind: str
    create_ts: str
    expires_ts: str
    revoke_ts: str
    game_id: str
    creator: TokenCreator
    identity_id: str
    group_id: str
    def __init__(self, token_id: _Optional[str] = ..., kind: _Optional[str] = ..., create_ts: _Optional[str] = ..., expires_ts: _Optional[str] = ..., revoke_ts: _Optional[str] = ..., game_id: _Optional[str] = ..., creator: _Optional[_Union[TokenCreator, _Mapping]] = ..., identity_id: _Optional[str] = ..., group_id: _Optional[str] = ...) -> None: ...

class TokenCreator(_message.Message):
    __slots__ = ("token_id", "identity_id")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    identity_id: str
    def __init__(self, token_id: _Optional[str] = ..., identity_id: _Optional[str] = ...) -> None: ...

class RevokeNamespaceTokenRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "token_id", "cascade")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    token_id: str
    cascade: bool
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., token_id: _Optional[str] = ..., cascade: _Optional[bool] = ...) -> None: ...

class RevokeNamespaceTokenResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateGameTokenRequest(_message.Message):
    __slots__ = ("game_id",)
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    def __init__(self, game_id: _Optional[str] = ...) -> None: ...

class CreateGameTokenResponse(_message.Message):
    __slots__ = ("token", "token_id", "expires_ts")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TS_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    expires_ts: str
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_ts: _Optional[str] = ...) -> None: ...

class ListGroupTokensRequest(_message.Message):
    __slots__ = ("group_id", "limit", "cursor")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    limit: int
    cursor: str
    def __init__(self, group_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListGroupTokensResponse(_message.Message):
    __slots__ = ("tokens", "cursor")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenRecord]
    cursor: str
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenRecord, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class RevokeGroupTokenRequest(_message.Message):
    __slots__ = ("group_id", "token_id", "cascade")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    token_id: str
    cascade: bool
    def __init__(self, group_id: _Optional[str] = ..., token_id: _Optional[str] = ..., cascade: _Optional[bool] = ...) -> None: ...

class RevokeGroupTokenResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InspectTokenRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InspectTokenResponse(_message.Message):
    __slots__ = ("token_id", "identity_id", "group_id", "game_id", "expires_ts", "agent")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TS_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    identity_id: str
    group_id: str
    game_id: str
    expires_ts: str
    agent: TokenAgent
    def __init__(self, token_id: _Optional[str] = ..., identity_id: _Optional[str] = ..., group_id: _Optional[str] = ..., game_id: _Optional[str] = ..., expires_ts: _Optional[str] = ..., agent: _Optional[_Union[TokenAgent, _Mapping]] = ...) -> None: ...

class TokenAgent(_message.Message):
    __slots__ = ("identity", "game_cloud")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    GAME_CLOUD_FIELD_NUMBER: _ClassVar[int]
    identity: TokenAgentIdentity
    game_cloud: TokenAgentGameCloud
    def __init__(self, identity: _Optional[_Union[TokenAgentIdentity, _Mapping]] = ..., game_cloud: _Optional[_Union[TokenAgentGameCloud, _Mapping]] = ...) -> None: ...

class TokenAgentIdentity(_message.Message):
    __slots__ = ("identity_id",)
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    identity_id: str
    def __init__(self, identity_id: _Optional[str] = ...) -> None: ...

class TokenAgentGameCloud(_message.Message):
    __slots__ = ("game_id",)
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    def __init__(self, game_id: _Optional[str] = ...) -> None: ...
