"""Settings of the service from flags, environment and a TOML file. All problems are reported at
once.

Flags override `PYSERVICE_...` variables, which override the file. Only this module reads the
environment.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from pyservice.settings.conflicts import (
    ANY_HOST,
    SEPARATE_HOST_HINT,
    edge_conflicts,
    origin_conflicts,
    port_conflicts,
)
from pyservice.settings.model import PREFIX, Settings
from pyservice.settings.sections import (
    BuildKind,
    CaptchaSettings,
    IpNetwork,
    ListenAddress,
    RateLimit,
    Region,
    S3Settings,
    Tier,
)

__all__ = [
    "PREFIX",
    "BuildKind",
    "CaptchaSettings",
    "IpNetwork",
    "ListenAddress",
    "Problem",
    "RateLimit",
    "Region",
    "S3Settings",
    "Settings",
    "SettingsError",
    "Tier",
    "load",
]

_NOT_SETTINGS: Final = frozenset({"PYSERVICE_CONFIG", "PYSERVICE_URL", "PYSERVICE_TOKEN"})

_SOCKET_PATH_MAX: Final = 107
"""Kernel limit of a unix socket path, in bytes."""


@dataclass(frozen=True, slots=True)
class Problem:
    source: str
    name: str
    message: str

    def __str__(self) -> str:
        where = f"{self.name}: " if self.name else ""
        return f"{where}{self.message} ({self.source})"


class SettingsError(Exception):
    """All problems of the settings. `usable` has the settings with defaults in place of invalid
    values.
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
    """Returns the settings. Raises SettingsError with every problem.

    A flag of None is not set. Without `config_file`, `PYSERVICE_CONFIG` names the file.
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
    for name in ("http", "grpc", "cdn", "metrics"):
        address: ListenAddress = getattr(settings, name)
        if name in wrong or not address.port:
            continue
        taken = next((other for other, held in listeners if _overlap(held, address)), None)
        if taken is not None:
            yield [name], f"{address} is where {taken} listens"
        listeners.append((name, address))
    sockets = [settings.admin_socket, settings.control_http_socket]
    if "domains" not in wrong and "cdn_url" not in wrong and settings.cdn_hosts:
        sockets.append(settings.edge_cdn_socket)
    longest = max(sockets, key=lambda path: len(str(path)))
    if len(os.fsencode(longest)) > _SOCKET_PATH_MAX:
        yield ["data_dir"], f"is too long: {longest} may have {_SOCKET_PATH_MAX} bytes"
    boot_id_path = settings.journal.boot_id_path
    try:
        boot_id_path.read_bytes()
    except OSError as error:
        yield ["journal", "boot_id_path"], f"{boot_id_path} cannot be read: {error.strerror}"
    yield from origin_conflicts(settings, wrong)
    yield from _addresses_of_nobody(settings, wrong)
    if wrong.isdisjoint(("edge", "domains")):
        yield from edge_conflicts(settings)
    if "runtime" not in wrong:
        yield from port_conflicts(settings)


def _addresses_of_nobody(settings: Settings, wrong: Set[str]) -> Iterator[tuple[list[str], str]]:
    for name in ("public_url", "cdn_url", "hub_url"):
        if "?" in (getattr(settings, name) or ""):
            yield [name], "must not have a query: paths are put behind it"
    domain = settings.domains.cdn
    if domain is None or settings.cdn_url is not None or settings.feed_file is not None:
        return
    if not wrong.isdisjoint(("cdn", "cdn_url")) or _is_of_this_machine(domain):
        return
    host = settings.cdn.host
    if host in ANY_HOST or _is_of_this_machine(host):
        yield (
            ["cdn_url"],
            f"must be set beside domains.cdn ({domain}): addresses to upload to, and of pictures, would be those of "
            f"{settings.cdn}, which only this machine reaches; set it to where your proxy passes on to that listener: "
            f"{SEPARATE_HOST_HINT}",
        )


def _is_of_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rpartition(".")[2] == "localhost"


def _overlap(one: ListenAddress, other: ListenAddress) -> bool:
    is_any = not ANY_HOST.isdisjoint((one.host, other.host))
    return one.port == other.port and (is_any or one.host == other.host)


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
    return next((source for source, values in sources if _holds(values, location)), "default")


def _holds(values: Any, location: list[str]) -> bool:
    if not location:
        return bool(values)
    if not isinstance(values, Mapping) or location[0] not in values:
        return False
    inner = values[location[0]]
    return not isinstance(inner, Mapping) or len(location) == 1 or _holds(inner, location[1:])
