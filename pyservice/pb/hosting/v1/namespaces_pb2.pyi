from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import envelope_pb2 as _envelope_pb2
from pyservice.pb.hosting.v1 import games_pb2 as _games_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ValidateNamespaceRequest(_message.Message):
    __slots__ = ("game_id", "display_name", "name_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    display_name: str
    name_id: str
    def __init__(self, game_id: _Optional[str] = ..., display_name: _Optional[str] = ..., name_id: _Optional[str] = ...) -> None: ...

class ValidateNamespaceResponse(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[_envelope_pb2.FieldProblem]
    def __init__(self, errors: _Optional[_Iterable[_Union[_envelope_pb2.FieldProblem, _Mapping]]] = ...) -> None: ...

class CreateNamespaceRequest(_message.Message):
    __slots__ = ("game_id", "display_name", "name_id", "version_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    display_name: str
    name_id: str
    version_id: str
    def __init__(self, game_id: _Optional[str] = ..., display_name: _Optional[str] = ..., name_id: _Optional[str] = ..., version_id: _Optional[str] = ...) -> None: ...

class CreateNamespaceResponse(_message.Message):
    __slots__ = ("namespace_id",)
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    def __init__(self, namespace_id: _Optional[str] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ("game_id", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListNamespacesResponse(_message.Message):
    __slots__ = ("namespaces", "cursor")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[_games_pb2.NamespaceSummary]
    cursor: str
    def __init__(self, namespaces: _Optional[_Iterable[_Union[_games_pb2.NamespaceSummary, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class GetNamespaceRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class GetNamespaceResponse(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("namespace_id", "create_ts", "display_name", "version_id", "name_id", "config", "site_url")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SITE_URL_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    create_ts: str
    display_name: str
    version_id: str
    name_id: str
    config: NamespaceConfig
    site_url: str
    def __init__(self, namespace_id: _Optional[str] = ..., create_ts: _Optional[str] = ..., display_name: _Optional[str] = ..., version_id: _Optional[str] = ..., name_id: _Optional[str] = ..., config: _Optional[_Union[NamespaceConfig, _Mapping]] = ..., site_url: _Optional[str] = ...) -> None: ...

class NamespaceConfig(_message.Message):
    __slots__ = ("cdn", "matchmaker", "kv", "identity")
    CDN_FIELD_NUMBER: _ClassVar[int]
    MATCHMAKER_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    cdn: CdnNamespaceConfig
    matchmaker: MatchmakerNamespaceConfig
    kv: EmptyConfig
    identity: EmptyConfig
    def __init__(self, cdn: _Optional[_Union[CdnNamespaceConfig, _Mapping]] = ..., matchmaker: _Optional[_Union[MatchmakerNamespaceConfig, _Mapping]] = ..., kv: _Optional[_Union[EmptyConfig, _Mapping]] = ..., identity: _Optional[_Union[EmptyConfig, _Mapping]] = ...) -> None: ...

class EmptyConfig(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CdnNamespaceConfig(_message.Message):
    __slots__ = ("enable_domain_public_auth", "domains", "auth_type", "auth_user_list")
    ENABLE_DOMAIN_PUBLIC_AUTH_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    AUTH_TYPE_FIELD_NUMBER: _ClassVar[int]
    AUTH_USER_LIST_FIELD_NUMBER: _ClassVar[int]
    enable_domain_public_auth: bool
    domains: _containers.RepeatedCompositeFieldContainer[Domain]
    auth_type: str
    auth_user_list: _containers.RepeatedCompositeFieldContainer[AuthUser]
    def __init__(self, enable_domain_public_auth: _Optional[bool] = ..., domains: _Optional[_Iterable[_Union[Domain, _Mapping]]] = ..., auth_type: _Optional[str] = ..., auth_user_list: _Optional[_Iterable[_Union[AuthUser, _Mapping]]] = ...) -> None: ...

class Domain(_message.Message):
    __slots__ = ("domain", "create_ts", "verification_status", "verification_method", "verification_errors")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    CREATE_TS_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_STATUS_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_METHOD_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_ERRORS_FIELD_NUMBER: _ClassVar[int]
    domain: str
    create_ts: str
    verification_status: str
    verification_method: EmptyConfig
    verification_errors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, domain: _Optional[str] = ..., create_ts: _Optional[str] = ..., verification_status: _Optional[str] = ..., verification_method: _Optional[_Union[EmptyConfig, _Mapping]] = ..., verification_errors: _Optional[_Iterable[str]] = ...) -> None: ...

class AuthUser(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class MatchmakerNamespaceConfig(_message.Message):
    __slots__ = ("lobby_count_max", "max_players_per_client", "max_players_per_client_vpn", "max_players_per_client_proxy", "max_players_per_client_tor", "max_players_per_client_hosting")
    LOBBY_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PER_CLIENT_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PER_CLIENT_VPN_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PER_CLIENT_PROXY_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PER_CLIENT_TOR_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PER_CLIENT_HOSTING_FIELD_NUMBER: _ClassVar[int]
    lobby_count_max: int
    max_players_per_client: int
    max_players_per_client_vpn: int
    max_players_per_client_proxy: int
    max_players_per_client_tor: int
    max_players_per_client_hosting: int
    def __init__(self, lobby_count_max: _Optional[int] = ..., max_players_per_client: _Optional[int] = ..., max_players_per_client_vpn: _Optional[int] = ..., max_players_per_client_proxy: _Optional[int] = ..., max_players_per_client_tor: _Optional[int] = ..., max_players_per_client_hosting: _Optional[int] = ...) -> None: ...

class UpdateNamespaceVersionRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "version_id", "expected_version_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    version_id: str
    expected_version_id: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., version_id: _Optional[str] = ..., expected_version_id: _Optional[str] = ...) -> None: ...

class UpdateNamespaceVersionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetVersionHistoryRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "anchor", "limit", "cursor")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    anchor: str
    limit: int
    cursor: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., anchor: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class GetVersionHistoryResponse(_message.Message):
    __slots__ = ("versions", "cursor")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[NamespaceVersion]
    cursor: str
    def __init__(self, versions: _Optional[_Iterable[_Union[NamespaceVersion, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class NamespaceVersion(_message.Message):
    __slots__ = ("namespace_id", "version_id", "deploy_ts")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOY_TS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    version_id: str
    deploy_ts: str
    def __init__(self, namespace_id: _Optional[str] = ..., version_id: _Optional[str] = ..., deploy_ts: _Optional[str] = ...) -> None: ...

class UpdateMatchmakerConfigRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "lobby_count_max", "max_players")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    lobby_count_max: int
    max_players: int
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., lobby_count_max: _Optional[int] = ..., max_players: _Optional[int] = ...) -> None: ...

class UpdateMatchmakerConfigResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PatchMatchmakerConfigRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "lobby_count_max", "max_players_per_client")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_PER_CLIENT_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    lobby_count_max: int
    max_players_per_client: int
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., lobby_count_max: _Optional[int] = ..., max_players_per_client: _Optional[int] = ...) -> None: ...

class PatchMatchmakerConfigResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ValidateMatchmakerConfigRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "lobby_count_max", "max_players")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LOBBY_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_PLAYERS_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    lobby_count_max: int
    max_players: int
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., lobby_count_max: _Optional[int] = ..., max_players: _Optional[int] = ...) -> None: ...

class ValidateMatchmakerConfigResponse(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[_envelope_pb2.FieldProblem]
    def __init__(self, errors: _Optional[_Iterable[_Union[_envelope_pb2.FieldProblem, _Mapping]]] = ...) -> None: ...

class SetDomainPublicAuthRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "enabled")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    enabled: bool
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., enabled: _Optional[bool] = ...) -> None: ...

class SetDomainPublicAuthResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddDomainRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "domain")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    domain: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., domain: _Optional[str] = ...) -> None: ...

class AddDomainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveDomainRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "domain")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    domain: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., domain: _Optional[str] = ...) -> None: ...

class RemoveDomainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetCdnAuthRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "auth_type")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    AUTH_TYPE_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    auth_type: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., auth_type: _Optional[str] = ...) -> None: ...

class SetCdnAuthResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetAuthUserRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "user", "password")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    user: str
    password: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., user: _Optional[str] = ..., password: _Optional[str] = ...) -> None: ...

class SetAuthUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveAuthUserRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "user")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    user: str
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class RemoveAuthUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteNamespaceRequest(_message.Message):
    __slots__ = ("game_id", "namespace_id", "force")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    namespace_id: str
    force: bool
    def __init__(self, game_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class DeleteNamespaceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
