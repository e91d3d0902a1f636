from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, SecretStr

from pyservice.network.port_ranges import HOST_PORTS, PROCESS_PORTS, PUBLIC_PORTS
from pyservice.settings.database_url import database_url_problem
from pyservice.settings.user_ids import UserIdRange, user_id_range

_NAME_ID: Final = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_FIRST_INHERITED: Final = 3
_DOMAIN: Final = r"^[a-z0-9-]+(\.[a-z0-9-]+)*$"


class ListenAddress(NamedTuple):
    """Address of a listener. With port 0, the operating system selects a port."""

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
    """A listening socket inherited from the parent process. The number is the socket's file
    descriptor.
    """

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
        raise ValueError(
            f"must be fd:{_FIRST_INHERITED} or more: lower numbers are input, output and log"
        )
    return InheritedSocket(int(match[1]))


def from_text(value: object) -> object:
    """Parses a list in an environment variable: JSON, or words separated by commas.

    A value that is not a text is returned unchanged.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
    return [word.strip() for word in value.split(",") if word.strip()]


PUBLIC_PORTS_MIN: Final = 100


class PortRange(NamedTuple):
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def numbers(self) -> range:
        return range(self.first, self.last + 1)


def _port_range(value: object) -> object:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", str(value).strip())
    if match is None or not 1_024 <= int(match[1]) <= int(match[2]) <= 65_535:
        raise ValueError("must be two ports from 1024 to 65535, such as 20000-25999")
    return PortRange(int(match[1]), int(match[2]))


def _public_ports(value: object) -> object:
    ports = _port_range(value)
    if isinstance(ports, PortRange) and len(ports.numbers) < PUBLIC_PORTS_MIN:
        raise ValueError(
            f"has {len(ports.numbers)} ports: give at least {PUBLIC_PORTS_MIN}, because each lobby takes one or more "
            "and a port rests after its lobby has ended"
        )
    return ports


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


def _acme_domain(value: object) -> object:
    text = str(value).lower()
    if not re.fullmatch(_DOMAIN, text) or re.fullmatch(r"[\d.]+", text):
        raise ValueError(
            "must be a host name such as api.example.com, without a wildcard: no such certificate can be ordered"
        )
    return text


def _email_address(value: object) -> object:
    text = str(value)
    if not re.fullmatch(r"[^@\s]+@[^@\s]+", text):
        raise ValueError("must be an e-mail address such as ops@example.com")
    return text


def _database_url(value: object) -> object:
    url = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    problem = database_url_problem(url)
    if problem is not None:
        raise ValueError(problem)
    return value


def _age_recipient(value: object) -> object:
    # Most services have none.
    import pyrage

    try:
        pyrage.x25519.Recipient.from_str(str(value))
    except pyrage.RecipientError:
        raise ValueError(
            "must be a public key of age such as age1..., which age-keygen prints"
        ) from None
    return value


Ports = Annotated[PortRange, PlainValidator(_port_range)]
PublicPorts = Annotated[PortRange, PlainValidator(_public_ports)]
UserIds = Annotated[UserIdRange | None, PlainValidator(user_id_range)]
Listen = Annotated[ListenAddress, BeforeValidator(_listen_address)]
EdgeListen = Annotated[ListenAddress | InheritedSocket, PlainValidator(_edge_listen)]
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Network = Annotated[IpNetwork, PlainValidator(_network)]
Origin = Annotated[str, BeforeValidator(_origin)]
Endpoint = Annotated[str, BeforeValidator(_endpoint)]
AcmeDomain = Annotated[str, BeforeValidator(_acme_domain)]
EmailAddress = Annotated[str, BeforeValidator(_email_address)]
AgeRecipient = Annotated[str, BeforeValidator(_age_recipient)]
DatabaseUrl = Annotated[SecretStr, BeforeValidator(_database_url)]
BuildKind = Literal["archive", "docker_image", "oci_bundle"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Region(_Section):
    """A region of the operator. Responses list regions in the order of the settings."""

    name_id: str = Field(pattern=_NAME_ID, max_length=32)
    provider_display_name: str = Field(default="Self-hosted", min_length=1, max_length=128)
    region_display_name: str = Field(min_length=1, max_length=128)
    latitude: float = Field(default=0.0, ge=-90, le=90, allow_inf_nan=False)
    longitude: float = Field(default=0.0, ge=-180, le=180, allow_inf_nan=False)


def distinct_regions(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    """Returns the regions unchanged. Raises ValueError if two regions have the same name."""
    names = [region.name_id for region in regions]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"name_id {name} occurs more than once")
    return regions


class RateLimit(_Section):
    """A rate limit as a token bucket. If `per_second` is 0, no limit applies."""

    per_second: float = Field(ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(ge=1, le=1_000_000)


class ClientRateLimit(RateLimit):
    """Rate limit of game clients, for each client address. Calls with service tokens (`env_`)
    are limited for each token instead.
    """

    per_second: float = Field(default=20, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=100, ge=1, le=1_000_000)


class OperatorRateLimit(RateLimit):
    """Rate limit for each token on control plane operations, and on attaching or detaching a lobby."""

    per_second: float = Field(default=50, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=200, ge=1, le=1_000_000)


class AnonymousRateLimit(RateLimit):
    """Rate limit of the creation of device links, which needs no token, for each client address."""

    per_second: float = Field(default=0.2, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=20, ge=1, le=1_000_000)


class ClientGroupRateLimit(RateLimit):
    """Rate limit of all client operations of a developer group: of its players and back ends."""

    per_second: float = Field(default=1_000, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=5_000, ge=1, le=1_000_000)


class OperatorGroupRateLimit(RateLimit):
    """Rate limit of all tokens of a developer group on control plane operations, attach and detach."""

    per_second: float = Field(default=200, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=1_000, ge=1, le=1_000_000)


class AddressRateLimit(RateLimit):
    """Rate limit of all `env_` and `cloud_` tokens of one client address, on all these operations."""

    per_second: float = Field(default=200, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=1_000, ge=1, le=1_000_000)


class FailedAuthenticationRateLimit(RateLimit):
    """Rate limit of failed authentications, for each client address."""

    per_second: float = Field(default=5, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=50, ge=1, le=1_000_000)


class LobbyRateLimit(RateLimit):
    """Rate limit of the operations of a lobby server, for each lobby."""

    per_second: float = Field(default=2_000, ge=0, le=1_000_000, allow_inf_nan=False)
    burst: int = Field(default=100_000, ge=1, le=1_000_000)


class RateLimits(_Section):
    client: ClientRateLimit = ClientRateLimit()
    operator: OperatorRateLimit = OperatorRateLimit()
    anonymous: AnonymousRateLimit = AnonymousRateLimit()
    client_group: ClientGroupRateLimit = ClientGroupRateLimit()
    operator_group: OperatorGroupRateLimit = OperatorGroupRateLimit()
    address: AddressRateLimit = AddressRateLimit()
    failed_authentication: FailedAuthenticationRateLimit = FailedAuthenticationRateLimit()
    lobby: LobbyRateLimit = LobbyRateLimit()


class HttpLimits(_Section):
    body_bytes: int = Field(default=1 << 20, ge=1024, le=64 << 20)
    header_bytes: int = Field(default=32 << 10, ge=1024, le=1 << 20)
    url_bytes: int = Field(default=8 << 10, ge=256, le=1 << 20)
    bodies_bytes: int = Field(default=128 << 20, ge=1 << 20, le=1 << 40)
    """Memory for all request bodies and messages. One address may use half, and an eighth once half
    is used.
    """
    slow_client_ms: int = Field(default=15_000, ge=100, le=600_000)
    """Time for a client to send headers and body."""
    keep_alive_ms: int = Field(default=75_000, ge=0, le=3_600_000)
    backlog: int = Field(default=2048, ge=1, le=65_535)


class AcmeSettings(_Section):
    """Certificate from an ACME directory. The service agrees to the terms of its authority."""

    domains: Annotated[tuple[AcmeDomain, ...], BeforeValidator(from_text)] = ()
    """Names of the certificate. The directory connects to port 443 of each."""
    contact: EmailAddress | None = None
    """E-mail address for notices of the authority."""
    directory: Endpoint = "https://acme-v02.api.letsencrypt.org/directory"
    root: Path | None = None
    """PEM file with the authority of the directory's own certificate. None: those of the system."""


