from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import envelope_pb2 as _envelope_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrepareDeviceLinkRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrepareDeviceLinkResponse(_message.Message):
    __slots__ = ("device_link_id", "device_link_token", "device_link_url")
    DEVICE_LINK_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_LINK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_LINK_URL_FIELD_NUMBER: _ClassVar[int]
    device_link_id: str
    device_link_token: str
    device_link_url: str
    def __init__(self, device_link_id: _Optional[str] = ..., device_link_token: _Optional[str] = ..., device_link_url: _Optional[str] = ...) -> None: ...

class GetDeviceLinkRequest(_message.Message):
    __slots__ = ("device_link_token", "watch_index")
    DEVICE_LINK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    device_link_token: str
    watch_index: str
    def __init__(self, device_link_token: _Optional[str] = ..., watch_index: _Optional[str] = ...) -> None: ...

class GetDeviceLinkResponse(_message.Message):
    __slots__ = ("cloud_token", "watch")
    CLOUD_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    cloud_token: str
    watch: _envelope_pb2.Watch
    def __init__(self, cloud_token: _Optional[str] = ..., watch: _Optional[_Union[_envelope_pb2.Watch, _Mapping]] = ...) -> None: ...

class CompleteDeviceLinkRequest(_message.Message):
    __slots__ = ("device_link_token", "game_id")
    DEVICE_LINK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    device_link_token: str
    game_id: str
    def __init__(self, device_link_token: _Optional[str] = ..., game_id: _Optional[str] = ...) -> None: ...

class CompleteDeviceLinkResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
