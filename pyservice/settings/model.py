from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pyservice.settings.kubernetes_section import KubernetesSettings
from pyservice.settings.quotas import QuotaSettings
from pyservice.settings.sections import (
    BASIC_TIERS,
    AuditSettings,
    BackupSettings,
    CaptchaSettings,
    DatabaseUrl,
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
    PortRange,
    RateLimits,
    RaySettings,
    Region,
    RuntimeSettings,
    S3Settings,
    Tier,
    TlsSettings,
    distinct_regions,
    from_text,
)

PREFIX: Final = "PYSERVICE_"


class Settings(BaseSettings):
    """All settings of `pyservice serve`. Frozen. Durations are in milliseconds, sizes in bytes."""

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
    tls: TlsSettings = TlsSettings()
    front: Literal["on", "off"] = "on"
    """`off` serves clients without the front. It is for development and not for the public
    internet.
    """
    control_http: Listen = ListenAddress("127.0.0.1", 8082)
    """Listener of the control plane without the front."""
    cdn: Listen = ListenAddress("127.0.0.1", 8092)
    """Listener of sites and signed URLs of files. It must not share an origin with the API."""
    metrics: Listen = ListenAddress("127.0.0.1", 8090)
    feed_file: Path | None = None
    """File with a static configuration. None: a control plane sends the configuration."""
    regions: Annotated[
        tuple[Region, ...],
        BeforeValidator(from_text),
        Field(min_length=1),
        AfterValidator(distinct_regions),
    ] = (Region(name_id="local", region_display_name="Local"),)
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(from_text)] = ()
    proxy_protocol: bool = False
    """Whether trusted proxies send a PROXY protocol v2 header at the start of each connection."""
    cors_origins: Annotated[tuple[Origin, ...], BeforeValidator(from_text)] = ()
    rate_limits: RateLimits = RateLimits()
    quotas: QuotaSettings = QuotaSettings()
    data_plane_configuration_bytes: int = Field(default=512 << 20, ge=1 << 20, le=1 << 53)
    """Limit of the configurations of all namespaces in the data plane's memory."""
    http_limits: HttpLimits = HttpLimits()
    grpc_limits: GrpcLimits = GrpcLimits()
    journal: JournalSettings = JournalSettings()
    storage_reserve_bytes: int = Field(default=256 << 20, ge=0)
    """Minimum of free space. Below it, `/readyz` and the metrics report a shortage."""
    lame_duck_ms: int = Field(default=0, ge=0, le=600_000)
    """Time between "not ready" and the closing of the listeners."""
    stop_grace_ms: int = Field(default=10_000, ge=0, le=600_000)
    """Time for requests in progress to finish at shutdown."""
    find_wait_ms: int = Field(default=45_000, ge=1, le=600_000)
    """Longest time that find and join wait for a starting lobby."""
    start_limit_ms: int = Field(default=300_000, ge=100, le=86_400_000)
    """A lobby that is not ready after this time fails."""
    suspect_slot_ms: int = Field(default=60_000, ge=100, le=86_400_000)
    """A connected slot without a session at edge-guard is suspect after this time."""
    attached_heartbeat_timeout_ms: int = Field(default=30_000, ge=1_000, le=3_600_000)
    """Heartbeat timeout of attached lobbies if their mode has none."""
    empty_lobby_grace_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    """Time until an empty lobby counts as idle."""
    heartbeat_grace_ms: int = Field(default=10_000, ge=0, le=3_600_000)
    """Default heartbeat grace of game modes."""
    port_rest_ms: int = Field(default=60_000, ge=1_000, le=3_600_000)
    """Quarantine of a public port after its lobby or server has ended."""
    player_limit_max: int = Field(default=256, ge=1, le=65_535)
    captcha: CaptchaSettings = CaptchaSettings()
    verification_allowed_networks: Annotated[tuple[Network, ...], BeforeValidator(from_text)] = ()
    """Networks that verification may call besides public addresses."""
    database_url: DatabaseUrl | None = None
    """PostgreSQL URL. None: a SQLite file."""
    migrate_at_start: bool = True
    """False: the start fails on a database of an older version and prints the migration command."""
    public_url: Endpoint | None = None
    """Base of API addresses in responses. None: `domains.main`, else the HTTP listener."""
    cdn_url: Endpoint | None = None
    """Base of site and file addresses in local mode. None: the CDN listener."""
    hub_url: Endpoint | None = None
    """Base of group pages. None: the public URL."""
    domains: Domains = Domains()
    edge: EdgeSettings = EdgeSettings()
    access: Literal["public", "private", "development"] = "development"
    cluster: Literal["oss", "enterprise"] = "oss"
    tiers: Annotated[tuple[Tier, ...], BeforeValidator(from_text), Field(min_length=1)] = (
        BASIC_TIERS
    )
    runtime: RuntimeSettings = RuntimeSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    lobby_api_url: Endpoint | None = None
    """API address for game servers. None: the HTTP listener."""
    lobby_env_aliases: Annotated[dict[str, str] | None, BeforeValidator(from_text)] = None
    """Additional names for environment variables of game servers: maps the new name to the
    service's name.
    """
    rays: RaySettings = RaySettings()
    audit: AuditSettings = AuditSettings()
    s3: S3Settings | None = None
    backup: BackupSettings = BackupSettings()
    log_format: Literal["auto", "console", "json"] = "auto"
    """Format of log lines. `auto`: console on a terminal, else JSON."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def admin_socket(self) -> Path:
        return self.data_dir / "admin.sock"

    @property
    def has_tls(self) -> bool:
        """Whether the HTTP and gRPC listeners take TLS only."""
        return self.tls.cert is not None or bool(self.tls.acme.domains)

    @property
    def http_scheme(self) -> str:
        """Scheme of URLs with the address of the HTTP listener."""
        return "https" if self.has_tls else "http"

    @property
    def public_base(self) -> str | None:
        """Base of API addresses in responses: the public URL, else the domain of the API.

        None: the HTTP listener.
        """
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        return f"https://{self.domains.main}" if self.domains.main is not None else None

    @property
    def public_ports(self) -> PortRange:
        """Public ports of lobbies and servers: those of this machine, or of each node."""
        return self.kubernetes.node_ports if self.is_on_cluster else self.edge.public_ports

    @property
    def is_on_cluster(self) -> bool:
        """Whether game servers run on the nodes of a cluster and not on this machine."""
        return self.runtime.placement == "kubernetes"

    @property
    def edge_http_socket(self) -> Path:
        return self.data_dir / "edge-http.sock"

    @property
    def edge_cdn_socket(self) -> Path:
        return self.data_dir / "control" / "edge-cdn.sock"

    @property
    def cdn_hosts(self) -> tuple[str, ...]:
        domain, files = self.domains.cdn, urlsplit(self.cdn_url or "").hostname
        hosts = [] if domain is None else [domain, f"*.{domain}"]
        if files is not None and files != self.domains.main:
            hosts.append(files)
        return tuple(hosts)

    @property
    def acme_folder(self) -> Path:
        """Accounts and certificates of ACME directories."""
        return self.data_dir / "acme"

    @property
    def data_http_socket(self) -> Path:
        return self.data_dir / "data-http.sock"

    @property
    def data_grpc_socket(self) -> Path:
        return self.data_dir / "data-grpc.sock"

    @property
    def control_socket(self) -> Path:
        return self.data_dir / "control" / "grpc.sock"

    @property
    def cdn_socket(self) -> Path:
        """Socket on which the CDN's process answers the control plane."""
        return self.data_dir / "control" / "cdn.sock"

    @property
    def control_http_socket(self) -> Path:
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
        # `load` merges the sources, so that a problem can name its source.
        return (init_settings,)


_APPLIED: Final = frozenset(
    {
        *("rate_limits", "quotas", "tiers", "tls.cert", "tls.key"),
        *("edge.certificates", "edge.limits"),
    }
)
"""Settings and sections that the planes and edge-guard apply without a restart."""


def unapplied_changes(started: Settings, current: Settings) -> list[str]:
    """Returns the names of settings that differ and need a restart, such as `http_limits.backlog`."""
    names = sorted(_changes(started, current, ""))
    return names if started.has_tls == current.has_tls else [*names, "tls"]


def _changes(before: BaseModel, after: BaseModel, prefix: str) -> Iterator[str]:
    for field in type(before).model_fields:
        name = f"{prefix}{field}"
        old, new = getattr(before, field), getattr(after, field)
        if old == new or name in _APPLIED:
            continue
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from _changes(old, new, f"{name}.")
        else:
            yield name
