"""Validation of configurations beyond the proto rules: operator limits, names, ports, uniqueness.

All problems are reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pyservice.dataplane.namespace_index import NamespaceIndex, public_hosts
from pyservice.dataplane.resolved_namespace import CAPTCHA_PROVIDERS, raw_id
from pyservice.errors import FieldProblem
from pyservice.ids import (
    GAME_NAME_MAX,
    NAMESPACE_NAME_MAX,
    PORT_NAME_MAX,
    display_name_flaws,
    is_name_id,
    is_uuid,
)
from pyservice.network.hosts import (
    Address,
    AllowedDestinations,
    Network,
    ip_literal,
    is_absolute_name,
    is_host,
    is_number,
    known_address,
)
from pyservice.network.port_ranges import HOST_PORTS
from pyservice.network.reserved_names import (
    HEADER_NAME_MAX,
    is_environment_name,
    is_header_name,
    is_header_of_connection,
    is_header_of_requests,
)
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.pb.hosting.internal.v1.feed_pb2 import Problem
from pyservice.runtime.adapters import adapter_problems
from pyservice.schema.validation import validate
from pyservice.settings.quotas import QUOTAS

Finding = tuple[tuple[str, ...], str]

_VALUE_MAX: Final = 1024
_HEADER_VALUE = re.compile(r"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")


def captcha_problems(
    captcha: pb.CaptchaConfig, path: tuple[str, ...], endpoints: Collection[str]
) -> Iterator[Finding]:
    is_any = False
    for name in CAPTCHA_PROVIDERS:
        if not captcha.HasField(name):
            continue
        is_any = True
        if name not in endpoints:
            yield (
                (*path, name),
                f"cannot be used: the operator of this service has not set captcha.{name}_url",
            )
    if is_any:
        for field in ("requests_before_reverify", "verification_ttl"):
            if not captcha.HasField(field):
                yield (*path, field), "must be set"


def verification_problems(
    verification: pb.Verification, path: tuple[str, ...], is_allowed: Callable[[Address], bool]
) -> Iterator[Finding]:
    reason = _url_problem(verification.url, is_allowed)
    if reason:
        yield (*path, "url"), reason
    yield from _header_problems(verification.headers, (*path, "headers"))


def _url_problem(url: str, is_allowed: Callable[[Address], bool]) -> str | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not host or port == 0 or not url.isprintable():
        return "must be an http or https URL with a host"
    if parts.username is not None or parts.password is not None:
        return "must not have a user or password; send them in headers"
    if parts.fragment:
        return "must not have a fragment"
    address = ip_literal(host)
    if address is None:
        host = host.lower()
        if not is_absolute_name(host):
            return "has a host that is neither a host name nor an IP address"
        if is_number(host):
            return "has an IP address that is not in its usual form, such as 192.0.2.1"
        address = known_address(host)
        if address is None:
            return None
    if is_allowed(address):
        return None
    return (
        "must have a public host; the operator of this service may allow others with "
        "verification_allowed_networks"
    )


def _header_problems(headers: Mapping[str, str], path: tuple[str, ...]) -> Iterator[Finding]:
    lower_names: set[str] = set()
    for name, value in sorted(headers.items()):
        lower_name = name.lower()
        if not is_header_name(name) or len(name) > HEADER_NAME_MAX:
            yield (*path, name), "must be the name of an HTTP header"
        elif is_header_of_connection(name) or is_header_of_requests(name):
            yield (*path, name), "is a header that the service sets itself"
        elif lower_name in lower_names:
            yield (*path, name), "occurs more than once, in different case"
        lower_names.add(lower_name)
        if value and (not _HEADER_VALUE.fullmatch(value) or len(value) > _VALUE_MAX):
            yield (
                (*path, name),
                f"must be at most {_VALUE_MAX} characters without control characters and without "
                "spaces at its ends",
            )


_log = get_logger("feed")

MATCHMAKER_BYTES_MAX: Final = 640 * 1024
"""Limit for one version. The control plane refuses larger versions earlier."""


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    player_limit_max: int
    regions: Collection[str] | None
    verification_allowed_networks: tuple[Network, ...] = ()
    captcha_providers: Collection[str] = ()
    host_ports: range = HOST_PORTS
    configuration_bytes: int = QUOTAS["configuration_bytes"].default
    """Limit of a developer group without a limit of its own."""


def configuration_problems(
    configuration: pb.NamespaceConfiguration,
    limits: OperatorLimits,
    stored_namespaces: NamespaceIndex,
) -> list[Problem]:
    return own_problems(configuration, limits, stored_namespaces) + conflict_problems(
        configuration, stored_namespaces
    )


def own_problems(
    configuration: pb.NamespaceConfiguration,
    limits: OperatorLimits,
    stored_namespaces: NamespaceIndex,
) -> list[Problem]:
    """Returns the problems of a configuration that do not depend on other namespaces.

    Versions that are already stored are not validated again. A lowered limit therefore does not
    block other changes.
    """
    findings: list[Finding] = [_finding_of(problem) for problem in validate(configuration)]
    findings += _names(configuration)
    findings += _versions(configuration, limits, stored_namespaces)
    findings += _development_tokens(configuration)
    return [Problem(path=path, reason=reason) for path, reason in findings]


def _finding_of(problem: FieldProblem) -> Finding:
    path = problem.path[:-1]
    return path, problem.message.removeprefix(f"{'.'.join(path)} ")


def conflict_problems(
    configuration: pb.NamespaceConfiguration, stored_namespaces: NamespaceIndex
) -> list[Problem]:
    return [*_access(configuration, stored_namespaces), *_tokens(configuration, stored_namespaces)]


def _names(configuration: pb.NamespaceConfiguration) -> Iterator[Finding]:
    name_fields: tuple[tuple[tuple[str, ...], str, int], ...] = (
        (("game", "name_id"), configuration.game.name_id, GAME_NAME_MAX),
        (("name_id",), configuration.name_id, NAMESPACE_NAME_MAX),
    )
    for path, text, longest in name_fields:
        if not is_name_id(text, longest):
            yield path, f"must be 1 to {longest} of a-z, 0-9 and single dashes, not a UUID"
    display_names: list[tuple[tuple[str, ...], str]] = [
        (("game", "display_name"), configuration.game.display_name),
        (("display_name",), configuration.display_name),
        *(
            (("versions", str(index), "display_name"), version.display_name)
            for index, version in enumerate(configuration.versions)
        ),
    ]
    for path, text in display_names:
        for _, reason in display_name_flaws(text):
            yield path, reason


def _versions(
    configuration: pb.NamespaceConfiguration,
    limits: OperatorLimits,
    stored_namespaces: NamespaceIndex,
) -> Iterator[Finding]:
    stored_versions = _stored_versions(configuration.namespace_id, stored_namespaces)
    ids = [version.version_id for version in configuration.versions]
    if configuration.current_version_id not in ids:
        yield ("current_version_id",), "must be the id of a version in this configuration"
    for index, version in enumerate(configuration.versions):
        path = ("versions", str(index))
        if ids.index(version.version_id) != index:
            yield (*path, "version_id"), "occurs more than once"
        if version.retired_ts_ms:
            yield (*path, "retired_ts_ms"), "is set by the data plane and must not be fed"
        if stored_versions.get(version.version_id) != version:
            size = version.matchmaker.ByteSize()
            if size > MATCHMAKER_BYTES_MAX:
                sentence = f"takes {size:,} bytes, at most {MATCHMAKER_BYTES_MAX:,}"
                yield (*path, "matchmaker"), sentence
            yield from _matchmaker(version.matchmaker, (*path, "matchmaker"), limits)
    if configuration.retained_versions:
        yield ("retained_versions",), "is set by the data plane and must not be fed"


def _stored_versions(namespace_id: str, stored_namespaces: NamespaceIndex) -> dict[str, pb.Version]:
    stored = (
        stored_namespaces.configuration(raw_id(namespace_id)) if is_uuid(namespace_id) else None
    )
    return {version.version_id: version for version in stored.versions} if stored else {}


def _matchmaker(
    matchmaker: pb.MatchmakerConfig, path: tuple[str, ...], limits: OperatorLimits
) -> Iterator[Finding]:
    yield from captcha_problems(matchmaker.captcha, (*path, "captcha"), limits.captcha_providers)
    is_allowed = AllowedDestinations(limits.verification_allowed_networks)
    yield from _level(matchmaker, path, limits)
    for name, mode in sorted(matchmaker.game_modes.items()):
        mode_path = (*path, "game_modes", name)
        for action in ("create", "find", "join"):
            action_settings = getattr(mode.actions, action)
            if action_settings.HasField("verification"):
                verification_path = (*mode_path, "actions", action, "verification")
                yield from verification_problems(
                    action_settings.verification, verification_path, is_allowed
                )
        yield from _level(mode, mode_path, limits)
        if mode.HasField("adapter"):
            docker = mode.docker if mode.HasField("docker") else matchmaker.docker
            for problem in adapter_problems(mode.adapter, docker.ports):
                yield (*mode_path, "adapter", problem.field), problem.reason


def _level(
    level: pb.MatchmakerConfig | pb.GameMode, path: tuple[str, ...], limits: OperatorLimits
) -> Iterator[Finding]:
    for field in ("max_players", "max_players_direct", "max_players_party"):
        if getattr(level, field) > limits.player_limit_max:
            yield (*path, field), f"must be at most {limits.player_limit_max}"
    for region in sorted(level.regions):
        if limits.regions is not None and region not in limits.regions:
            yield (*path, "regions", region), "is not a region of this service"
    yield from _docker(level.docker, (*path, "docker"), limits.host_ports)


def _docker(docker: pb.DockerConfig, path: tuple[str, ...], host_ports: range) -> Iterator[Finding]:
    for name in sorted(docker.env):
        if is_environment_name(name):
            yield (*path, "env", name), "is a name that the service sets itself"
    for name, port in sorted(docker.ports.items()):
        port_path = (*path, "ports", name)
        if not is_name_id(name, PORT_NAME_MAX):
            yield port_path, "must be 1 to 26 of a-z, 0-9 and single dashes, not a UUID"
        reason = _port_problem(port, docker.network_mode, host_ports)
        if reason:
            yield port_path, reason


def _port_problem(port: pb.PortConfig, network_mode: str, host_ports: range) -> str | None:
    is_relayed = (port.protocol or "https") not in ("http", "https")
    if port.proxy_protocol == "v2" and (port.proxy == "none" or not is_relayed):
        return "has proxy_protocol v2, which requires proxy edge-guard and no http or https"
    if (port.proxy or "edge-guard") == "edge-guard":
        return (
            "has a port_range, which requires proxy none" if port.HasField("port_range") else None
        )
    if network_mode != "host":
        return "has proxy none, which requires network_mode host"
    if (port.protocol or "https") not in ("tcp", "udp", "tcp_udp"):
        return "has proxy none, which requires protocol tcp, udp or tcp_udp"
    if not port.HasField("port_range"):
        return "has proxy none, which requires a port_range"
    if port.port_range.min not in host_ports or port.port_range.max not in host_ports:
        return f"has a port_range outside {host_ports[0]}-{host_ports[-1]}"
    return None


def _access(
    configuration: pb.NamespaceConfiguration, stored_namespaces: NamespaceIndex
) -> Iterator[Problem]:
    hosts: set[str] = set()
    public = public_hosts(configuration)
    for field in ("domains", "cdn_domains"):
        for index, domain in enumerate(getattr(configuration.access, field)):
            path = ("access", field, str(index))
            host = domain.lower().rstrip(".")
            if not is_host(host):
                reason = "must be a host name or an IP address, without scheme and port"
                yield Problem(path=path, reason=reason)
            elif host in hosts:
                yield Problem(path=path, reason="occurs more than once")
            elif host in public and (
                owner := _owner(
                    configuration, stored_namespaces, stored_namespaces.native.of_host(host)
                )
            ):
                yield Problem(path=path, reason="belongs to another namespace", held_by=owner)
            hosts.add(host)
    same_name = stored_namespaces.find(_name(configuration))
    if same_name and (owner := _owner(configuration, stored_namespaces, same_name.namespace_id)):
        reason = "is the name of another namespace of the game"
        yield Problem(path=("name_id",), reason=reason, held_by=owner)


def _tokens(
    configuration: pb.NamespaceConfiguration, stored_namespaces: NamespaceIndex
) -> Iterator[Problem]:
    hashes: set[bytes] = set()
    for index, token in enumerate(configuration.environment_tokens):
        path = ("environment_tokens", str(index), "sha256")
        known = stored_namespaces.native.of_service_token(token.sha256)
        if token.sha256 in hashes:
            yield Problem(path=path, reason="occurs more than once")
        elif owner := _owner(configuration, stored_namespaces, known):
            yield Problem(path=path, reason="belongs to another namespace", held_by=owner)
        hashes.add(token.sha256)


def _development_tokens(configuration: pb.NamespaceConfiguration) -> Iterator[Finding]:
    ids: set[str] = set()
    for index, token in enumerate(configuration.development_tokens):
        path = ("development_tokens", str(index))
        if token.token_id in ids:
            yield (*path, "token_id"), "occurs more than once"
        ids.add(token.token_id)
        if token.HasField("hostname") and not is_host(token.hostname.lower()):
            yield (*path, "hostname"), "must be a host name or an IP address, without a port"


def _owner(
    configuration: pb.NamespaceConfiguration,
    stored_namespaces: NamespaceIndex,
    namespace_id: bytes | None,
) -> str:
    """Returns the id of another namespace that already uses a value, such as a host name.

    `namespace_id` is the value's owner, or None. If no other namespace owns the value, returns an
    empty string. Only the log has the owner's name, because it may belong to another developer.
    """
    owner = stored_namespaces.header(namespace_id) if namespace_id else None
    if owner is None or owner.namespace_id == configuration.namespace_id:
        return ""
    _log.warning(
        "configuration conflicts with another namespace",
        namespace=_name(configuration),
        owner=_name(owner),
    )
    return owner.namespace_id


def _name(configuration: pb.NamespaceConfiguration) -> str:
    return f"{configuration.game.name_id}/{configuration.name_id}"
