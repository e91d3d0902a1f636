"""Validation of a version's configuration. Reports each problem with the path of its field.

If a list has too many entries, the excess entries are not validated. The time is therefore linear
in the size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Literal
from urllib.parse import urlsplit

from pyservice.control.configuration_encoding import to_feed
from pyservice.errors import FieldProblem
from pyservice.ids import PORT_NAME_MAX, is_name_id, is_uuid
from pyservice.network.hosts import (
    AllowedDestinations,
    ip_literal,
    is_absolute_name,
    is_number,
    known_address,
)
from pyservice.network.port_ranges import HOST_PORTS
from pyservice.network.reserved_names import (
    HEADER_NAME_MAX,
    is_environment_name,
    is_header_name,
    is_header_of_answers,
    is_header_of_connection,
    is_header_of_requests,
)
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.runtime.adapters import Adapter, adapter_problems
from pyservice.schema.findings import Finding, report_findings

GAME_MODES_MAX: Final = 32
GAME_MODE_NAME_MAX: Final = 64
REGIONS_MAX: Final = 64
IDLE_LOBBIES_MAX: Final = 32
REQUESTS_BEFORE_REVERIFY_MAX: Final = 600
VERIFICATION_TTL_MAX_MS: Final = 12 * 3_600_000
HOST_NAME_MAX_BYTES: Final = 253

_GAME_MODE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LIMITS: Final = ("max_players", "max_players_direct", "max_players_party")
_TIMES_MS: Final = (
    ("player_token_ttl", 5_000, 3_600_000),
    ("heartbeat_timeout", 1_000, 3_600_000),
    ("heartbeat_grace_ms", 0, 3_600_000),
)

Path = tuple[str, ...]
_Level = pb.VersionMatchmaker | pb.VersionGameMode


def configuration_problems(
    config: pb.CloudConfig, context: ValidationContext
) -> list[FieldProblem]:
    findings: list[Finding] = []
    if config.HasField("cdn"):
        findings += findings_in_site(config.cdn, ("config", "cdn"), context)
    if config.HasField("matchmaker"):
        findings += findings_in_size(config, ("config", "matchmaker"))
        findings += _matchmaker(config.matchmaker, ("config", "matchmaker"), context)
    return report_findings(findings) if findings else []


def image_ids(config: pb.CloudConfig) -> set[str]:
    matchmaker = config.matchmaker
    levels: list[_Level] = [matchmaker, *matchmaker.game_modes.entries.values()]
    return {level.docker.image_id for level in levels if is_uuid(level.docker.image_id)}


def site_ids(config: pb.CloudConfig) -> set[str]:
    site_id = config.cdn.site_id
    return {site_id} if is_uuid(site_id) else set()


def _matchmaker(
    level: pb.VersionMatchmaker, path: Path, context: ValidationContext
) -> Iterator[Finding]:
    if level.HasField("captcha"):
        yield from _captcha(level.captcha, (*path, "captcha"), context)
    if len(level.dev_hostname.encode()) > HOST_NAME_MAX_BYTES:
        yield Finding(
            (*path, "dev_hostname"), "too-long", f"must have at most {HOST_NAME_MAX_BYTES} bytes"
        )
    yield from _level(level, path, context)
    path = (*path, "game_modes")
    modes = level.game_modes.entries
    yield from _at_most(len(modes), GAME_MODES_MAX, path)
    for name in sorted(modes)[:GAME_MODES_MAX]:
        yield from _mode_name(name, (*path, name))
        yield from _mode(modes[name], (*path, name), context)
        yield from _adapter(modes[name], level, (*path, name), context)


def _mode_name(name: str, path: Path) -> Iterator[Finding]:
    if len(name) > GAME_MODE_NAME_MAX:
        yield Finding(path, "too-long", f"must have at most {GAME_MODE_NAME_MAX} characters")
    elif not _GAME_MODE_NAME.fullmatch(name):
        yield Finding(path, "invalid", "must be of A-Z, a-z, 0-9, _ and -, at least one")


def _mode(mode: pb.VersionGameMode, path: Path, context: ValidationContext) -> Iterator[Finding]:
    yield from _level(mode, path, context)
    for field, low, high in _TIMES_MS:
        if mode.HasField(field):
            yield from _number(getattr(mode, field), (*path, field), low, high)
    for action in ("create", "find", "join"):
        settings = getattr(mode.actions, action)
        if settings.HasField("verification"):
            yield from findings_in_verification(
                settings.verification, (*path, "actions", action, "verification"), context
            )


def _adapter(
    mode: pb.VersionGameMode,
    matchmaker: pb.VersionMatchmaker,
    path: Path,
    context: ValidationContext,
) -> Iterator[Finding]:
    if not mode.HasField("adapter"):
        return
    docker = mode.docker if mode.HasField("docker") else matchmaker.docker
    if context.is_on_cluster and mode.adapter.ready == "port":
        port = docker.ports.entries.get(Adapter.of(mode.adapter, docker.ports.entries).port)
        if port is not None and port.protocol == "udp":
            yield Finding((*path, "adapter", "ready"), "not-allowed", NO_UDP_WATCH)
    for problem in adapter_problems(mode.adapter, docker.ports.entries):
        yield Finding((*path, "adapter", problem.field), problem.word, problem.reason)
    if mode.HasField("heartbeat_timeout") and mode.adapter.ready not in ("", "calls"):
        reason = "must not be set: a server with an adapter sends no heartbeats"
        yield Finding((*path, "heartbeat_timeout"), "not-allowed", reason)


def _level(level: _Level, path: Path, context: ValidationContext) -> Iterator[Finding]:
    for field in _LIMITS:
        if level.HasField(field):
            yield from _number(getattr(level, field), (*path, field), 1, context.player_limit_max)
    yield from _tier_and_idle_lobbies(level, path, context)
    regions = level.regions.entries
    yield from _at_most(len(regions), REGIONS_MAX, (*path, "regions"))
    for region in sorted(regions)[:REGIONS_MAX]:
        where = (*path, "regions", region)
        if region not in context.regions:
            yield Finding(where, "not-found", "is not a region of this service")
        yield from _tier_and_idle_lobbies(regions[region], where, context)
    if level.HasField("docker"):
        yield from findings_in_docker(level.docker, (*path, "docker"), context)


def _tier_and_idle_lobbies(
    level: _Level | pb.VersionRegion, path: Path, context: ValidationContext
) -> Iterator[Finding]:
    if level.HasField("tier") and level.tier not in context.tiers:
        names = ", ".join(sorted(context.tiers))
        message = f"is not a tier of this service, which has {names}"
        yield Finding((*path, "tier"), "not-found", message)
    if level.HasField("idle_lobbies"):
        low, high = level.idle_lobbies.min, level.idle_lobbies.max
        path = (*path, "idle_lobbies")
        yield from _number(low, (*path, "min"), 0, IDLE_LOBBIES_MAX)
        yield from _number(high, (*path, "max"), 0, IDLE_LOBBIES_MAX)
        if high < low:
            yield Finding((*path, "max"), "too-low", "must be at least min")


def _captcha(
    captcha: pb.VersionCaptcha, path: Path, context: ValidationContext
) -> Iterator[Finding]:
    providers = [name for name in ("captcha_a", "captcha_b") if captcha.HasField(name)]
    for name in providers:
        if name not in context.captcha_providers:
            yield Finding(
                (*path, name),
                "not-allowed",
                f"cannot be used: the operator of this service has not set captcha.{name}_url",
            )
        for key in ("secret_key", "site_key"):
            if not getattr(getattr(captcha, name), key):
                yield Finding((*path, name, key), "too-short", "must not be empty")
    for field, high in (
        ("requests_before_reverify", REQUESTS_BEFORE_REVERIFY_MAX),
        ("verification_ttl", VERIFICATION_TTL_MAX_MS),
    ):
        if captcha.HasField(field):
            yield from _number(getattr(captcha, field), (*path, field), 0, high)
        elif providers:
            yield Finding((*path, field), "required", f"is required beside {providers[0]}")


def _number(number: int, path: Path, low: int, high: int) -> Iterator[Finding]:
    if number < low:
        yield Finding(path, "too-low", f"must be at least {low}")
    elif number > high:
        yield Finding(path, "too-high", f"must be at most {high}")


def _at_most(count: int, limit: int, path: Path) -> Iterator[Finding]:
    if count > limit:
        yield Finding(path, "too-many", f"must have at most {limit} entries")


Completeness = Literal["complete", "incomplete"]


@dataclass(frozen=True, slots=True)
class ValidationContext:
    player_limit_max: int
    regions: Collection[str]
    tiers: Collection[str]
    builds: Mapping[str, Completeness]
    sites: Mapping[str, Completeness] | None = None
    """Completeness of the game's sites by id. None: sites are not validated."""
    captcha_providers: Collection[str] = ()
    host_ports: range = HOST_PORTS
    is_on_cluster: bool = False
    """Whether game servers run on the nodes of a cluster and not on this machine."""
    verification_allowed_networks: Sequence[IPv4Network | IPv6Network] = ()


