"""The parts of the settings: forms of values, and sections. Which there are is `model`'s."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, SecretStr

from pyservice.network.port_ranges import HOST_PORTS, PROCESS_PORTS

_NAME_ID: Final = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_FIRST_INHERITED: Final = 3
_DOMAIN: Final = r"^[a-z0-9-]+(\.[a-z0-9-]+)*$"


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


class InheritedSocket(NamedTuple):
    """A listening socket that whoever starts the service hands over, by its number."""

    number: int

    def __str__(self) -> str:
        return f"fd:{self.number}"


def _edge_listen(value: object) -> object:
    if isinstance(value, InheritedSocket):
        return value
    match = re.fullmatch(r"fd:(\d{1,6})", str(value))
    if match is None:
        return _listen_address(value)
    if int(match[1]) < _FIRST_INHERITED:
        raise ValueError(f"must be fd:{_FIRST_INHERITED} or more: below are input, output and log")
    return InheritedSocket(int(match[1]))


def from_text(value: object) -> object:
    """In the environment a list is JSON, or words separated by commas."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
    return [word.strip() for word in value.split(",") if word.strip()]


class PortRange(NamedTuple):
    """Ports from the first to the last."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def numbers(self) -> range:
        """All of them."""
        return range(self.first, self.last + 1)


def _port_range(value: object) -> object:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", str(value).strip())
    if match is None or not 1_024 <= int(match[1]) <= int(match[2]) <= 65_535:
        raise ValueError("must be two ports from 1024 to 65535, such as 20000-25999")
    return PortRange(int(match[1]), int(match[2]))


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


def _ip_address(value: object) -> object:
    try:
        return str(ipaddress.ip_address(str(value)))
    except ValueError:
        raise ValueError("must be an IP address such as 0.0.0.0 or ::") from None


def _endpoint(value: object) -> object:
    text = str(value)
    if not re.fullmatch(r"https?://[^\s/?#@]+([/?][^\s#]*)?", text):
        raise ValueError("must be a URL such as https://captcha.example.com/verify")
    return text


Ports = Annotated[PortRange, PlainValidator(_port_range)]
Listen = Annotated[ListenAddress, BeforeValidator(_listen_address)]
EdgeListen = Annotated[ListenAddress | InheritedSocket, PlainValidator(_edge_listen)]
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Network = Annotated[IpNetwork, PlainValidator(_network)]
Origin = Annotated[str, BeforeValidator(_origin)]
Endpoint = Annotated[str, BeforeValidator(_endpoint)]
BuildKind = Literal["archive", "docker_image", "oci_bundle"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Region(_Section):
    """A region that the operator runs (decisions 5.7). Their order is the operator's order."""

    name_id: str = Field(pattern=_NAME_ID, max_length=32)
    provider_display_name: str = Field(default="Self-hosted", min_length=1, max_length=128)
    region_display_name: str = Field(min_length=1, max_length=128)
    latitude: float = Field(default=0.0, ge=-90, le=90, allow_inf_nan=False)
    longitude: float = Field(default=0.0, ge=-180, le=180, allow_inf_nan=False)


