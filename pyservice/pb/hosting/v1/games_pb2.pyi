from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import envelope_pb2 as _envelope_pb2
from pyservice.pb.hosting.v1 import groups_pb2 as _groups_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ValidateGameRequest(_message.Message):
    __slots__ = ("display_name", "name_id")
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    name_id: str
    def __init__(self, display_name: _Optional[str] = ..., name_id: _Optional[str] = ...) -> None: ...

class ValidateGameResponse(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[_envelope_pb2.FieldProblem]
    def __init__(self, errors: _Optional[_Iterable[_Union[_envelope_pb2.FieldProblem, _Mapping]]] = ...) -> None: ...

class CreateGameRequest(_message.Message):
    __slots__ = ("developer_group_id", "display_name", "name_id")
    DEVELOPER_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    developer_group_id: str
    display_name: str
    name_id: str
    def __init__(self, developer_group_id: _Optional[str] = ..., display_name: _Optional[str] = ..., name_id: _Optional[str] = ...) -> None: ...

class CreateGameResponse(_message.Message):
    __slots__ = ("game_id",)
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    def __init__(self, game_id: _Optional[str] = ...) -> None: ...

class GetGamesRequest(_message.Message):
    __slots__ = ("watch_index", "limit", "cursor")
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    watch_index: str
    limit: int
    cursor: str
    def __init__(self, watch_index: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class GetGamesResponse(_message.Message):
    __slots__ = ("games", "groups", "watch", "cursor")
    GAMES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    games: _containers.RepeatedCompositeFieldContainer[GameSummary]
    groups: _containers.RepeatedCompositeFieldContainer[_groups_pb2.GroupSummary]
    watch: _envelope_pb2.Watch
    cursor: str
    def __init__(self, games: _Optional[_Iterable[_Union[GameSummary, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[_groups_pb2.GroupSummary, _Mapping]]] = ..., watch: _Optional[_Union[_envelope_pb2.Watch, _Mapping]] = ..., cursor: _Optional[str] = ...) -> None: ...

class GameSummary(_message.Message):
    __slots__ = ("game_id", "name_id", "display_name", "url", "total_player_count", "developer", "banner_url", "logo_url")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PLAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEVELOPER_FIELD_NUMBER: _ClassVar[int]
    BANNER_URL_FIELD_NUMBER: _ClassVar[int]
    LOGO_URL_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    name_id: str
    display_name: str
    url: str
    total_player_count: int
    developer: _groups_pb2.GroupHandle
    banner_url: str
    logo_url: str
    def __init__(self, game_id: _Optional[str] = ..., name_id: _Optional[str] = ..., display_name: _Optional[str] = ..., url: _Optional[str] = ..., total_player_count: _Optional[int] = ..., developer: _Optional[_Union[_groups_pb2.GroupHandle, _Mapping]] = ..., banner_url: _Optional[str] = ..., logo_url: _Optional[str] = ...) -> None: ...

class GetGameRequest(_message.Message):
    __slots__ = ("game_id", "watch_index")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    WATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    watch_index: str
    def __init__(self, game_id: _Optional[str] = ..., watch_index: _Optional[str] = ...) -> None: ...

class GetGameResponse(_message.Message):
    __slots__ = ("game", "watch")
    GAME_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    game: Game
    watch: _envelope_pb2.Watch
    def __init__(self, game: _Optional[_Union[Game, _Mapping]] = ..., watch: _Optional[_Union[_envelope_pb2.Watch, _Mapping]] = ...) -> None: ...

class Game(_message.Message):
    __slots__ = ("game_id", "create_ts", "name_id", "display_name", "developer_group_id", "total_player_count", "logo_url", "banner_url", "namespaces", "versions", "available_regions")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVELOPER_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PLAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOGO_URL_FIELD_NUMBER: _ClassVar[int]
    BANNER_URL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_REGIONS_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    create_ts: str
    name_id: str
    display_name: str
    developer_group_id: str
    total_player_count: int
    logo_url: str
    banner_url: str
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceSummary]
    versions: _containers.RepeatedCompositeFieldContainer[VersionSummary]
    available_regions: _containers.RepeatedCompositeFieldContainer[RegionSummary]
    def __init__(self, game_id: _Optional[str] = ..., create_ts: _Optional[str] = ..., name_id: _Optional[str] = ..., display_name: _Optional[str] = ..., developer_group_id: _Optional[str] = ..., total_player_count: _Optional[int] = ..., logo_url: _Optional[str] = ..., banner_url: _Optional[str] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceSummary, _Mapping]]] = ..., versions: _Optional[_Iterable[_Union[VersionSummary, _Mapping]]] = ..., available_regions: _Optional[_Iterable[_Union[RegionSummary, _Mapping]]] = ...) -> None: ...

class NamespaceSummary(_message.Message):
    __slots__ = ("namespace_id", "create_ts", "display_name", "version_id", "name_id")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    create_ts: str
    display_name: str
    version_id: str
    name_id: str
    def __init__(self, namespace_id: _Optional[str] = ..., create_ts: _Optional[str] = ..., display_name: _Optional[str] = ..., version_id: _Optional[str] = ..., name_id: _Optional[str] = ...) -> None: ...

class VersionSummary(_message.Message):
    __slots__ = ("version_id", "create_ts", "display_name")
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    version_id: str
    create_ts: str
    display_name: str
    def __init__(self, version_id: _Optional[str] = ..., create_ts: _Optional[str] = ..., display_name: _Optional[str] = ...) -> None: ...

class RegionSummary(_message.Message):
    __slots__ = ("region_id", "region_name_id", "provider", "universal_region", "provider_display_name", "region_display_name")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_NAME_ID_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    UNIVERSAL_REGION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    REGION_DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    region_id: str
    region_name_id: str
    provider: str
    universal_region: str
    provider_display_name: str
    region_display_name: str
    def __init__(self, region_id: _Optional[str] = ..., region_name_id: _Optional[str] = ..., provider: _Optional[str] = ..., universal_region: _Optional[str] = ..., provider_display_name: _Optional[str] = ..., region_display_name: _Optional[str] = ...) -> None: ...

class DeleteGameRequest(_message.Message):
    __slots__ = ("game_id", "force")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    force: bool
    def __init__(self, game_id: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class DeleteGameResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