class TlsSettings(_Section):
    """TLS of the HTTP and gRPC listeners. With a certificate, they take TLS only."""

    cert: Path | None = None
    """Path of a PEM file with the certificate and its chain. SIGHUP reads both files again."""
    key: Path | None = None
    acme: AcmeSettings = AcmeSettings()


class GrpcLimits(_Section):
    message_bytes: int = Field(default=1 << 20, ge=1024, le=64 << 20)
    streams_per_connection: int = Field(default=1024, ge=1, le=100_000)


class CaptchaSettings(_Section):
    """URLs of captcha providers. A version that uses a provider without a URL is refused."""

    captcha_a_url: Endpoint | None = None
    captcha_b_url: Endpoint | None = None
    captcha_b_site_key: str | None = Field(default=None, min_length=1, max_length=256)
    """Public site key of the service's own pages. Bootstrap returns it."""

    @property
    def endpoints(self) -> dict[Literal["captcha_a", "captcha_b"], str]:
        endpoints: dict[Literal["captcha_a", "captcha_b"], str] = {}
        if self.captcha_a_url is not None:
            endpoints["captcha_a"] = self.captcha_a_url
        if self.captcha_b_url is not None:
            endpoints["captcha_b"] = self.captcha_b_url
        return endpoints


class AuditSettings(_Section):
    retention_days: int = Field(default=90, ge=1, le=36_500)
    """Time after which entries of the audit log are removed."""
    entries_per_group: int = Field(default=1_000_000, ge=1_000, le=1_000_000_000)
    """Limit of stored entries of a group. Beyond it, the oldest are removed."""