MATCHMAKER_BYTES_MAX: Final = 640 * 1024


def findings_in_size(config: pb.CloudConfig, path: tuple[str, ...]) -> Iterator[Finding]:
    # The data plane's message is never larger than the source.
    if config.matchmaker.ByteSize() <= MATCHMAKER_BYTES_MAX:
        return
    size = to_feed(config).ByteSize()
    if size > MATCHMAKER_BYTES_MAX:
        sentence = f"takes {size:,} bytes in the matchmaker, at most {MATCHMAKER_BYTES_MAX:,}"
        yield Finding(path, "too-long", f"{sentence}: shorten args, env, or headers")


PORTS_MAX: Final = 16
PORT_MAX: Final = 65_535
ARGS_MAX: Final = 64
ARG_MAX_BYTES: Final = 1024
ENV_MAX: Final = 64
ENV_NAME_MAX_BYTES: Final = 128
ENV_VALUE_MAX_BYTES: Final = 8192
PROTOCOLS: Final = ("http", "https", "tcp", "tcp_tls", "udp", "tcp_udp")
HOST_PROTOCOLS: Final = ("tcp", "udp", "tcp_udp")
PROXIES: Final = ("edge-guard", "none")
NETWORK_MODES: Final = ("bridge", "host")
PROXY_PROTOCOLS: Final = ("none", "v2")
RELAYED_PROTOCOLS: Final = ("tcp", "tcp_tls", "udp", "tcp_udp")
"""Protocols of which edge-guard passes on plain bytes. HTTP has the header X-Forwarded-For."""
PROXY_PROTOCOL_RULE: Final = (
    f"v2 needs edge-guard and one of {', '.join(RELAYED_PROTOCOLS)}; "
    "http and https have the header X-Forwarded-For"
)

