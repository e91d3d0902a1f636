"""All settings of the service with their defaults. Where values come from is the package's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pyservice.settings.sections import (
    BASIC_TIERS,
    CaptchaSettings,
    Domains,
    EdgeSettings,
    Endpoint,
    GrpcLimits,
    HttpLimits,
    JournalSettings,
    Listen,
    ListenAddress,
    Network,
    Origin,
    RateLimits,
    RaySettings,
    Region,
    RuntimeSettings,
    S3Settings,
    Tier,
    distinct_regions,
    from_text,
)

PREFIX: Final = "PYSERVICE_"


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
    cdn: Listen = ListenAddress("127.0.0.1", 8092)
    """Sites and signed URLs of files: never the API's origin."""
    metrics: Listen = ListenAddress("127.0.0.1", 8090)
    feed_file: Path | None = None
    """Static configuration; None: a control plane feeds."""
    regions: Annotated[
        tuple[Region, ...],
        BeforeValidator(from_text),
        Field(min_length=1),
        AfterValidator(distinct_regions),
    ] = (Region(name_id="local", region_display_name="Local"),)
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(from_text)] = ()
    proxy_protocol: bool = False
    """Trusted proxies speak PROXY protocol v2 in front of each connection."""
    cors_origins: Annotated[tuple[Origin, ...], BeforeValidator(from_text)] = ()
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
    empty_lobby_grace_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    """A lobby that everybody left counts as idle after so long (decisions 5.8)."""
    heartbeat_grace_ms: int = Field(default=10_000, ge=0, le=3_600_000)
    """For modes that set none (decisions 5.6)."""
    port_rest_ms: int = Field(default=60_000, ge=1_000, le=3_600_000)
    """A public port is nobody's for so long behind its lobby or server (decisions 5.9)."""
    player_limit_max: int = Field(default=256, ge=1, le=65_535)
    """Largest `max_players` that a version may ask for (decisions 4)."""
    captcha: CaptchaSettings = CaptchaSettings()
    verification_allowed_networks: Annotated[tuple[Network, ...], BeforeValidator(from_text)] = ()
    """Where verification may go besides public addresses (decisions 7)."""
    database_url: SecretStr | None = None
    """postgresql://…; None: a SQLite file of the control plane."""
    migrate_at_start: bool = True
    """False: a database of an older version is refused with the command to run."""
    public_url: Endpoint | None = None
    """Base of API addresses in answers; None: where the HTTP door listens."""
    cdn_url: Endpoint | None = None
    """Base of addresses of sites and files in local mode; None: where the CDN listens."""
    hub_url: Endpoint | None = None
    """Where people look at groups; None: the public URL."""
    domains: Domains = Domains()
    edge: EdgeSettings = EdgeSettings()
    access: Literal["public", "private", "development"] = "development"
    """What bootstrap says of who may come."""
    cluster: Literal["oss", "enterprise"] = "oss"
    tiers: Annotated[tuple[Tier, ...], BeforeValidator(from_text), Field(min_length=1)] = (
        BASIC_TIERS
    )
    runtime: RuntimeSettings = RuntimeSettings()
    lobby_api_url: Endpoint | None = None
    """Where game servers reach the API; None: where the HTTP door listens."""
    lobby_env_aliases: Annotated[dict[str, str] | None, BeforeValidator(from_text)] = None
    """Variables that game servers get under another name as well: theirs to ours (decisions 10)."""
    rays: RaySettings = RaySettings()
    s3: S3Settings | None = None
    log_format: Literal["auto", "console", "json"] = "auto"
    """`auto`: for people on a terminal, else JSON lines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def admin_socket(self) -> Path:
        """Where the running service is asked to administer itself."""
        return self.data_dir / "admin.sock"

    @property
    def edge_http_socket(self) -> Path:
        """Where edge-guard brings clients of the API."""
        return self.data_dir / "edge-http.sock"

    @property
    def edge_cdn_socket(self) -> Path:
        """Where edge-guard brings visitors of sites."""
        return self.data_dir / "control" / "edge-cdn.sock"

    @property
    def cdn_hosts(self) -> tuple[str, ...]:
        """Names at which edge-guard leads to sites and files; none: they are reached at `cdn` alone."""
        domain, files = self.domains.cdn, urlsplit(self.cdn_url or "").hostname
        hosts = [] if domain is None else [domain, f"*.{domain}"]
        if files is not None and files != self.domains.main:
            hosts.append(files)
        return tuple(hosts)

    @property
    def control_socket(self) -> Path:
        """Where the control plane answers the data plane."""
        return self.data_dir / "control" / "grpc.sock"

    @property
    def control_http_socket(self) -> Path:
        """Where the control plane's HTTP door is."""
        return self.data_dir / "control" / "http.sock"

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
