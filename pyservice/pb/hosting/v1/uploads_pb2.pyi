from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PresignedRequest(_message.Message):
    __slots__ = ("byte_offset", "content_length", "path", "url")
    BYTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    byte_offset: int
    content_length: int
    path: str
    url: str
    def __init__(self, byte_offset: _Optional[int] = ..., content_length: _Optional[int] = ..., path: _Optional[str] = ..., url: _Optional[str] = ...) -> None: ...

class CompleteUploadRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class CompleteUploadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrepareCustomAvatarUploadRequest(_message.Message):
    __slots__ = ("game_id", "path", "content_length", "mime")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MIME_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    path: str
    content_length: int
    mime: str
    def __init__(self, game_id: _Optional[str] = ..., path: _Optional[str] = ..., content_length: _Optional[int] = ..., mime: _Optional[str] = ...) -> None: ...

class PrepareCustomAvatarUploadResponse(_message.Message):
    __slots__ = ("presigned_request", "upload_id")
    PRESIGNED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    presigned_request: PresignedRequest
    upload_id: str
    def __init__(self, presigned_request: _Optional[_Union[PresignedRequest, _Mapping]] = ..., upload_id: _Optional[str] = ...) -> None: ...

class CompleteCustomAvatarUploadRequest(_message.Message):
    __slots__ = ("game_id", "upload_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    upload_id: str
    def __init__(self, game_id: _Optional[str] = ..., upload_id: _Optional[str] = ...) -> None: ...

class CompleteCustomAvatarUploadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCustomAvatarsRequest(_message.Message):
    __slots__ = ("game_id", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListCustomAvatarsResponse(_message.Message):
    __slots__ = ("custom_avatars", "cursor")
    CUSTOM_AVATARS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    custom_avatars: _containers.RepeatedCompositeFieldContainer[CustomAvatar]
    cursor: str
    def __init__(self, custom_avatars: _Optional[_Iterable[_Union[CustomAvatar, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class CustomAvatar(_message.Message):
    __slots__ = ("upload_id", "display_name", "create_ts", "url", "content_length", "complete")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    display_name: str
    create_ts: str
    url: str
    content_length: int
    complete: bool
    def __init__(self, upload_id: _Optional[str] = ..., display_name: _Optional[str] = ..., create_ts: _Optional[str] = ..., url: _Optional[str] = ..., content_length: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...

class PrepareGameBannerUploadRequest(_message.Message):
    __slots__ = ("game_id", "path", "content_length", "mime")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MIME_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    path: str
    content_length: int
    mime: str
    def __init__(self, game_id: _Optional[str] = ..., path: _Optional[str] = ..., content_length: _Optional[int] = ..., mime: _Optional[str] = ...) -> None: ...

class PrepareGameBannerUploadResponse(_message.Message):
    __slots__ = ("presigned_request", "upload_id")
    PRESIGNED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    presigned_request: PresignedRequest
    upload_id: str
    def __init__(self, presigned_request: _Optional[_Union[PresignedRequest, _Mapping]] = ..., upload_id: _Optional[str] = ...) -> None: ...

class CompleteGameBannerUploadRequest(_message.Message):
    __slots__ = ("game_id", "upload_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    upload_id: str
    def __init__(self, game_id: _Optional[str] = ..., upload_id: _Optional[str] = ...) -> None: ...

class CompleteGameBannerUploadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrepareGameLogoUploadRequest(_message.Message):
    __slots__ = ("game_id", "path", "content_length", "mime")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MIME_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    path: str
    content_length: int
    mime: str
    def __init__(self, game_id: _Optional[str] = ..., path: _Optional[str] = ..., content_length: _Optional[int] = ..., mime: _Optional[str] = ...) -> None: ...

class PrepareGameLogoUploadResponse(_message.Message):
    __slots__ = ("presigned_request", "upload_id")
    PRESIGNED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    presigned_request: PresignedRequest
    upload_id: str
    def __init__(self, presigned_request: _Optional[_Union[PresignedRequest, _Mapping]] = ..., upload_id: _Optional[str] = ...) -> None: ...

class CompleteGameLogoUploadRequest(_message.Message):
    __slots__ = ("game_id", "upload_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    upload_id: str
    def __init__(self, game_id: _Optional[str] = ..., upload_id: _Optional[str] = ...) -> None: ...

class CompleteGameLogoUploadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteCustomAvatarRequest(_message.Message):
    __slots__ = ("game_id", "upload_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    upload_id: str
    def __init__(self, game_id: _Optional[str] = ..., upload_id: _Optional[str] = ...) -> None: ...

class DeleteCustomAvatarResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteGameBannerRequest(_message.Message):
    __slots__ = ("game_id",)
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    def __init__(self, game_id: _Optional[str] = ...) -> None: ...

class DeleteGameBannerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteGameLogoRequest(_message.Message):
    __slots__ = ("game_id",)
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    def __init__(self, game_id: _Optional[str] = ...) -> None: ...

class DeleteGameLogoResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