NO_HOST_NETWORK: Final = (
    "is not possible on Kubernetes, where ports are leased when a game server has a node: "
    "use network_mode bridge, and ports with the proxy edge-guard"
)

NO_UDP_WATCH: Final = (
    "cannot be port on Kubernetes for a port of udp, because the service tries a TCP connection: "
    "use log or query"
)

_DEFAULT_PROTOCOL: Final = "https"
_DEFAULT_PROXY: Final = "edge-guard"


def findings_in_docker(
    docker: pb.VersionDocker, path: Path, context: ValidationContext
) -> Iterator[Finding]:
    # Fields that only the command-line tool uses are not validated.
    if docker.HasField("image_id"):
        state = context.builds.get(docker.image_id)
        if state is None:
            yield Finding((*path, "image_id"), "not-found", "is not a build of this game")
        elif state != "complete":
            yield Finding((*path, "image_id"), "incomplete", "is a build that is not complete")
    if docker.HasField("network_mode"):
        yield from _one_of(docker.network_mode, NETWORK_MODES, (*path, "network_mode"))
        if docker.network_mode == "host" and context.is_on_cluster:
            yield Finding((*path, "network_mode"), "not-allowed", NO_HOST_NETWORK)
    yield from findings_in_arguments(docker.args.entries, (*path, "args"))
    yield from findings_in_environment(docker.env.entries, (*path, "env"))
    path = (*path, "ports")
    ports = docker.ports.entries
    yield from _at_most(len(ports), PORTS_MAX, path)
    for name in sorted(ports)[:PORTS_MAX]:
        if not is_name_id(name, PORT_NAME_MAX):
            yield Finding(
                (*path, name), "invalid", f"must be 1 to {PORT_NAME_MAX} of a-z, 0-9, single dashes"
            )
        yield from _port(ports[name], (*path, name), docker.network_mode, context)


