from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as _configuration_pb2
from pyservice.pb.hosting.internal.v1 import feed_pb2 as _feed_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartTrialRequest(_message.Message):
    __slots__ = ("configuration", "game_mode", "timeout_ms")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    GAME_MODE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    configuration: _configuration_pb2.NamespaceConfiguration
    game_mode: str
    timeout_ms: int
    def __init__(self, configuration: _Optional[_Union[_configuration_pb2.NamespaceConfiguration, _Mapping]] = ..., game_mode: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class StartTrialResponse(_message.Message):
    __slots__ = ("lobby_id", "refused")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    refused: _feed_pb2.Refused
    def __init__(self, lobby_id: _Optional[str] = ..., refused: _Optional[_Union[_feed_pb2.Refused, _Mapping]] = ...) -> None: ...
