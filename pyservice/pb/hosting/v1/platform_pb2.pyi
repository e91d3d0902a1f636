from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.api import annotations_pb2 as _annotations_pb2
from pyservice.pb.hosting.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetBootstrapRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBootstrapResponse(_message.Message):
    __slots__ = ("access", "captcha", "cluster", "domains", "login_methods", "origins")
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    CAPTCHA_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    LOGIN_METHODS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    access: str
    captcha: BootstrapCaptcha
    cluster: str
    domains: BootstrapDomains
    login_methods: LoginMethods
    origins: BootstrapOrigins
    def __init__(self, access: _Optional[str] = ..., captcha: _Optional[_Union[BootstrapCaptcha, _Mapping]] = ..., cluster: _Optional[str] = ..., domains: _Optional[_Union[BootstrapDomains, _Mapping]] = ..., login_methods: _Optional[_Union[LoginMethods, _Mapping]] = ..., origins: _Optional[_Union[BootstrapOrigins, _Mapping]] = ...) -> None: ...

class BootstrapCaptcha(_message.Message):
    __slots__ = ("captcha_b",)
    CAPTCHA_B_FIELD_NUMBER: _ClassVar[int]
    captcha_b: BootstrapCaptchaB
    def __init__(self, captcha_b: _Optional[_Union[BootstrapCaptchaB, _Mapping]] = ...) -> None: ...

class BootstrapCaptchaB(_message.Message):
    __slots__ = ("site_key",)
    SITE_KEY_FIELD_NUMBER: _ClassVar[int]
    site_key: str
    def __init__(self, site_key: _Optional[str] = ...) -> None: ...

class BootstrapDomains(_message.Message):
    __slots__ = ("cdn", "job", "main", "open_backend")
    CDN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MAIN_FIELD_NUMBER: _ClassVar[int]
    OPEN_BACKEND_FIELD_NUMBER: _ClassVar[int]
    cdn: str
    job: str
    main: str
    open_backend: str
    def __init__(self, cdn: _Optional[str] = ..., job: _Optional[str] = ..., main: _Optional[str] = ..., open_backend: _Optional[str] = ...) -> None: ...

class LoginMethods(_message.Message):
    __slots__ = ("access_token", "email")
    ACCESS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EMAIL_FIELD_NUMBER: _ClassVar[int]
    access_token: bool
    email: bool
    def __init__(self, access_token: _Optional[bool] = ..., email: _Optional[bool] = ...) -> None: ...

class BootstrapOrigins(_message.Message):
    __slots__ = ("hub", "api")
    HUB_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    hub: str
    api: str
    def __init__(self, hub: _Optional[str] = ..., api: _Optional[str] = ...) -> None: ...

class GetRegionTiersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRegionTiersResponse(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[RegionTier]
    def __init__(self, tiers: _Optional[_Iterable[_Union[RegionTier, _Mapping]]] = ...) -> None: ...

class RegionTier(_message.Message):
    __slots__ = ("tier_name_id", "bandwidth", "cpu", "disk", "memory", "service_cores_numerator", "service_cores_denominator")
    TIER_NAME_ID_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CORES_NUMERATOR_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CORES_DENOMINATOR_FIELD_NUMBER: _ClassVar[int]
    tier_name_id: str
    bandwidth: int
    cpu: int
    disk: int
    memory: int
    service_cores_numerator: int
    service_cores_denominator: int
    def __init__(self, tier_name_id: _Optional[str] = ..., bandwidth: _Optional[int] = ..., cpu: _Optional[int] = ..., disk: _Optional[int] = ..., memory: _Optional[int] = ..., service_cores_numerator: _Optional[int] = ..., service_cores_denominator: _Optional[int] = ...) -> None: ...

class ListDatacentersRequest(_message.Message):
    __slots__ = ("game_id", "environment_id")
    GAME_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    game_id: str
    environment_id: str
    def __init__(self, game_id: _Optional[str] = ..., environment_id: _Optional[str] = ...) -> None: ...

class ListDatacentersResponse(_message.Message):
    __slots__ = ("datacenters",)
    DATACENTERS_FIELD_NUMBER: _ClassVar[int]
    datacenters: _containers.RepeatedCompositeFieldContainer[Datacenter]
    def __init__(self, datacenters: _Optional[_Iterable[_Union[Datacenter, _Mapping]]] = ...) -> None: ...

class Datacenter(_message.Message):
    __slots__ = ("id", "slug", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    SLUG_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    slug: str
    name: str
    def __init__(self, id: _Optional[str] = ..., slug: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...