def findings_in_arguments(args: Sequence[str], path: Path) -> Iterator[Finding]:
    yield from _at_most(len(args), ARGS_MAX, path)
    for index, arg in enumerate(args[:ARGS_MAX]):
        yield from _text(arg, (*path, str(index)), ARG_MAX_BYTES)


def findings_in_environment(env: Mapping[str, str], path: Path) -> Iterator[Finding]:
    yield from _at_most(len(env), ENV_MAX, path)
    for name in sorted(env)[:ENV_MAX]:
        if not name:
            yield Finding((*path, name), "too-short", "must not be an empty name")
        elif len(name.encode()) > ENV_NAME_MAX_BYTES:
            yield Finding(
                (*path, name), "too-long", f"must have a name of at most {ENV_NAME_MAX_BYTES} bytes"
            )
        elif "=" in name or "\0" in name:
            yield Finding((*path, name), "invalid", "must have a name without = and NUL")
        elif is_environment_name(name):
            yield Finding((*path, name), "not-allowed", "is a name that the service sets itself")
        yield from _text(env[name], (*path, name), ENV_VALUE_MAX_BYTES)


def _text(text: str, path: Path, limit_bytes: int) -> Iterator[Finding]:
    if len(text.encode()) > limit_bytes:
        yield Finding(path, "too-long", f"must have at most {limit_bytes} bytes")
    elif "\0" in text:
        yield Finding(path, "invalid", "must not have the character NUL")


def _port(
    port: pb.VersionPort, path: Path, network_mode: str, context: ValidationContext
) -> Iterator[Finding]:
    for field in ("protocol", "dev_protocol"):
        if port.HasField(field):
            yield from _one_of(getattr(port, field), PROTOCOLS, (*path, field))
    for field in ("port", "dev_port"):
        if port.HasField(field):
            yield from _number(getattr(port, field), (*path, field), 1, PORT_MAX)
    if port.HasField("dev_port_range"):
        yield from _range(port.dev_port_range, (*path, "dev_port_range"), 1, PORT_MAX)
    if port.HasField("port_range"):
        first, last = context.host_ports[0], context.host_ports[-1]
        yield from _range(port.port_range, (*path, "port_range"), first, last)
        if context.is_on_cluster:
            yield Finding((*path, "port_range"), "not-allowed", NO_HOST_NETWORK)
    proxy = port.proxy if port.HasField("proxy") else _DEFAULT_PROXY
    yield from _proxy_protocol(port, proxy, (*path, "proxy_protocol"))
    if proxy not in PROXIES:
        yield from _one_of(proxy, PROXIES, (*path, "proxy"))
    elif proxy == _DEFAULT_PROXY:
        if port.HasField("port_range"):
            yield Finding((*path, "port_range"), "not-allowed", "requires proxy none")
    else:
        yield from _unproxied(port, path, network_mode)


def _proxy_protocol(port: pb.VersionPort, proxy: str, path: Path) -> Iterator[Finding]:
    if not port.HasField("proxy_protocol"):
        return
    if port.proxy_protocol not in PROXY_PROTOCOLS:
        yield from _one_of(port.proxy_protocol, PROXY_PROTOCOLS, path)
    elif port.proxy_protocol == "v2":
        protocol = port.protocol if port.HasField("protocol") else _DEFAULT_PROTOCOL
        if proxy != _DEFAULT_PROXY or protocol not in RELAYED_PROTOCOLS:
            yield Finding(path, "not-allowed", PROXY_PROTOCOL_RULE)


