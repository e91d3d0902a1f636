from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lobby(_message.Message):
    __slots__ = ("lobby_id", "region", "ports", "player")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Port
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Port, _Mapping]] = ...) -> None: ...
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    region: Region
    ports: _containers.MessageMap[str, Port]
    player: Player
    def __init__(self, lobby_id: _Optional[str] = ..., region: _Optional[_Union[Region, _Mapping]] = ..., ports: _Optional[_Mapping[str, Port]] = ..., player: _Optional[_Union[Player, _Mapping]] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("region_id", "display_name")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    region_id: str
    display_name: str
    def __init__(self, region_id: _Optional[str] = ..., display_name: _Optional[str] = ...) -> None: ...

class Player(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class Port(_message.Message):
    __slots__ = ("host", "hostname", "port", "port_range", "is_tls")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PORT_RANGE_FIELD_NUMBER: _ClassVar[int]
    IS_TLS_FIELD_NUMBER: _ClassVar[int]
    host: str
    hostname: str
    port: int
    port_range: PortRange
    is_tls: bool
    def __init__(self, host: _Optional[str] = ..., hostname: _Optional[str] = ..., port: _Optional[int] = ..., port_range: _Optional[_Union[PortRange, _Mapping]] = ..., is_tls: _Optional[bool] = ...) -> None: ...

class PortRange(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class GameModeInfo(_message.Message):
    __slots__ = ("game_mode_id",)
    GAME_MODE_ID_FIELD_NUMBER: _ClassVar[int]
    game_mode_id: str
    def __init__(self, game_mode_id: _Optional[str] = ...) -> None: ...

class RegionInfo(_message.Message):
    __slots__ = ("region_id", "provider_display_name", "region_display_name", "datacenter_coord", "datacenter_distance_from_client")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    REGION_DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    DATACENTER_COORD_FIELD_NUMBER: _ClassVar[int]
    DATACENTER_DISTANCE_FROM_CLIENT_FIELD_NUMBER: _ClassVar[int]
    region_id: str
    provider_display_name: str
    region_display_name: str
    datacenter_coord: Coordinates
    datacenter_distance_from_client: Distance
    def __init__(self, region_id: _Optional[str] = ..., provider_display_name: _Optional[str] = ..., region_display_name: _Optional[str] = ..., datacenter_coord: _Optional[_Union[Coordinates, _Mapping]] = ..., datacenter_distance_from_client: _Optional[_Union[Distance, _Mapping]] = ...) -> None: ...

class Coordinates(_message.Message):
    __slots__ = ("latitude", "longitude")
    LATITUDE_FIELD_NUMBER: _ClassVar[int]
    LONGITUDE_FIELD_NUMBER: _ClassVar[int]
    latitude: float
    longitude: float
    def __init__(self, latitude: _Optional[float] = ..., longitude: _Optional[float] = ...) -> None: ...

class Distance(_message.Message):
    __slots__ = ("kilometers", "miles")
    KILOMETERS_FIELD_NUMBER: _ClassVar[int]
    MILES_FIELD_NUMBER: _ClassVar[int]
    kilometers: float
    miles: float
    def __init__(self, kilometers: _Optional[float] = ..., miles: _Optional[float] = ...) -> None: ...

class LobbyInfo(_message.Message):
    __slots__ = ("lobby_id", "game_mode_id", "region_id", "max_players_normal", "max_players_direct", "max_players_party", "total_player_count", "state")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_MODE_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_NORMAL_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_DIRECT_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PARTY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PLAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    game_mode_id: str
    region_id: str
    max_players_normal: int
    max_players_direct: int
    max_players_party: int
    total_player_count: int
    state: bytes
    def __init__(self, lobby_id: _Optional[str] = ..., game_mode_id: _Optional[str] = ..., region_id: _Optional[str] = ..., max_players_normal: _Optional[int] = ..., max_players_direct: _Optional[int] = ..., max_players_party: _Optional[int] = ..., total_player_count: _Optional[int] = ..., state: _Optional[bytes] = ...) -> None: ...