class RaySettings(_Section):
    otlp_endpoint: Endpoint | None = None
    """OTLP/HTTP collector for spans, such as http://127.0.0.1:4318/v1/traces."""
    per_second: int = Field(default=100, ge=0, le=100_000)
    """Failed or slow rays that each plane keeps per second of each namespace, and as many other
    rays. The CDN keeps a tenth.
    """
    queued: int = Field(default=2_000, ge=1, le=1_000_000)
    """Limit of rays that wait to be stored, for each plane and the CDN."""
    stored: int = Field(default=100_000, ge=1, le=100_000_000)
    """Limit of stored span sets. A ray has one for each plane that handled it, or one of the CDN.
    """


class Tier(_Section):
    tier_name_id: str = Field(pattern=_NAME_ID, max_length=64)
    bandwidth: int = Field(ge=0, le=0xFFFF_FFFF)
    """Bandwidth in MB."""
    cpu: int = Field(ge=1, le=0xFFFF_FFFF)
    """CPU in MHz."""
    disk: int = Field(ge=0, le=0xFFFF_FFFF)
    """Disk space in MB."""
    memory: int = Field(ge=1, le=0xFFFF_FFFF)
    """Memory in MB."""
    service_cores_numerator: int = Field(ge=1, le=0xFFFF)
    service_cores_denominator: int = Field(ge=1, le=0xFFFF)

    @property
    def millicores(self) -> int:
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
    """Public domains. Without domains, the service is in local mode and is reached by address and
    port.
    """

    main: str | None = Field(default=None, pattern=_DOMAIN, max_length=200)
    cdn: str | None = Field(default=None, pattern=_DOMAIN, max_length=200)
    job: str | None = Field(default=None, pattern=_DOMAIN, max_length=200)
    open_backend: str | None = Field(default=None, pattern=_DOMAIN, max_length=200)

    @property
    def of_service(self) -> list[str]:
        """The domains that the service itself uses. A namespace cannot add one of these domains, or
        a subdomain of one, as its own domain.
        """
        return [domain for domain in (self.main, self.cdn, self.job) if domain is not None]


class Certificate(_Section):
    server_names: Annotated[tuple[str, ...], BeforeValidator(from_text), Field(min_length=1)]
    """Host names. `*.` is a wildcard for one label."""
    cert: Path
    """Path of a PEM file with the certificate and its chain."""
    key: Path