def _unproxied(port: pb.VersionPort, path: Path, network_mode: str) -> Iterator[Finding]:
    if network_mode != "host":
        yield Finding((*path, "proxy"), "not-allowed", "is none, which requires network_mode host")
    protocol = port.protocol if port.HasField("protocol") else _DEFAULT_PROTOCOL
    if protocol in PROTOCOLS and protocol not in HOST_PROTOCOLS:
        yield Finding(
            (*path, "protocol"),
            "not-allowed",
            "must be tcp, udp or tcp_udp, which proxy none needs",
        )
    if not port.HasField("port_range"):
        yield Finding((*path, "port_range"), "required", "is required, because proxy is none")


def _one_of(text: str, allowed: tuple[str, ...], path: Path) -> Iterator[Finding]:
    if text not in allowed:
        yield Finding(path, "not-allowed", f"must be one of {', '.join(allowed)}")


def _range(ports: pb.VersionPortRange, path: Path, low: int, high: int) -> Iterator[Finding]:
    yield from _number(ports.min, (*path, "min"), low, high)
    yield from _number(ports.max, (*path, "max"), low, high)
    if low <= ports.max < ports.min:
        yield Finding((*path, "max"), "too-low", "must be at least min")


URL_MAX_BYTES: Final = 2048
HEADERS_MAX: Final = 32

_VISIBLE = re.compile(r"[\x21-\x7e]+")


def findings_in_verification(
    verification: pb.VersionVerification, path: Path, context: ValidationContext
) -> Iterator[Finding]:
    url = verification.url
    if len(url.encode()) > URL_MAX_BYTES:
        yield Finding((*path, "url"), "too-long", f"must have at most {URL_MAX_BYTES} bytes")
    else:
        yield from _url(url, (*path, "url"), context)
    headers = verification.headers.entries
    path = (*path, "headers")
    yield from _at_most(len(headers), HEADERS_MAX, path)
    lower_names: set[str] = set()
    for name in sorted(headers)[:HEADERS_MAX]:
        yield from findings_in_header_name(name, (*path, name), is_header_of_requests)
        yield from findings_in_header_value(headers[name], (*path, name), HEADER_VALUE_MAX_BYTES)
        lower_name = name.lower()
        if lower_name in lower_names and not is_header_of_requests(lower_name):
            yield Finding((*path, name), "not-unique", "occurs more than once, in different case")
        lower_names.add(lower_name)


def _url(url: str, path: Path, context: ValidationContext) -> Iterator[Finding]:
    host = _host_of(url)
    if host is None:
        yield Finding(
            path,
            "invalid",
            "must be http:// or https:// with a host, maybe a port and a path, in ASCII without "
            "spaces, and without user name, password and fragment",
        )
        return
    address = known_address(host)
    is_allowed = AllowedDestinations(tuple(context.verification_allowed_networks))
    if address is not None and not is_allowed(address):
        yield Finding(path, "not-allowed", f"must have a public host; {host} is not public")


def _host_of(url: str) -> str | None:
    if not url.startswith(("http://", "https://")) or not _VISIBLE.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or port == 0 or "@" in parts.netloc or parts.fragment:
        return None
    if ip_literal(host) is not None:
        return host
    return host if is_absolute_name(host) and not is_number(host) else None


ROUTES_MAX: Final = 32
MIDDLEWARES_MAX: Final = 32
PRIORITY_MAX: Final = 100
GLOB_MAX_BYTES: Final = 1024
HEADER_VALUE_MAX_BYTES: Final = 1024

# Visible ASCII with inner spaces and tabs. HTTP removes them at the ends.
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_RANGE = re.compile(r"(?s)(.)-(.)")


