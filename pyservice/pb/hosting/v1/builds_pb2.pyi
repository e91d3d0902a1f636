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

class ListBuildsRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "tags_json", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TAGS_JSON_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    tags_json: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., tags_json: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListBuildsResponse(_message.Message):
    __slots__ = ("builds", "cursor")
    BUILDS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    builds: _containers.RepeatedCompositeFieldContainer[Build]
    cursor: str
    def __init__(self, builds: _Optional[_Iterable[_Union[Build, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class Build(_message.Message):
    __slots__ = ("id", "name", "content_length", "created_at", "tags", "complete", "image", "problem")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    content_length: int
    created_at: str
    tags: _containers.ScalarMap[str, str]
    complete: bool
    image: str
    problem: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., content_length: _Optional[int] = ..., created_at: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ..., complete: _Optional[bool] = ..., image: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class BuildImageFile(_message.Message):
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

class PrepareBuildRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "name", "image_tag", "image_file", "kind", "compression", "multipart_upload", "image")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TAG_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FILE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    MULTIPART_UPLOAD_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    name: str
    image_tag: str
    image_file: BuildImageFile
    kind: str
    compression: str
    multipart_upload: bool
    image: str
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., name: _Optional[str] = ..., image_tag: _Optional[str] = ..., image_file: _Optional[_Union[BuildImageFile, _Mapping]] = ..., kind: _Optional[str] = ..., compression: _Optional[str] = ..., multipart_upload: _Optional[bool] = ..., image: _Optional[str] = ...) -> None: ...

class PrepareBuildResponse(_message.Message):
    __slots__ = ("build", "image_presigned_request", "image_presigned_requests")
    BUILD_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PRESIGNED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PRESIGNED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    build: Build
    image_presigned_request: _uploads_pb2.PresignedRequest
    image_presigned_requests: _containers.RepeatedCompositeFieldContainer[_uploads_pb2.PresignedRequest]
    def __init__(self, build: _Optional[_Union[Build, _Mapping]] = ..., image_presigned_request: _Optional[_Union[_uploads_pb2.PresignedRequest, _Mapping]] = ..., image_presigned_requests: _Optional[_Iterable[_Union[_uploads_pb2.PresignedRequest, _Mapping]]] = ...) -> None: ...

class CompleteBuildRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "build_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    build_id: str
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., build_id: _Optional[str] = ...) -> None: ...

class CompleteBuildResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBuildRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "build_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    build_id: str
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., build_id: _Optional[str] = ...) -> None: ...

class GetBuildResponse(_message.Message):
    __slots__ = ("build",)
    BUILD_FIELD_NUMBER: _ClassVar[int]
    build: Build
    def __init__(self, build: _Optional[_Union[Build, _Mapping]] = ...) -> None: ...

class PatchBuildTagsRequest(_message.Message):
    __slots__ = ("game_id", "environment_id", "build_id", "tags", "exclusive_tags")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_TAGS_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    build_id: str
    tags: bytes
    exclusive_tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., build_id: _Optional[str] = ..., tags: _Optional[bytes] = ..., exclusive_tags: _Optional[_Iterable[str]] = ...) -> None: ...

class PatchBuildTagsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGameBuildsRequest(_message.Message):
    __slots__ = ("game_id", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListGameBuildsResponse(_message.Message):
    __slots__ = ("builds", "cursor")
    BUILDS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    builds: _containers.RepeatedCompositeFieldContainer[BuildSummary]
    cursor: str
    def __init__(self, builds: _Optional[_Iterable[_Union[BuildSummary, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class BuildSummary(_message.Message):
    __slots__ = ("build_id", "upload_id", "display_name", "create_ts", "content_length", "complete", "tags", "image", "problem")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    build_id: str
    upload_id: str
    display_name: str
    create_ts: str
    content_length: int
    complete: bool
    tags: _containers.ScalarMap[str, str]
    image: str
    problem: str
    def __init__(self, build_id: _Optional[str] = ..., upload_id: _Optional[str] = ..., display_name: _Optional[str] = ..., create_ts: _Optional[str] = ..., content_length: _Optional[int] = ..., complete: _Optional[bool] = ..., tags: _Optional[_Mapping[str, str]] = ..., image: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class CreateGameBuildRequest(_message.Message):
    __slots__ = ("game_id", "display_name", "image_tag", "image_file", "kind", "compression", "multipart_upload", "image")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TAG_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FILE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    MULTIPART_UPLOAD_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    display_name: str
    image_tag: str
    image_file: BuildImageFile
    kind: str
    compression: str
    multipart_upload: bool
    image: str
    def __init__(self, game_id: _Optional[str] = ..., display_name: _Optional[str] = ..., image_tag: _Optional[str] = ..., image_file: _Optional[_Union[BuildImageFile, _Mapping]] = ..., kind: _Optional[str] = ..., compression: _Optional[str] = ..., multipart_upload: _Optional[bool] = ..., image: _Optional[str] = ...) -> None: ...

class CreateGameBuildResponse(_message.Message):
    __slots__ = ("build_id", "upload_id", "image_presigned_request", "image_presigned_requests")
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PRESIGNED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PRESIGNED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    build_id: str
    upload_id: str
    image_presigned_request: _uploads_pb2.PresignedRequest
    image_presigned_requests: _containers.RepeatedCompositeFieldContainer[_uploads_pb2.PresignedRequest]
    def __init__(self, build_id: _Optional[str] = ..., upload_id: _Optional[str] = ..., image_presigned_request: _Optional[_Union[_uploads_pb2.PresignedRequest, _Mapping]] = ..., image_presigned_requests: _Optional[_Iterable[_Union[_uploads_pb2.PresignedRequest, _Mapping]]] = ...) -> None: ...

class DeleteGameBuildRequest(_message.Message):
    __slots__ = ("game_id", "build_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    build_id: str
    def __init__(self, game_id: _Optional[str] = ..., build_id: _Optional[str] = ...) -> None: ...

class DeleteGameBuildResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
