"""Settings of the service: what may be set, where it comes from, every problem at once.

Flags beat the environment (`PYSERVICE_...`), which beats a TOML file. This is the only module
that reads the environment. What a setting does is its reader's matter.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

PREFIX: Final = "PYSERVICE_"
_NOT_SETTINGS: Final = frozenset({"PYSERVICE_CONFIG", "PYSERVICE_URL", "PYSERVICE_TOKEN"})
"""Variables of the command line: where the file is, and what client commands talk to."""

_NAME_ID: Final = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})
_SOCKET_PATH_MAX: Final = 107
"""What the kernel takes as the path of a unix socket, in bytes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the settings: where it is, and what."""

    source: str
    name: str
    message: str

    def __str__(self) -> str:
        where = f"{self.name}: " if self.name else ""
        return f"{where}{self.message} ({self.source})"


class SettingsError(Exception):
    """The settings cannot be used. `problems` has all of them; `usable` the settings without what
    is wrong, for whoever looks for more.
    """

    def __init__(self, problems: list[Problem], usable: Settings | None = None) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.usable = usable


class ListenAddress(NamedTuple):
    """Where a listener is bound. Port 0: the system picks."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _listen_address(value: object) -> object:
    if isinstance(value, ListenAddress):
        return value
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", str(value))
    if match is None or int(match[3]) > 65535:
        raise ValueError("must be host:port, such as 127.0.0.1:8080 or [::1]:0")
    return ListenAddress(match[1] or match[2], int(match[3]))


def _list(value: object) -> object:
    """In the environment a list is JSON, or words separated by commas."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
    return [word.strip() for word in value.split(",") if word.strip()]


def _origin(value: object) -> object:
    text = str(value).rstrip("/")
    if text != "*" and not re.fullmatch(r"https?://[^\s/?#]+", text):
        raise ValueError("must be an origin such as https://console.example.com")
    return text


def _network(value: object) -> object:
    try:
        return ipaddress.ip_network(str(value))
    except ValueError as error:
        raise ValueError(f"must be an address or a network such as 10.0.0.0/8: {error}") from None


Listen = Annotated[ListenAddress, BeforeValidator(_listen_address)]
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Network = Annotated[IpNetwork, PlainValidator(_network)]
Origin = Annotated[str, BeforeValidator(_origin)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Region(_Section):
    """A region that the operator runs (decisions 5.7). Their order is the operator's order."""

    name_id: str = Field(pattern=_NAME_ID, max_length=32)
    provider_display_name: str = Field(default="Self-hosted", min_length=1, max_length=128)
    region_display_name: str = Field(min_length=1, max_length=128)
    latitude: float = Field(default=0.0, ge=-90, le=90, allow_inf_nan=False)
    longitude: float = Field(default=0.0, ge=-180, le=180, allow_inf_nan=False)


def _distinct(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    names = [region.name_id for region in regions]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"name_id {name} is there more than once")
    return regions