def distinct_regions(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    """Raises ValueError when a name is there twice."""
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


class AnonymousRateLimit(RateLimit):
    """Making device links, which needs no token, per client address."""

    per_second: float = Field(default=0.2, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=20, ge=1, le=1_000_000)


class RateLimits(_Section):
    """Decisions 9, "Rate limits"."""

    client: ClientRateLimit = ClientRateLimit()
    operator: OperatorRateLimit = OperatorRateLimit()
    anonymous: AnonymousRateLimit = AnonymousRateLimit()


class HttpLimits(_Section):
    """Decisions 1.3 for the HTTP door."""

    body_bytes: int = Field(default=1 << 20, ge=1024, le=64 << 20)
    header_bytes: int = Field(default=32 << 10, ge=1024, le=1 << 20)
    url_bytes: int = Field(default=8 << 10, ge=256, le=1 << 20)
    bodies_bytes: int = Field(default=128 << 20, ge=1 << 20, le=1 << 40)
    """All bodies together that are being received or answered. One client address has half, and an eighth once half
    is held.
    """
    slow_client_ms: int = Field(default=15_000, ge=100, le=600_000)
    """How long a client may take to send headers and body."""
    keep_alive_ms: int = Field(default=75_000, ge=0, le=3_600_000)
    backlog: int = Field(default=2048, ge=1, le=65_535)


class GrpcLimits(_Section):
    """The same for the gRPC door."""

    message_bytes: int = Field(default=1 << 20, ge=1024, le=64 << 20)
    streams_per_connection: int = Field(default=1024, ge=1, le=100_000)


class CaptchaSettings(_Section):
    """Where captcha providers are asked. A version that has one whose URL is not set is refused."""

    captcha_a_url: Endpoint | None = None
    captcha_b_url: Endpoint | None = None
    captcha_b_site_key: str | None = Field(default=None, min_length=1, max_length=256)
    """Public: what the service's own pages show. bootstrap tells it; those of games are in versions."""

    @property
    def endpoints(self) -> dict[Literal["captcha_a", "captcha_b"], str]:
        """The URLs that are set, by provider."""
        endpoints: dict[Literal["captcha_a", "captcha_b"], str] = {}
        if self.captcha_a_url is not None:
            endpoints["captcha_a"] = self.captcha_a_url
        if self.captcha_b_url is not None:
            endpoints["captcha_b"] = self.captcha_b_url
        return endpoints


class RaySettings(_Section):
    """What is kept of single requests (decisions 8.11)."""

    otlp_endpoint: Endpoint | None = None
    """Where spans are sent to besides: an OTLP/HTTP collector, such as http://127.0.0.1:4318/v1/traces."""
    per_second: int = Field(default=100, ge=0, le=100_000)
    """Rays kept by each plane in a second: so many that failed or were slow, and as many others. The CDN's listener
    keeps a tenth of it.
    """
    queued: int = Field(default=2_000, ge=1, le=1_000_000)
    """Rays of each plane, and of the CDN's listener, on their way to where they are stored."""
    stored: int = Field(default=100_000, ge=1, le=100_000_000)
    """Span sets that are stored; a ray has one of each plane that worked for it, or one of the CDN's listener."""


class Tier(_Section):
    """What a lobby or server may use (contract, region tier)."""

    tier_name_id: str = Field(pattern=_NAME_ID, max_length=64)
    bandwidth: int = Field(ge=0, le=0xFFFF_FFFF)
    """MB."""
    cpu: int = Field(ge=1, le=0xFFFF_FFFF)
    """MHz."""
    disk: int = Field(ge=0, le=0xFFFF_FFFF)
    """MB."""
    memory: int = Field(ge=1, le=0xFFFF_FFFF)
    """MB."""
    service_cores_numerator: int = Field(ge=1, le=0xFFFF)
    service_cores_denominator: int = Field(ge=1, le=0xFFFF)

    @property
    def millicores(self) -> int:
        """What it has of processors."""
        return 1000 * self.service_cores_numerator // self.service_cores_denominator


def _basic_tier(numerator: int, denominator: int) -> Tier:
    def part(whole: int) -> int:
        return whole * numerator // denominator

    return Tier(
        tier_name_id=f"basic-{numerator}d{denominator}",
        bandwidth=part(2_000_000),
        cpu=part(3_000),
        disk=part(8_192),
        memory=part(2_048),
        service_cores_numerator=numerator,
        service_cores_denominator=denominator,
    )


BASIC_TIERS: Final = tuple(
    _basic_tier(numerator, denominator)
    for numerator, denominator in ((4, 1), (2, 1), (1, 1), (1, 2), (1, 4), (1, 8), (1, 16))
)


class Domains(_Section):
    """Domains under which the service is reached. Without them it is in local mode."""

    main: str | None = Field(default=None, pattern=_DOMAIN, max_length=200)
    cdn: str | None = Field(default=None, pattern=_DOMAIN, max_length=200)
    job: str | None = Field(default=None, pattern=_DOMAIN, max_length=200)
    open_backend: str | None = Field(default=None, pattern=_DOMAIN, max_length=200)


class Certificate(_Section):
    """A certificate of edge-guard, by the names that clients ask for."""

    server_names: Annotated[tuple[str, ...], BeforeValidator(from_text), Field(min_length=1)]
    """Host names; `*.` stands for one label."""
    cert: Path
    """PEM, with its chain."""
    key: Path
    """PEM."""


class EdgeLimits(_Section):
    """How many players edge-guard carries, and for how long one that is silent. Read again at SIGHUP."""

    connections: int = Field(default=65_536, ge=1, le=10_000_000)
    """TCP connections of clients in all; of HTTP too."""
    connections_per_route: int = Field(default=16_384, ge=1, le=10_000_000)
    """Of one port of a lobby or a server that has a number of its own."""
    connections_per_address: int = Field(default=1_024, ge=1, le=10_000_000)
    """Of one client address (IPv6: /64)."""
    datagram_sessions: int = Field(default=16_384, ge=1, le=10_000_000)
    """UDP sessions in all, shared equally among the threads."""
    datagram_sessions_per_route: int = Field(default=4_096, ge=1, le=10_000_000)
    """Of one port, which belongs to one thread: never more than that one's part of all."""
    datagram_sessions_per_address: int = Field(default=1_024, ge=1, le=10_000_000)
    """Of one client address (IPv6: /64) at the ports of one thread."""
    stream_idle_ms: int = Field(default=7_200_000, ge=1_000, le=604_800_000)
    """A stream that carries nothing for so long is closed."""
    datagram_idle_ms: int = Field(default=60_000, ge=1_000, le=3_600_000)
    """A UDP session that carries nothing for so long is over."""


class EdgeSettings(_Section):
    """Edge-guard: how players reach the game servers that the service starts."""

    address: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    """Of edge-guard, where there is no `domains.job`."""
    node_address: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    """Of this machine, for ports without edge-guard."""
    bind: Annotated[str, BeforeValidator(_ip_address)] = "127.0.0.1"
    """Address of this machine on which edge-guard listens; 0.0.0.0 or :: is all of them."""
    http: EdgeListen | None = None
    """Where edge-guard tells lobbies, API, sites and files apart by host name. None: nowhere."""
    https: EdgeListen | None = None
    """The same with TLS; it needs certificates."""
    is_fronted: bool = False
    """Another proxy has ports 80 and 443 and leads to these listeners."""
    certificates: Annotated[tuple[Certificate, ...], BeforeValidator(from_text)] = ()
    """Read again at SIGHUP. In local mode they make https and tcp_tls what they say."""
    proxies: Annotated[tuple[Network, ...], BeforeValidator(from_text)] = ()
    """In front of edge-guard: they are believed about addresses of clients."""
    workers: int | None = Field(default=None, ge=1, le=256)
    """Threads for streams, and as many for datagrams. None: one for each core."""
    nice: int = Field(default=-4, ge=-20, le=19)
    """Of its threads, where the system grants it: whom the kernel prefers on a busy core."""
    limits: EdgeLimits = EdgeLimits()


class S3Settings(_Section):
    """A bucket for uploads, in place of the folder of the control plane."""

    bucket: str = Field(min_length=1, max_length=63)
    endpoint: Endpoint | None = None
    public_endpoint: Endpoint | None = None
    """What uploading clients reach, when that is not `endpoint`."""
    region: str = "us-east-1"
    access_key_id: str = Field(min_length=1)
    secret_access_key: SecretStr
    prefix: str = ""


class RuntimeSettings(_Section):
    """What runs game servers."""

    kinds: Annotated[tuple[BuildKind, ...], BeforeValidator(from_text)] = ("archive",)
    """Kinds of builds that are taken."""
    isolation: Literal["auto", "user", "namespace", "landlock", "none"] = "auto"
    """How game servers are kept apart. `auto`: another user when we are root, else a user namespace, else Landlock."""
    oci_runtime: Path | None = None
    """What runs images and bundles; None: crun, else runc."""
    shared_paths: Annotated[tuple[Path, ...], BeforeValidator(from_text)] = ()
    """What every game server may read and run, besides its build and what comes with the system: `/usr`, libraries,
    names and certificates of `/etc`.
    """
    cpu_millicores: int | None = Field(default=None, ge=1)
    """Of all lobbies and servers together, by their tiers; None: the cores of this machine."""
    memory_mb: int | None = Field(default=None, ge=1)
    """The same; None: the memory of this machine."""
    log_bytes_max: int = Field(default=64 << 20, ge=1 << 20)
    """Of the log of each server on disk; the oldest lines go."""
    process_ports: Ports = PortRange(PROCESS_PORTS[0], PROCESS_PORTS[-1])
    """That game servers behind edge-guard bind (decisions 6.6)."""
    host_ports: Ports = PortRange(HOST_PORTS[0], HOST_PORTS[-1])
    """That game servers with host networking may bind (decisions 4)."""
    end_with_service: bool = False
    """Whether game servers and edge-guard end when the service is stopped. A service that is killed leaves them."""


class JournalSettings(_Section):
    """Files of the journal."""

    segment_bytes: int = Field(default=64 << 20, ge=1 << 20, le=1 << 30, multiple_of=4096)
    boot_id_path: Path = Path("/proc/sys/kernel/random/boot_id")
