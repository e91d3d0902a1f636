from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import lobby_pb2 as _lobby_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindLobbyRequest(_message.Message):
    __slots__ = ("game_modes", "regions", "tags", "max_players", "prevent_auto_create_lobby", "captcha", "verification_data", "party_size", "client_address", "event_channels")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GAME_MODES_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    PREVENT_AUTO_CREATE_LOBBY_FIELD_NUMBER: _ClassVar[int]
    CAPTCHA_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_DATA_FIELD_NUMBER: _ClassVar[int]
    PARTY_SIZE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EVENT_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    game_modes: _containers.RepeatedScalarFieldContainer[str]
    regions: _containers.RepeatedScalarFieldContainer[str]
    tags: _containers.ScalarMap[str, str]
    max_players: int
    prevent_auto_create_lobby: bool
    captcha: Captcha
    verification_data: bytes
    party_size: int
    client_address: str
    event_channels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, game_modes: _Optional[_Iterable[str]] = ..., regions: _Optional[_Iterable[str]] = ..., tags: _Optional[_Mapping[str, str]] = ..., max_players: _Optional[int] = ..., prevent_auto_create_lobby: _Optional[bool] = ..., captcha: _Optional[_Union[Captcha, _Mapping]] = ..., verification_data: _Optional[bytes] = ..., party_size: _Optional[int] = ..., client_address: _Optional[str] = ..., event_channels: _Optional[_Iterable[str]] = ...) -> None: ...

class FindLobbyResponse(_message.Message):
    __slots__ = ("lobby", "ports", "player", "players")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _lobby_pb2.Port
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_lobby_pb2.Port, _Mapping]] = ...) -> None: ...
    LOBBY_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    lobby: _lobby_pb2.Lobby
    ports: _containers.MessageMap[str, _lobby_pb2.Port]
    player: _lobby_pb2.Player
    players: _containers.RepeatedCompositeFieldContainer[_lobby_pb2.Player]
    def __init__(self, lobby: _Optional[_Union[_lobby_pb2.Lobby, _Mapping]] = ..., ports: _Optional[_Mapping[str, _lobby_pb2.Port]] = ..., player: _Optional[_Union[_lobby_pb2.Player, _Mapping]] = ..., players: _Optional[_Iterable[_Union[_lobby_pb2.Player, _Mapping]]] = ...) -> None: ...

class CreateLobbyRequest(_message.Message):
    __slots__ = ("game_mode", "region", "publicity", "tags", "max_players", "lobby_config", "captcha", "verification_data", "party_size", "client_address", "event_channels")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GAME_MODE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    PUBLICITY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    LOBBY_CONFIG_FIELD_NUMBER: _ClassVar[int]
    CAPTCHA_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_DATA_FIELD_NUMBER: _ClassVar[int]
    PARTY_SIZE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EVENT_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    game_mode: str
    region: str
    publicity: str
    tags: _containers.ScalarMap[str, str]
    max_players: int
    lobby_config: bytes
    captcha: Captcha
    verification_data: bytes
    party_size: int
    client_address: str
    event_channels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, game_mode: _Optional[str] = ..., region: _Optional[str] = ..., publicity: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ..., max_players: _Optional[int] = ..., lobby_config: _Optional[bytes] = ..., captcha: _Optional[_Union[Captcha, _Mapping]] = ..., verification_data: _Optional[bytes] = ..., party_size: _Optional[int] = ..., client_address: _Optional[str] = ..., event_channels: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateLobbyResponse(_message.Message):
    __slots__ = ("lobby", "ports", "player", "players")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _lobby_pb2.Port
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_lobby_pb2.Port, _Mapping]] = ...) -> None: ...
    LOBBY_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    lobby: _lobby_pb2.Lobby
    ports: _containers.MessageMap[str, _lobby_pb2.Port]
    player: _lobby_pb2.Player
    players: _containers.RepeatedCompositeFieldContainer[_lobby_pb2.Player]
    def __init__(self, lobby: _Optional[_Union[_lobby_pb2.Lobby, _Mapping]] = ..., ports: _Optional[_Mapping[str, _lobby_pb2.Port]] = ..., player: _Optional[_Union[_lobby_pb2.Player, _Mapping]] = ..., players: _Optional[_Iterable[_Union[_lobby_pb2.Player, _Mapping]]] = ...) -> None: ...