class RateLimit(_Section):
    """A token bucket. `per_second` 0 switches it off."""

    per_second: float = Field(ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(ge=1, le=1_000_000)


class ClientRateLimit(RateLimit):
    """Operations of game clients, per client address; per token for env_."""

    per_second: float = Field(default=20, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=100, ge=1, le=1_000_000)


class OperatorRateLimit(RateLimit):
    """Control plane, attach and detach, per token."""

    per_second: float = Field(default=50, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=200, ge=1, le=1_000_000)


class RateLimits(_Section):
    """Decisions 9, "Rate limits"."""

    client: ClientRateLimit = ClientRateLimit()
    operator: OperatorRateLimit = OperatorRateLimit()


class HttpLimits(_Section):
    """Decisions 1.3 for the HTTP door."""

    body_bytes: int = Field(default=1 << 20, ge=1024, le=64 << 20)
    header_bytes: int = Field(default=32 << 10, ge=1024, le=1 << 20)
    url_bytes: int = Field(default=8 << 10, ge=256, le=1 << 20)
    slow_client_ms: int = Field(default=15_000, ge=100, le=600_000)
    """How long a client may take to send headers and body."""
    keep_alive_ms: int = Field(default=75_000, ge=0, le=3_600_000)
    backlog: int = Field(default=2048, ge=1, le=65_535)


class GrpcLimits(_Section):
    """The same for the gRPC door."""

    message_bytes: int = Field(default=1 << 20, ge=1024, le=64 << 20)
    streams_per_connection: int = Field(default=1024, ge=1, le=100_000)


class JournalSettings(_Section):
    """Files of the journal."""

    segment_bytes: int = Field(default=64 << 20, ge=1 << 20, le=1 << 30, multiple_of=4096)
    boot_id_path: Path = Path("/proc/sys/kernel/random/boot_id")


class Settings(BaseSettings):
    """All settings of `pyservice serve`. Frozen; durations in milliseconds, sizes in bytes."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        enable_decoding=False,
    )

    data_dir: Path = Path("data")
    http: Listen = ListenAddress("127.0.0.1", 8080)
    grpc: Listen = ListenAddress("127.0.0.1", 8081)
    metrics: Listen = ListenAddress("127.0.0.1", 8090)
    feed_file: Path | None = None
    """Static configuration; None: a control plane feeds."""
    regions: Annotated[
        tuple[Region, ...], BeforeValidator(_list), Field(min_length=1), AfterValidator(_distinct)
    ] = (Region(name_id="local", region_display_name="Local"),)
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(_list)] = ()
    proxy_protocol: bool = False
    """Trusted proxies speak PROXY protocol v2 in front of each connection."""
    cors_origins: Annotated[tuple[Origin, ...], BeforeValidator(_list)] = ()
    rate_limits: RateLimits = RateLimits()
    http_limits: HttpLimits = HttpLimits()
    grpc_limits: GrpcLimits = GrpcLimits()
    journal: JournalSettings = JournalSettings()
    storage_reserve_bytes: int = Field(default=256 << 20, ge=0)
    """Below this much free space `/readyz` and the metrics say so."""
    lame_duck_ms: int = Field(default=0, ge=0, le=600_000)
    """Between "not ready" and the end of accepting."""
    stop_grace_ms: int = Field(default=10_000, ge=0, le=600_000)
    """How long requests in flight may take to finish at shutdown."""
    find_wait_ms: int = Field(default=45_000, ge=1, le=600_000)
    """Longest wait of find and join for a starting lobby (decisions 5.3)."""
    start_limit_ms: int = Field(default=300_000, ge=100, le=86_400_000)
    """A lobby that is not ready by then fails (decisions 5.6)."""
    attached_heartbeat_timeout_ms: int = Field(default=30_000, ge=1_000, le=3_600_000)
    """For attached lobbies whose mode sets none (decisions 5.11)."""
    heartbeat_grace_ms: int = Field(default=10_000, ge=0, le=3_600_000)
    """For modes that set none (decisions 5.6)."""
    player_limit_max: int = Field(default=256, ge=1, le=65_535)
    """Largest `max_players` that a version may ask for (decisions 4)."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """`auto`: for people on a terminal, else JSON lines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def admin_socket(self) -> Path:
        """Where the running service is asked to administer itself."""
        return self.data_dir / "admin.sock"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # `load` merges the sources itself, so that a problem can name where its value came from.
        return (init_settings,)


def load(
    flags: Mapping[str, object],
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags, environment and file. Raises SettingsError with every problem.

    `flags` maps field names to values; None means "not given". Without `config_file`,
    `PYSERVICE_CONFIG` names it.
    """
    environ = os.environ if environ is None else environ
    problems: list[Problem] = []
    if config_file is None and environ.get("PYSERVICE_CONFIG"):
        config_file = Path(environ["PYSERVICE_CONFIG"])
    sources = [
        ("flag", {name: value for name, value in flags.items() if value is not None}),
        ("environment", _from_environment(environ, problems)),
        (f"file {config_file}", _from_file(config_file, problems) if config_file else {}),
    ]
    merged: dict[str, Any] = {}
    for _, values in reversed(sources):
        merged = _merge(merged, values)
    wrong: set[str] = set()
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        details = error.errors()
        problems += [_problem(detail, sources) for detail in details]
        wrong = {str(detail["loc"][0]) for detail in details}
        right = {name: value for name, value in merged.items() if name not in wrong}
        settings = Settings(**right)
    problems += [
        Problem(_origin_of(sources, location), ".".join(location), message)
        for location, message in _conflicts(settings, wrong)
    ]
    if problems:
        raise SettingsError(problems, settings)
    return settings


def _conflicts(settings: Settings, wrong: Collection[str]) -> Iterator[tuple[list[str], str]]:
    """What each value may be, but not with the others or on this machine: location and message.
    `wrong` are sections of which the defaults stand here.
    """
    listeners: list[tuple[str, ListenAddress]] = []
    for name in ("http", "grpc", "metrics"):
        address: ListenAddress = getattr(settings, name)
        if name in wrong or not address.port:
            continue
        taken = next((other for other, held in listeners if _overlap(held, address)), None)
        if taken is not None:
            yield [name], f"{address} is where {taken} listens"
        listeners.append((name, address))
    if len(os.fsencode(settings.admin_socket)) > _SOCKET_PATH_MAX:
        yield (
            ["data_dir"],
            f"is too long: {settings.admin_socket} may have {_SOCKET_PATH_MAX} bytes",
        )
    boot_id_path = settings.journal.boot_id_path
    try:
        boot_id_path.read_bytes()
    except OSError as error:
        yield ["journal", "boot_id_path"], f"{boot_id_path} cannot be read: {error.strerror}"


def _overlap(one: ListenAddress, other: ListenAddress) -> bool:
    is_any = not _ANY_HOST.isdisjoint((one.host, other.host))
    return one.port == other.port and (is_any or one.host == other.host)


def _from_environment(environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    ours = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    for name in sorted(ours.keys() - _NOT_SETTINGS):
        # Inside of a section the model itself refuses what it does not know.
        if name.removeprefix(PREFIX).lower().split("__")[0] not in Settings.model_fields:
            problems.append(Problem("environment", name, "is not a setting"))
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value for name, value in ours.items()}
    return source()


def _from_file(path: Path, problems: list[Problem]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(Problem(f"file {path}", "", f"cannot be read: {error.strerror}"))
    except ValueError as error:
        problems.append(Problem(f"file {path}", "", f"is not TOML: {error}"))
    return {}


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        held = merged.get(name)
        if isinstance(held, dict) and isinstance(value, Mapping):
            value = _merge(held, value)
        merged[name] = value
    return merged


def _problem(detail: Any, sources: list[tuple[str, dict[str, Any]]]) -> Problem:
    location = [str(part) for part in detail["loc"] if not str(part).startswith("function-")]
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = "is not a setting"
    return Problem(_origin_of(sources, location), ".".join(location), message)


def _origin_of(sources: list[tuple[str, dict[str, Any]]], location: list[str]) -> str:
    """Which source a value came from."""
    return next((source for source, values in sources if _holds(values, location)), "default")


def _holds(values: Any, location: list[str]) -> bool:
    if not location:
        return bool(values)
    if not isinstance(values, Mapping) or location[0] not in values:
        return False
    inner = values[location[0]]
    # A list is one value: what is inside of it has the list's source.
    return not isinstance(inner, Mapping) or len(location) == 1 or _holds(inner, location[1:])