class EdgeLimits(_Section):
    """Limits of edge-guard. They are read again when the service receives SIGHUP."""

    connections: int = Field(default=65_536, ge=1, le=10_000_000)
    """Limit of all TCP connections of clients, including HTTP."""
    connections_per_route: int = Field(default=16_384, ge=1, le=10_000_000)
    """Limit of connections for each public port."""
    connections_per_address: int = Field(default=1_024, ge=1, le=10_000_000)
    """Limit of connections for each client address (IPv6: /64). Wider networks have multiples."""
    datagram_sessions: int = Field(default=16_384, ge=1, le=10_000_000)
    """Limit of all UDP sessions, shared equally among the threads."""
    datagram_sessions_per_route: int = Field(default=4_096, ge=1, le=10_000_000)
    """Limit of UDP sessions for each port, within the share of its thread."""
    datagram_sessions_per_address: int = Field(default=1_024, ge=1, le=10_000_000)
    """Limit of UDP sessions for each client address (IPv6: /64) and thread."""
    datagram_session_packets_per_second: int = Field(default=20_000, ge=1, le=10_000_000)
    """Limit of packets from one player to one UDP port."""
    datagram_session_bytes_per_second: int = Field(
        default=25_000_000, ge=65_536, le=100_000_000_000
    )
    """Limit of bytes from one player to one UDP port."""
    datagram_port_packets_per_second: int = Field(default=200_000, ge=1, le=10_000_000)
    """Limit of packets from all players to one UDP port."""
    datagram_port_bytes_per_second: int = Field(default=250_000_000, ge=65_536, le=100_000_000_000)
    """Limit of bytes from all players to one UDP port."""
    first_byte_ms: int = Field(default=10_000, ge=1_000, le=604_800_000)
    """A new connection without a byte in either direction is closed after this time."""
    stream_idle_ms: int = Field(default=7_200_000, ge=1_000, le=604_800_000)
    """A stream without data is closed after this time."""
    datagram_idle_ms: int = Field(default=60_000, ge=1_000, le=3_600_000)
    """A UDP session without data ends after this time."""


class EdgeSettings(_Section):
    address: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    """Player address of edge-guard without `domains.job`."""
    node_address: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    """Player address of this machine, for ports without edge-guard."""
    bind: Annotated[str, BeforeValidator(_ip_address)] = "127.0.0.1"
    """Listen address of edge-guard. 0.0.0.0 or :: means all addresses."""
    public_ports: PublicPorts = PortRange(PUBLIC_PORTS[0], PUBLIC_PORTS[-1])
    """Ports of lobbies and servers on which edge-guard listens, for TCP and UDP. A port outside a
    changed range stays open until its lobby or server ends.
    """
    http: EdgeListen | None = None
    """HTTP listener that routes by host name. None: disabled."""
    https: EdgeListen | None = None
    """HTTPS listener that routes by host name. It needs certificates. None: disabled."""
    is_fronted: bool = False
    """True if another proxy owns ports 80 and 443 and forwards to these listeners."""
    certificates: Annotated[tuple[Certificate, ...], BeforeValidator(from_text)] = ()
    """Certificates, read again at SIGHUP. In local mode they enable TLS for https and tcp_tls. The
    role `node` reads replaced files by itself.
    """
    proxies: Annotated[tuple[Network, ...], BeforeValidator(from_text)] = ()
    """Proxies in front of edge-guard that report client addresses."""
    proxy_header: Literal["optional", "required"] = "optional"
    """required: connections and UDP sessions of these proxies must begin with a PROXY header."""
    workers: int | None = Field(default=None, ge=1, le=256)
    """Number of threads for streams, and of threads for datagrams. None: one per core."""
    nice: int = Field(default=-4, ge=-20, le=19)
    """Niceness of edge-guard's threads, if the system permits it."""
    limits: EdgeLimits = EdgeLimits()


class S3Settings(_Section):
    """S3 bucket for uploads. It replaces the local upload folder."""

    bucket: str = Field(min_length=1, max_length=63)
    endpoint: Endpoint | None = None
    public_endpoint: Endpoint | None = None
    """Endpoint for clients, if different from `endpoint`."""
    region: str = "us-east-1"
    access_key_id: str = Field(min_length=1)
    secret_access_key: SecretStr
    prefix: str = ""