class JoinLobbyRequest(_message.Message):
    __slots__ = ("lobby_id", "captcha", "verification_data", "party_size", "rejoin_token", "client_address", "event_channels")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    CAPTCHA_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_DATA_FIELD_NUMBER: _ClassVar[int]
    PARTY_SIZE_FIELD_NUMBER: _ClassVar[int]
    REJOIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EVENT_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    captcha: Captcha
    verification_data: bytes
    party_size: int
    rejoin_token: str
    client_address: str
    event_channels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lobby_id: _Optional[str] = ..., captcha: _Optional[_Union[Captcha, _Mapping]] = ..., verification_data: _Optional[bytes] = ..., party_size: _Optional[int] = ..., rejoin_token: _Optional[str] = ..., client_address: _Optional[str] = ..., event_channels: _Optional[_Iterable[str]] = ...) -> None: ...

class JoinLobbyResponse(_message.Message):
    __slots__ = ("lobby", "ports", "player", "players")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _lobby_pb2.Port
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_lobby_pb2.Port, _Mapping]] = ...) -> None: ...
    LOBBY_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    lobby: _lobby_pb2.Lobby
    ports: _containers.MessageMap[str, _lobby_pb2.Port]
    player: _lobby_pb2.Player
    players: _containers.RepeatedCompositeFieldContainer[_lobby_pb2.Player]
    def __init__(self, lobby: _Optional[_Union[_lobby_pb2.Lobby, _Mapping]] = ..., ports: _Optional[_Mapping[str, _lobby_pb2.Port]] = ..., player: _Optional[_Union[_lobby_pb2.Player, _Mapping]] = ..., players: _Optional[_Iterable[_Union[_lobby_pb2.Player, _Mapping]]] = ...) -> None: ...

class Captcha(_message.Message):
    __slots__ = ("captcha_a", "captcha_b")
    CAPTCHA_A_FIELD_NUMBER: _ClassVar[int]
    CAPTCHA_B_FIELD_NUMBER: _ClassVar[int]
    captcha_a: CaptchaAnswer
    captcha_b: CaptchaAnswer
    def __init__(self, captcha_a: _Optional[_Union[CaptchaAnswer, _Mapping]] = ..., captcha_b: _Optional[_Union[CaptchaAnswer, _Mapping]] = ...) -> None: ...

class CaptchaAnswer(_message.Message):
    __slots__ = ("client_response",)
    CLIENT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    client_response: str
    def __init__(self, client_response: _Optional[str] = ...) -> None: ...

class ListLobbiesRequest(_message.Message):
    __slots__ = ("include_state", "limit", "cursor")
    INCLUDE_STATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    include_state: bool
    limit: int
    cursor: str
    def __init__(self, include_state: _Optional[bool] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListLobbiesResponse(_message.Message):
    __slots__ = ("game_modes", "regions", "lobbies", "cursor")
    GAME_MODES_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    LOBBIES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_modes: _containers.RepeatedCompositeFieldContainer[_lobby_pb2.GameModeInfo]
    regions: _containers.RepeatedCompositeFieldContainer[_lobby_pb2.RegionInfo]
    lobbies: _containers.RepeatedCompositeFieldContainer[_lobby_pb2.LobbyInfo]
    cursor: str
    def __init__(self, game_modes: _Optional[_Iterable[_Union[_lobby_pb2.GameModeInfo, _Mapping]]] = ..., regions: _Optional[_Iterable[_Union[_lobby_pb2.RegionInfo, _Mapping]]] = ..., lobbies: _Optional[_Iterable[_Union[_lobby_pb2.LobbyInfo, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListRegionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRegionsResponse(_message.Message):
    __slots__ = ("regions",)
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[_lobby_pb2.RegionInfo]
    def __init__(self, regions: _Optional[_Iterable[_Union[_lobby_pb2.RegionInfo, _Mapping]]] = ...) -> None: ...

class GetPlayerStatisticsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPlayerStatisticsResponse(_message.Message):
    __slots__ = ("player_count", "game_modes")
    class GameModesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GameModeStatistics
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GameModeStatistics, _Mapping]] = ...) -> None: ...
    PLAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    GAME_MODES_FIELD_NUMBER: _ClassVar[int]
    player_count: int
    game_modes: _containers.MessageMap[str, GameModeStatistics]
    def __init__(self, player_count: _Optional[int] = ..., game_modes: _Optional[_Mapping[str, GameModeStatistics]] = ...) -> None: ...

class GameModeStatistics(_message.Message):
    __slots__ = ("player_count", "regions")
    class RegionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: RegionStatistics
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[RegionStatistics, _Mapping]] = ...) -> None: ...
    PLAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    player_count: int
    regions: _containers.MessageMap[str, RegionStatistics]
    def __init__(self, player_count: _Optional[int] = ..., regions: _Optional[_Mapping[str, RegionStatistics]] = ...) -> None: ...