def findings_in_site(
    cdn: pb.VersionCdn, path: Path, context: ValidationContext
) -> Iterator[Finding]:
    if cdn.HasField("site_id") and context.sites is not None:
        state = context.sites.get(cdn.site_id)
        if state is None:
            yield Finding((*path, "site_id"), "not-found", "is not a site of this game")
        elif state != "complete":
            yield Finding((*path, "site_id"), "incomplete", "is a site with an incomplete upload")
    routes = cdn.routes.entries
    path = (*path, "routes")
    yield from _at_most(len(routes), ROUTES_MAX, path)
    globs: set[str] = set()
    for index, route in enumerate(routes[:ROUTES_MAX]):
        yield from _route(route, (*path, str(index)))
        if route.glob in globs:
            yield Finding((*path, str(index), "glob"), "not-unique", "occurs more than once")
        globs.add(route.glob)


def _route(route: pb.VersionRoute, path: Path) -> Iterator[Finding]:
    if not route.glob:
        yield Finding((*path, "glob"), "too-short", "must not be empty")
    elif len(route.glob.encode()) > GLOB_MAX_BYTES:
        yield Finding((*path, "glob"), "too-long", f"must have at most {GLOB_MAX_BYTES} bytes")
    elif reason := glob_problem(route.glob):
        yield Finding((*path, "glob"), "invalid", reason)
    if route.priority > PRIORITY_MAX:
        yield Finding((*path, "priority"), "too-high", f"must be at most {PRIORITY_MAX}")
    path = (*path, "middlewares")
    middlewares = route.middlewares.entries
    yield from _at_most(len(middlewares), MIDDLEWARES_MAX, path)
    for index, middleware in enumerate(middlewares[:MIDDLEWARES_MAX]):
        where = (*path, str(index), "kind", "custom_headers", "headers")
        headers = middleware.kind.custom_headers.headers.entries
        yield from _at_most(len(headers), HEADERS_MAX, where)
        for number, header in enumerate(headers[:HEADERS_MAX]):
            at_header = (*where, str(number))
            yield from findings_in_header_name(
                header.name, (*at_header, "name"), is_header_of_answers
            )
            yield from findings_in_header_value(
                header.value, (*at_header, "value"), HEADER_VALUE_MAX_BYTES
            )


def findings_in_header_name(
    name: str, path: Path, is_set_by_service: Callable[[str], bool]
) -> Iterator[Finding]:
    if not name:
        yield Finding(path, "too-short", "must not be an empty header name")
    elif len(name.encode()) > HEADER_NAME_MAX:
        yield Finding(path, "too-long", f"must have at most {HEADER_NAME_MAX} bytes")
    elif not is_header_name(name):
        yield Finding(path, "invalid", "must be the name of an HTTP header")
    elif is_header_of_connection(name) or is_set_by_service(name):
        yield Finding(path, "not-allowed", "is a header that only the service sets")


def findings_in_header_value(value: str, path: Path, limit_bytes: int) -> Iterator[Finding]:
    if len(value.encode()) > limit_bytes:
        yield Finding(path, "too-long", f"must have at most {limit_bytes} bytes")
    elif not _HEADER_VALUE.fullmatch(value):
        yield Finding(
            path, "invalid", "must be visible ASCII, with spaces and tabs only between characters"
        )


def glob_problem(glob: str) -> str | None:
    """Returns a mistake in a glob pattern, or None.

    A pattern may contain `*`, `**`, `?`, `[a-z]`, `[!a]`, and `{a,b}` without nesting.
    """
    position, is_in_braces = 0, False
    while position < len(glob):
        character = glob[position]
        if character < " " or character in "\x7f\\":
            return "must not have control characters or backslashes"
        if character == "[":
            start = position + (2 if glob.startswith("[!", position) else 1)
            end = glob.find("]", start + 1)
            if end < 0:
                return "has a [ without members and a closing ]"
            if any(low > high for low, high in _RANGE.findall(glob, start, end)):
                return "has a range in [] with its ends in the wrong order"
            position = end
        elif character == "{":
            if is_in_braces:
                return "has a { inside of {}"
            is_in_braces = True
        elif character == "}":
            if not is_in_braces:
                return "has a } without a {"
            is_in_braces = False
        position += 1
    return "has a { without a }" if is_in_braces else None
