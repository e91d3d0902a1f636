"""Settings of the service from flags, environment variables and a TOML file. All problems are
reported at once.

Flags override the environment variables `PYSERVICE_...`, which override the file. Only this module
reads the environment.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from pyservice.settings.configuration_report import ConfigurationReport
from pyservice.settings.exposure import exposure_warnings, is_of_this_machine
from pyservice.settings.kubernetes_conflicts import kubernetes_conflicts
from pyservice.settings.model import PREFIX, Settings
from pyservice.settings.sections import (
    BuildKind,
    CaptchaSettings,
    InheritedSocket,
    IpNetwork,
    ListenAddress,
    RateLimit,
    Region,
    S3Settings,
    Tier,
)
from pyservice.settings.user_ids import host_user_ids


def edge_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    edge = settings.edge
    has_both = _may_be_at(edge.http, 80) and _may_be_at(edge.https, 443)
    if settings.domains.job is not None and not edge.is_fronted and not has_both:
        yield (
            ["domains", "job"],
            "needs edge-guard at ports 80 and 443: set edge.http and edge.https to them or to inherited sockets "
            "(fd:3), or set edge.is_fronted if another proxy has these ports and forwards to edge-guard",
        )
    if isinstance(edge.https, InheritedSocket) and edge.https == edge.http:
        yield ["edge", "https"], f"{edge.https} is edge.http: hand over another socket"
    if edge.https is not None and not edge.certificates:
        yield ["edge", "https"], "needs edge.certificates"
    elif edge.https is not None and not edge.is_fronted:
        for location, host in _https_hosts(settings):
            if not _has_certificate(settings, host):
                yield (
                    location,
                    f"{host} is in no edge.certificates.server_names, and edge-guard ends TLS for it: add a "
                    "certificate, or set edge.is_fronted if another proxy ends TLS",
                )
    if edge.proxy_header == "required" and not edge.proxies:
        yield (
            ["edge", "proxy_header"],
            "needs edge.proxies: only proxies in them must send the header",
        )
    for number, certificate in enumerate(edge.certificates):
        for name in ("cert", "key"):
            location = ["edge", "certificates", str(number), name]
            yield from _unreadable(location, getattr(certificate, name))


def _https_hosts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    domains = settings.domains
    if domains.main is not None:
        yield ["domains", "main"], domains.main
    if domains.cdn is not None:
        yield ["domains", "cdn"], f"*.{domains.cdn}"
    files = urlsplit(settings.cdn_url or "")
    if files.scheme == "https" and files.hostname in settings.cdn_hosts:
        yield ["cdn_url"], files.hostname


def lobby_hosts_without_certificate(settings: Settings) -> list[str]:
    """Returns the host names of lobbies and servers for which edge-guard has no certificate.

    Lobbies with `https` and `tcp_tls` ports at these names do not become ready. Other lobbies do.
    """
    if settings.domains.job is None or settings.edge.https is None:
        return []
    domains = [f"{region.name_id}.{settings.domains.job}" for region in settings.regions]
    hosts = [
        host for domain in domains for host in (domain, f"*.lobby.{domain}", f"*.server.{domain}")
    ]
    return [host for host in hosts if not _has_certificate(settings, host)]


def lobby_certificate_warning(settings: Settings) -> str | None:
    hosts = lobby_hosts_without_certificate(settings)
    if not hosts:
        return None
    return (
        f"no certificate for {', '.join(hosts)}: lobbies and servers with https or tcp_tls ports there do not become "
        "ready"
    )


def _has_certificate(settings: Settings, host: str) -> bool:
    """Returns whether a server name is `host`, or a wildcard of one label that contains `host`."""
    wildcard = f"*.{host.partition('.')[2]}"
    return any(
        name.lower() in (host, wildcard)
        for certificate in settings.edge.certificates
        for name in certificate.server_names
    )


def _may_be_at(where: ListenAddress | InheritedSocket | None, port: int) -> bool:
    return isinstance(where, InheritedSocket) or (where is not None and where.port == port)


LISTENERS: Final = ("http", "grpc", "cdn", "metrics")
ANY_HOST: Final = frozenset({"0.0.0.0", "::"})
SEPARATE_HOST_HINT: Final = (
    "a separate host outside that domain, such as files.example.com beside cdn.example.com"
)

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class _UrlSetting(NamedTuple):
    """A URL of the service or its files, with the setting that defines it. `is_given` is False if
    the setting has its default.
    """

    location: tuple[str, ...]
    url: SplitResult
    is_given: bool = True

    @property
    def host(self) -> str:
        return (self.url.hostname or "").removesuffix(".")

    @property
    def origin(self) -> tuple[str, str, int]:
        port = self.url.port
        return self.url.scheme, self.host, _DEFAULT_PORTS[self.url.scheme] if port is None else port

    def is_below(self, domain: str | None) -> bool:
        return domain is not None and f".{self.host}".endswith(f".{domain}")


def origin_conflicts(settings: Settings, wrong: Set[str]) -> Iterator[tuple[list[str], str]]:
    """Yields a problem for each setting by which uploaded files share an origin with other content.

    Other content is the API, pages of the service, and the site of another developer. Uploaded
    files can run untrusted code in a browser. Settings in the invalid sections `wrong` are not
    compared.
    """
    domain = settings.domains.cdn
    services, stores = list(_services(settings, wrong)), list(_stores(settings, wrong))
    for service in services:
        if service.is_below(domain):
            yield (
                list(service.location),
                f"{service.url.hostname} is at or below domains.cdn ({domain}), where each host is the site of a game: "
                "give it a host outside that domain, or set domains.cdn to another domain",
            )
    for store in stores:
        if store.is_below(domain):
            yield (
                list(store.location),
                f"{store.url.hostname} is at or below domains.cdn ({domain}), and a game of that name would share its "
                f"origin with uploads and pictures: give it {SEPARATE_HOST_HINT}",
            )
        what = "the CDN" if store.location == ("cdn_url",) else "the bucket"
        for service in services:
            # `port_conflicts` and the listener check report overlapping listeners.
            if store.origin == service.origin and (store.is_given or service.is_given):
                yield (
                    list(store.location),
                    f"{store.url.geturl()} has the same origin as {'.'.join(service.location)} "
                    f"({service.url.geturl()}), where a site could act for its visitors: "
                    f"give {what} another host or port",
                )


def _services(settings: Settings, wrong: Set[str]) -> Iterator[_UrlSetting]:
    if settings.public_url is not None:
        yield from _url_setting(("public_url",), settings.public_url)
    elif wrong.isdisjoint(("http", "public_url")):
        yield from _listener_url(("public_url",), settings.http, settings.http_scheme)
    yield from _url_setting(("hub_url",), settings.hub_url)
    if settings.domains.main is not None:
        yield from _url_setting(("domains", "main"), f"https://{settings.domains.main}")


def _stores(settings: Settings, wrong: Set[str]) -> Iterator[_UrlSetting]:
    if settings.cdn_url is not None:
        yield from _url_setting(("cdn_url",), settings.cdn_url)
    elif settings.feed_file is None and wrong.isdisjoint(("cdn", "cdn_url", "feed_file")):
        yield from _listener_url(("cdn_url",), settings.cdn)
    if settings.s3 is not None:
        name = "endpoint" if settings.s3.public_endpoint is None else "public_endpoint"
        yield from _url_setting(("s3", name), getattr(settings.s3, name))


def _url_setting(location: tuple[str, ...], url: str | None) -> Iterator[_UrlSetting]:
    try:
        parts = urlsplit(url or "")
        _ = parts.port
    except ValueError:
        return
    if parts.hostname:
        yield _UrlSetting(location, parts)


def _listener_url(
    location: tuple[str, ...], address: ListenAddress, scheme: str = "http"
) -> Iterator[_UrlSetting]:
    host = "127.0.0.1" if address.host in ANY_HOST else address.host
    for url_setting in _url_setting(location, f"{scheme}://{ListenAddress(host, address.port)}"):
        yield url_setting._replace(is_given=False)


_KERNEL_PORTS: Final = Path("/proc/sys/net/ipv4")


def port_conflicts(settings: Settings, wrong: Set[str]) -> Iterator[tuple[list[str], str]]:
    """Yields a problem for each common port of two port ranges, or of a listener and the public ports.

    Settings in the invalid sections `wrong` are not compared.
    """
    ranges = {}
    if "edge" not in wrong:
        ranges["edge.public_ports"] = settings.edge.public_ports.numbers
        yield from _listeners_among_public_ports(settings, wrong)
    if "runtime" not in wrong:
        ranges["runtime.process_ports"] = settings.runtime.process_ports.numbers
        ranges["runtime.host_ports"] = settings.runtime.host_ports.numbers
    for (other, other_ports), (name, ports) in itertools.combinations(ranges.items(), 2):
        if common := _common(other_ports, ports):
            yield name.split("."), f"has {common} in common with {other}"


def _listeners_among_public_ports(
    settings: Settings, wrong: Set[str]
) -> Iterator[tuple[list[str], str]]:
    edge = settings.edge
    names = _listener_names(settings)
    listeners = {name: getattr(settings, name) for name in names if name not in wrong}
    listeners |= {"edge.http": edge.http, "edge.https": edge.https}
    for name, address in listeners.items():
        if not isinstance(address, ListenAddress) or address.port not in edge.public_ports.numbers:
            continue
        if _overlap(address, ListenAddress(edge.bind, address.port)):
            yield (
                ["edge", "public_ports"],
                f"has {address.port}, the port of {name}: give that listener another port, or choose another range",
            )


def ephemeral_public_ports(settings: Settings, folder: Path = _KERNEL_PORTS) -> str | None:
    """Returns a warning if the kernel gives public ports to outgoing connections.

    `folder` has the kernel's range of these ports, and the reserved ports that it leaves out. The
    nodes of a cluster have kernels of their own.
    """
    if settings.is_on_cluster:
        return None
    try:
        first, last = map(int, (folder / "ip_local_port_range").read_text().split())
        reserved = (folder / "ip_local_reserved_ports").read_text().strip()
        spans = [span.partition("-") for span in reserved.split(",") if span]
        left_out = {n for low, _, high in spans for n in range(int(low), int(high or low) + 1)}
    except (OSError, ValueError):
        return None
    common = set(settings.edge.public_ports.numbers) & set(range(first, last + 1)) - left_out
    if not common:
        return None
    return (
        f"edge.public_ports has ports that the kernel gives to outgoing connections ({min(common)}-{max(common)}), "
        "and lobbies do not get them meanwhile: choose another range, or add yours to net.ipv4.ip_local_reserved_ports"
    )


def configuration_memory_warning(settings: Settings) -> str | None:
    """Returns a warning if the groups of one identity can fill the memory of configurations."""
    quotas, most = settings.quotas, settings.data_plane_configuration_bytes
    of_identity = quotas.groups * quotas.configuration_bytes
    if of_identity <= most // 2:
        return None
    return (
        f"quotas.groups and quotas.configuration_bytes let one identity fill {of_identity:,} of the {most:,} bytes of "
        "data_plane_configuration_bytes, more than half: lower these quotas, or raise the limit"
    )


def _common(first: range, second: range) -> str | None:
    low, high = max(first.start, second.start), min(first.stop, second.stop) - 1
    return f"{low}-{high}" if low <= high else None


__all__ = [
    "PREFIX",
    "BuildKind",
    "CaptchaSettings",
    "ConfigurationReport",
    "IpNetwork",
    "ListenAddress",
    "Problem",
    "RateLimit",
    "Region",
    "S3Settings",
    "Settings",
    "SettingsError",
    "Tier",
    "configuration_memory_warning",
    "ephemeral_public_ports",
    "exposure_warnings",
    "load",
    "lobby_certificate_warning",
    "lobby_hosts_without_certificate",
]

_NOT_SETTINGS: Final = frozenset({"PYSERVICE_CONFIG", "PYSERVICE_URL", "PYSERVICE_TOKEN"})

_SOCKET_PATH_MAX: Final = 107
"""Kernel limit of a unix socket path, in bytes."""


@dataclass(frozen=True, slots=True)
class Problem:
    source: str
    """Where the setting has its value. Empty for a problem of a file that the settings name."""
    name: str
    message: str

    def __str__(self) -> str:
        where = f"{self.name}: " if self.name else ""
        source = f" ({self.source})" if self.source else ""
        return f"{where}{self.message}{source}"


class SettingsError(Exception):
    """Error with all problems of the settings. `usable` has the settings with defaults in place of
    invalid values.
    """

    def __init__(self, problems: list[Problem], usable: Settings | None = None) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.usable = usable


def load(
    flags: Mapping[str, object],
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Loads the settings from flags, environment and file. Raises SettingsError with every problem.

    A flag with the value None counts as not set. Without `config_file`, the environment variable
    `PYSERVICE_CONFIG` names the file.
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


def _conflicts(settings: Settings, wrong: Set[str]) -> Iterator[tuple[list[str], str]]:
    listeners: list[tuple[str, ListenAddress]] = []
    for name in _listener_names(settings):
        address: ListenAddress = getattr(settings, name)
        if name in wrong or not address.port:
            continue
        same = next(
            (other for other, other_address in listeners if _overlap(other_address, address)), None
        )
        if same is not None:
            yield [name], f"{address} is also the address of {same}"
        listeners.append((name, address))
    sockets = [settings.admin_socket, settings.control_http_socket]
    if "domains" not in wrong and "cdn_url" not in wrong and settings.cdn_hosts:
        sockets.append(settings.edge_cdn_socket)
    longest = max(sockets, key=lambda path: len(str(path)))
    if len(os.fsencode(longest)) > _SOCKET_PATH_MAX:
        yield ["data_dir"], f"is too long: {longest} may have {_SOCKET_PATH_MAX} bytes"
    yield from _unreadable(["journal", "boot_id_path"], settings.journal.boot_id_path)
    yield from _conflicts_without_front(settings)
    if "tls" not in wrong:
        yield from _tls_conflicts(settings)
    yield from origin_conflicts(settings, wrong)
    yield from _unreachable_urls(settings, wrong)
    if wrong.isdisjoint(("edge", "domains")):
        yield from edge_conflicts(settings)
    yield from port_conflicts(settings, wrong)
    if "runtime" not in wrong:
        yield from _user_id_conflicts(settings)
    yield from kubernetes_conflicts(settings, wrong)


def _listener_names(settings: Settings) -> tuple[str, ...]:
    return LISTENERS if settings.front == "on" else (*LISTENERS, "control_http")


def _conflicts_without_front(settings: Settings) -> Iterator[tuple[list[str], str]]:
    """Yields a problem for each setting that only the front applies."""
    if settings.front == "on":
        return
    if settings.domains.main is not None:
        yield ["front"], "off cannot serve domains.main: edge-guard forwards to the front"
    if settings.proxy_protocol:
        yield ["front"], "off cannot read PROXY headers: set proxy_protocol to false"
    if settings.has_tls:
        yield ["front"], "off cannot serve TLS: remove the settings of tls"


def _tls_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    files = {"cert": settings.tls.cert, "key": settings.tls.key}
    for (name, path), (other, other_path) in itertools.permutations(files.items(), 2):
        if path is None and other_path is not None:
            yield (
                ["tls", name],
                f"must be set beside tls.{other}: TLS needs a certificate and its key",
            )
        elif path is not None:
            yield from _unreadable(["tls", name], path)
    yield from _acme_conflicts(settings)


def _acme_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    acme = settings.tls.acme
    if acme.domains and acme.contact is None:
        message = "must be set beside tls.acme.domains: give an e-mail address for notices"
        yield ["tls", "acme", "contact"], message
    if acme.contact is not None and not acme.domains:
        message = "must be set beside tls.acme.contact: give the names of the certificate"
        yield ["tls", "acme", "domains"], message
    if acme.domains and settings.tls.cert is not None:
        message = "cannot be set beside tls.cert: remove one of the two"
        yield ["tls", "acme", "domains"], message
    if not acme.directory.startswith("https://"):
        yield ["tls", "acme", "directory"], "must begin with https://"
    if acme.root is not None:
        yield from _unreadable(["tls", "acme", "root"], acme.root)


def _unreadable(location: list[str], path: Path) -> Iterator[tuple[list[str], str]]:
    try:
        path.read_bytes()
    except OSError as error:
        yield location, f"{path} cannot be read: {error.strerror}"


def _user_id_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    """Yields a problem for each configured range of user ids that overlaps the other range."""
    runtime = settings.runtime
    ids = host_user_ids(runtime.user_ids, runtime.container_user_ids)
    common = _common(ids.servers.numbers, ids.containers.numbers)
    if common is None:
        return
    names = {"user_ids": runtime.user_ids, "container_user_ids": runtime.container_user_ids}
    for name, other in itertools.permutations(names):
        if names[name] is not None:
            yield ["runtime", name], f"has {common} in common with runtime.{other}"


def _unreachable_urls(settings: Settings, wrong: Set[str]) -> Iterator[tuple[list[str], str]]:
    for name in ("public_url", "cdn_url", "hub_url"):
        if "?" in (getattr(settings, name) or ""):
            yield [name], "must not have a query: paths are appended to it"
    domain = settings.domains.cdn
    if domain is None or settings.cdn_url is not None or settings.feed_file is not None:
        return
    if not wrong.isdisjoint(("cdn", "cdn_url")) or is_of_this_machine(domain):
        return
    host = settings.cdn.host
    if host in ANY_HOST or is_of_this_machine(host):
        yield (
            ["cdn_url"],
            f"must be set beside domains.cdn ({domain}): URLs of uploads and pictures would have the address "
            f"{settings.cdn}, which only this machine reaches; set it to a URL that your proxy forwards there: "
            f"{SEPARATE_HOST_HINT}",
        )


def _overlap(first: ListenAddress, second: ListenAddress) -> bool:
    is_any = not ANY_HOST.isdisjoint((first.host, second.host))
    return first.port == second.port and (is_any or first.host == second.host)


def _from_environment(environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    ours = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    for name in sorted(ours.keys() - _NOT_SETTINGS):
        # The model refuses unknown names inside sections.
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
        lower = merged.get(name)
        if isinstance(lower, dict) and isinstance(value, Mapping):
            value = _merge(lower, value)
        merged[name] = value
    return merged


def _problem(detail: Any, sources: list[tuple[str, dict[str, Any]]]) -> Problem:
    location = [str(part) for part in detail["loc"] if not str(part).startswith("function-")]
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = "is not a setting"
    return Problem(_origin_of(sources, location), ".".join(location), message)


def _origin_of(sources: list[tuple[str, dict[str, Any]]], location: list[str]) -> str:
    return next((source for source, values in sources if _holds(values, location)), "default")


def _holds(values: Any, location: list[str]) -> bool:
    if not location:
        return bool(values)
    if not isinstance(values, Mapping) or location[0] not in values:
        return False
    inner = values[location[0]]
    return not isinstance(inner, Mapping) or len(location) == 1 or _holds(inner, location[1:])