class BackupSettings(_Section):
    """Backups by `pyservice backup create`."""

    keep: int = Field(default=168, ge=1, le=100_000)
    """Number of backups that a target keeps, by default a week of hourly ones. A new one removes older ones."""
    bytes_per_second: int = Field(default=32 << 20, ge=64 << 10)
    """Limit of what a backup writes in a second."""
    recipients: Annotated[tuple[AgeRecipient, ...], BeforeValidator(from_text)] = ()
    """Public keys of age, such as `age1...`. Backups are encrypted for all of them."""


class RuntimeSettings(_Section):
    placement: Literal["local", "kubernetes"] = "local"
    """Where game servers run: on this machine, or as Pods of a cluster."""
    kinds: Annotated[tuple[BuildKind, ...], BeforeValidator(from_text)] = ("archive",)
    isolation: Literal["auto", "user", "namespace", "landlock", "none"] = "auto"
    """Isolation of game servers. `auto`: another user if root, else a user namespace, else
    Landlock.
    """
    oci_runtime: Path | None = None
    """crun, which runs images and bundles. None: the installed one."""
    shared_paths: Annotated[tuple[Path, ...], BeforeValidator(from_text)] = ()
    """Paths that every game server may read and execute, besides its build and system files."""
    cpu_millicores: int | None = Field(default=None, ge=1)
    """CPU limit of all lobbies and servers together, by their tiers. None: the cores of this
    machine.
    """
    memory_mb: int | None = Field(default=None, ge=1)
    """Memory limit of all lobbies and servers together, by their tiers. None: the memory of this
    machine.
    """
    log_bytes_max: int = Field(default=64 << 20, ge=1 << 20)
    """Limit of the log on disk for each server. The oldest lines are removed."""
    log_lines_per_second: int = Field(default=10_000, ge=0)
    """Limit of the lines that each server may log in a second, with a burst of ten seconds. Lines
    above it are dropped. 0: no limit.
    """
    log_bytes_per_second: int = Field(default=4 << 20, ge=0)
    """The same limit in bytes. 0: no limit."""
    cpu_limit_millicores: int = Field(default=0, ge=0)
    """Processor time that each server may use at most, even if processors are idle. A server with
    a larger tier may use its tier. 0: no limit.
    """
    scratch_bytes_max: int = Field(default=1 << 30, ge=16 << 20, le=1 << 40)
    """Limit of the scratch folder of each server. Builds and tiers can have lower limits."""
    process_ports: Ports = PortRange(PROCESS_PORTS[0], PROCESS_PORTS[-1])
    """Ports that game servers behind edge-guard bind."""
    host_ports: Ports = PortRange(HOST_PORTS[0], HOST_PORTS[-1])
    """Ports that game servers with host networking may bind."""
    user_ids: UserIds = None
    """User and group ids of game servers if the service is root. None: the subordinate ids of root
    if it has enough, else 2000000-2065535.
    """
    container_user_ids: UserIds = None
    """User and group ids of the users in containers if the service is root. None: subordinate ids
    of root that game servers do not have, else 2100000-2165535.
    """
    egress: Literal["internet", "none", "any"] = "internet"
    """Networks that game servers reach besides the API. `internet`: public addresses. `none`: no
    others. `any`: private networks too.
    """
    egress_networks: Annotated[tuple[Network, ...], BeforeValidator(from_text)] = ()
    """Networks that game servers reach in any case, also loopback addresses."""
    client_sockets_max: int = Field(default=256, ge=16, le=65_536)
    """Limit of the TCP and UDP sockets of one game server that are not bound to one of its ports.
    Each may use up a port of the machine.
    """
    own_port_sockets_max: int = Field(default=320, ge=16, le=65_536)
    """Limit of the TCP and UDP sockets of one game server that are bound to one of its ports, without
    accepted connections. Each port always has room for two.
    """
    allow_shared_network: bool = False
    """Whether game servers of different developer groups run at the same time if the kernel cannot
    isolate their network.
    """
    host_network: Literal["owner", "all", "none"] = "owner"
    """Developer groups that may use `network_mode` `host`, which removes the network isolation.
    `owner`: the group that the first start created.
    """
    end_with_service: bool = False
    """Whether game servers and edge-guard end with the service. They survive a killed service in
    any case.
    """


class JournalSettings(_Section):
    segment_bytes: int = Field(default=64 << 20, ge=1 << 20, le=1 << 30, multiple_of=4096)
    boot_id_path: Path = Path("/proc/sys/kernel/random/boot_id")