class RegionStatistics(_message.Message):
    __slots__ = ("player_count",)
    PLAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    player_count: int
    def __init__(self, player_count: _Optional[int] = ...) -> None: ...

class PlayerConnectedRequest(_message.Message):
    __slots__ = ("player_token",)
    PLAYER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    player_token: str
    def __init__(self, player_token: _Optional[str] = ...) -> None: ...

class PlayerConnectedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlayerDisconnectedRequest(_message.Message):
    __slots__ = ("player_token", "hold_ms")
    PLAYER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    player_token: str
    hold_ms: int
    def __init__(self, player_token: _Optional[str] = ..., hold_ms: _Optional[int] = ...) -> None: ...

class PlayerDisconnectedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LobbyReadyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LobbyReadyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetLobbyClosedRequest(_message.Message):
    __slots__ = ("is_closed",)
    IS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    is_closed: bool
    def __init__(self, is_closed: _Optional[bool] = ...) -> None: ...

class SetLobbyClosedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetLobbyStateRequest(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    def __init__(self, state: _Optional[bytes] = ...) -> None: ...

class SetLobbyStateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLobbyStateRequest(_message.Message):
    __slots__ = ("lobby_id",)
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    def __init__(self, lobby_id: _Optional[str] = ...) -> None: ...

class GetLobbyStateResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    def __init__(self, state: _Optional[bytes] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("player_tokens",)
    PLAYER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    player_tokens: PlayerTokens
    def __init__(self, player_tokens: _Optional[_Union[PlayerTokens, _Mapping]] = ...) -> None: ...

class PlayerTokens(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tokens: _Optional[_Iterable[str]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AttachLobbyRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "game_mode", "region", "ports", "tags")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AttachedPort
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AttachedPort, _Mapping]] = ...) -> None: ...
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    GAME_MODE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    game_mode: str
    region: str
    ports: _containers.MessageMap[str, AttachedPort]
    tags: _containers.ScalarMap[str, str]
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., game_mode: _Optional[str] = ..., region: _Optional[str] = ..., ports: _Optional[_Mapping[str, AttachedPort]] = ..., tags: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AttachedPort(_message.Message):
    __slots__ = ("address", "port")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    address: str
    port: int
    def __init__(self, address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class AttachLobbyResponse(_message.Message):
    __slots__ = ("lobby_id", "lobby_token")
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    lobby_id: str
    lobby_token: str
    def __init__(self, lobby_id: _Optional[str] = ..., lobby_token: _Optional[str] = ...) -> None: ...

class DetachLobbyRequest(_message.Message):
    __slots__ = ("game_id", "lobby_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    lobby_id: str
    def __init__(self, game_id: _Optional[str] = ..., lobby_id: _Optional[str] = ...) -> None: ...

class DetachLobbyResponse(_message.Message):
    __slots__ = ("did_remove",)
    DID_REMOVE_FIELD_NUMBER: _ClassVar[int]
    did_remove: bool
    def __init__(self, did_remove: _Optional[bool] = ...) -> None: ...
