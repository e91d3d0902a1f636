from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from pyservice.pb.hosting.v1 import uploads_pb2 as _uploads_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateGameCdnSiteRequest(_message.Message):
    __slots__ = ("game_id", "display_name", "files")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    display_name: str
    files: _containers.RepeatedCompositeFieldContainer[SiteFile]
    def __init__(self, game_id: _Optional[str] = ..., display_name: _Optional[str] = ..., files: _Optional[_Iterable[_Union[SiteFile, _Mapping]]] = ...) -> None: ...

class SiteFile(_message.Message):
    __slots__ = ("path", "content_length", "content_type", "sha256")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    path: str
    content_length: int
    content_type: str
    sha256: str
    def __init__(self, path: _Optional[str] = ..., content_length: _Optional[int] = ..., content_type: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class CreateGameCdnSiteResponse(_message.Message):
    __slots__ = ("site_id", "upload_id", "presigned_requests")
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    PRESIGNED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    site_id: str
    upload_id: str
    presigned_requests: _containers.RepeatedCompositeFieldContainer[_uploads_pb2.PresignedRequest]
    def __init__(self, site_id: _Optional[str] = ..., upload_id: _Optional[str] = ..., presigned_requests: _Optional[_Iterable[_Union[_uploads_pb2.PresignedRequest, _Mapping]]] = ...) -> None: ...

class ListSitesRequest(_message.Message):
    __slots__ = ("game_id", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListSitesResponse(_message.Message):
    __slots__ = ("sites", "cursor")
    SITES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedCompositeFieldContainer[Site]
    cursor: str
    def __init__(self, sites: _Optional[_Iterable[_Union[Site, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class Site(_message.Message):
    __slots__ = ("site_id", "upload_id", "display_name", "create_ts", "content_length", "complete")
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    site_id: str
    upload_id: str
    display_name: str
    create_ts: str
    content_length: int
    complete: bool
    def __init__(self, site_id: _Optional[str] = ..., upload_id: _Optional[str] = ..., display_name: _Optional[str] = ..., create_ts: _Optional[str] = ..., content_length: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...

class DeleteSiteRequest(_message.Message):
    __slots__ = ("game_id", "site_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    site_id: str
    def __init__(self, game_id: _Optional[str] = ..., site_id: _Optional[str] = ...) -> None: ...

class DeleteSiteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
