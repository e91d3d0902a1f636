from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OutcomeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_KIND_UNSPECIFIED: _ClassVar[OutcomeKind]
    OUTCOME_KIND_LISTENING: _ClassVar[OutcomeKind]
    OUTCOME_KIND_REFUSED: _ClassVar[OutcomeKind]
    OUTCOME_KIND_REMOVED: _ClassVar[OutcomeKind]
    OUTCOME_KIND_UNSERVED: _ClassVar[OutcomeKind]
OUTCOME_KIND_UNSPECIFIED: OutcomeKind
OUTCOME_KIND_LISTENING: OutcomeKind
OUTCOME_KIND_REFUSED: OutcomeKind
OUTCOME_KIND_REMOVED: OutcomeKind
OUTCOME_KIND_UNSERVED: OutcomeKind

class CountSessionsRequest(_message.Message):
    __slots__ = ("instance", "question", "is_settled", "lobbies", "node")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    IS_SETTLED_FIELD_NUMBER: _ClassVar[int]
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    instance: str
    question: int
    is_settled: bool
    lobbies: _containers.RepeatedCompositeFieldContainer[PlayerSessions]
    node: str
    def __init__(self, instance: _Optional[str] = ..., question: _Optional[int] = ..., is_settled: _Optional[bool] = ..., lobbies: _Optional[_Iterable[_Union[PlayerSessions, _Mapping]]] = ..., node: _Optional[str] = ...) -> None: ...

class PlayerSessions(_message.Message):
    __slots__ = ("owner_id", "addresses")
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    addresses: _containers.RepeatedCompositeFieldContainer[AddressSessions]
    def __init__(self, owner_id: _Optional[str] = ..., addresses: _Optional[_Iterable[_Union[AddressSessions, _Mapping]]] = ...) -> None: ...

class AddressSessions(_message.Message):
    __slots__ = ("client", "sessions")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    client: bytes
    sessions: int
    def __init__(self, client: _Optional[bytes] = ..., sessions: _Optional[int] = ...) -> None: ...

class CountSessionsResponse(_message.Message):
    __slots__ = ("lobbies",)
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    lobbies: _containers.RepeatedCompositeFieldContainer[LobbyAdmissions]
    def __init__(self, lobbies: _Optional[_Iterable[_Union[LobbyAdmissions, _Mapping]]] = ...) -> None: ...

class LobbyAdmissions(_message.Message):
    __slots__ = ("has_slot",)
    HAS_SLOT_FIELD_NUMBER: _ClassVar[int]
    has_slot: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, has_slot: _Optional[_Iterable[bool]] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("edge_id", "instance", "epoch", "version", "wait_ms", "outcomes", "question", "restore_id", "node")
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    RESTORE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    edge_id: str
    instance: str
    epoch: int
    version: int
    wait_ms: int
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    question: int
    restore_id: str
    node: str
    def __init__(self, edge_id: _Optional[str] = ..., instance: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., wait_ms: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ..., question: _Optional[int] = ..., restore_id: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("owner_id", "port_name", "port", "kind", "reason", "backend_port")
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    PORT_NAME_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BACKEND_PORT_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    port_name: str
    port: int
    kind: OutcomeKind
    reason: str
    backend_port: int
    def __init__(self, owner_id: _Optional[str] = ..., port_name: _Optional[str] = ..., port: _Optional[int] = ..., kind: _Optional[_Union[OutcomeKind, str]] = ..., reason: _Optional[str] = ..., backend_port: _Optional[int] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("epoch", "version", "is_complete", "routes", "removed", "restore_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    RESTORE_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    is_complete: bool
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    removed: _containers.RepeatedScalarFieldContainer[str]
    restore_id: str
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., is_complete: _Optional[bool] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ..., restore_id: _Optional[str] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("owner_id", "port_name", "protocol", "port", "host", "is_tls", "backend_address", "backend_port", "server_name", "sends_proxy_header", "counts_sessions", "requires_slot")
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    PORT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    IS_TLS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_PORT_FIELD_NUMBER: _ClassVar[int]
    SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    SENDS_PROXY_HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNTS_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_SLOT_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    port_name: str
    protocol: str
    port: int
    host: str
    is_tls: bool
    backend_address: str
    backend_port: int
    server_name: str
    sends_proxy_header: bool
    counts_sessions: bool
    requires_slot: bool
    def __init__(self, owner_id: _Optional[str] = ..., port_name: _Optional[str] = ..., protocol: _Optional[str] = ..., port: _Optional[int] = ..., host: _Optional[str] = ..., is_tls: _Optional[bool] = ..., backend_address: _Optional[str] = ..., backend_port: _Optional[int] = ..., server_name: _Optional[str] = ..., sends_proxy_header: _Optional[bool] = ..., counts_sessions: _Optional[bool] = ..., requires_slot: _Optional[bool] = ...) -> None: ...
