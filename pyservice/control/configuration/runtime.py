"""What is wrong with the runtime of a game mode (decisions 4, "Ports"): build, arguments, environment,
ports. Arguments and environment of a dynamic server have the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pyservice.control.configuration.context import Context
from pyservice.ids import PORT_NAME_MAX, is_name_id
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.reserved import is_environment_name
from pyservice.schema.problems import Finding

PORTS_MAX: Final = 16
PORT_MAX: Final = 65_535
ARGS_MAX: Final = 64
ARG_MAX_BYTES: Final = 1024
ENV_MAX: Final = 64
ENV_NAME_MAX_BYTES: Final = 128
ENV_VALUE_MAX_BYTES: Final = 8192
PROTOCOLS: Final = ("http", "https", "tcp", "tcp_tls", "udp")
HOST_PROTOCOLS: Final = ("tcp", "udp")
PROXIES: Final = ("edge-guard", "none")
NETWORK_MODES: Final = ("bridge", "host")

_DEFAULT_PROTOCOL: Final = "https"
_DEFAULT_PROXY: Final = "edge-guard"

Path = tuple[str, ...]


def findings_in_docker(docker: pb.VersionDocker, path: Path, context: Context) -> Iterator[Finding]:
    """Everything that is wrong with a `docker`. Fields of the command-line tool alone are not judged."""
    if docker.HasField("image_id"):
        state = context.builds.get(docker.image_id)
        if state is None:
            yield Finding((*path, "image_id"), "not-found", "is not a build of this game")
        elif state != "complete":
            yield Finding((*path, "image_id"), "incomplete", "is a build that is not complete")
    if docker.HasField("network_mode"):
        yield from _one_of(docker.network_mode, NETWORK_MODES, (*path, "network_mode"))
    yield from findings_in_arguments(docker.args.entries, (*path, "args"))
    yield from findings_in_environment(docker.env.entries, (*path, "env"))
    path = (*path, "ports")
    ports = docker.ports.entries
    if len(ports) > PORTS_MAX:
        yield Finding(path, "too-many", f"must have at most {PORTS_MAX} entries")
    for name in sorted(ports)[:PORTS_MAX]:
        if not is_name_id(name, PORT_NAME_MAX):
            yield Finding(
                (*path, name), "invalid", f"must be 1 to {PORT_NAME_MAX} of a-z, 0-9, single dashes"
            )
        yield from _port(ports[name], (*path, name), docker.network_mode, context)


def findings_in_arguments(args: Sequence[str], path: Path) -> Iterator[Finding]:
    """Everything that is wrong with the arguments of a process."""
    if len(args) > ARGS_MAX:
        yield Finding(path, "too-many", f"must have at most {ARGS_MAX} entries")
    for index, arg in enumerate(args[:ARGS_MAX]):
        yield from _text(arg, (*path, str(index)), ARG_MAX_BYTES)


def findings_in_environment(env: Mapping[str, str], path: Path) -> Iterator[Finding]:
    """Everything that is wrong with variables of a process that are not ours."""
    if len(env) > ENV_MAX:
        yield Finding(path, "too-many", f"must have at most {ENV_MAX} entries")
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
    """A text that a process is given."""
    if len(text.encode()) > limit_bytes:
        yield Finding(path, "too-long", f"must have at most {limit_bytes} bytes")
    elif "\0" in text:
        yield Finding(path, "invalid", "must not have the character NUL")


def _port(
    port: pb.VersionPort, path: Path, network_mode: str, context: Context
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
    proxy = port.proxy if port.HasField("proxy") else _DEFAULT_PROXY
    if proxy not in PROXIES:
        yield from _one_of(proxy, PROXIES, (*path, "proxy"))
    elif proxy == _DEFAULT_PROXY:
        if port.HasField("port_range"):
            yield Finding((*path, "port_range"), "not-allowed", "needs proxy none")
    else:
        yield from _unproxied(port, path, network_mode)


def _unproxied(port: pb.VersionPort, path: Path, network_mode: str) -> Iterator[Finding]:
    """A port that clients reach without edge-guard."""
    if network_mode != "host":
        yield Finding((*path, "proxy"), "not-allowed", "is none, which needs network_mode host")
    protocol = port.protocol if port.HasField("protocol") else _DEFAULT_PROTOCOL
    if protocol in PROTOCOLS and protocol not in HOST_PROTOCOLS:
        yield Finding(
            (*path, "protocol"), "not-allowed", "must be tcp or udp, which proxy none needs"
        )
    if not port.HasField("port_range"):
        yield Finding((*path, "port_range"), "required", "is required, because proxy is none")


def _one_of(text: str, allowed: tuple[str, ...], path: Path) -> Iterator[Finding]:
    if text not in allowed:
        yield Finding(path, "not-allowed", f"must be one of {', '.join(allowed)}")


def _number(number: int, path: Path, low: int, high: int) -> Iterator[Finding]:
    if number < low:
        yield Finding(path, "too-low", f"must be at least {low}")
    if number > high:
        yield Finding(path, "too-high", f"must be at most {high}")


def _range(ports: pb.VersionPortRange, path: Path, low: int, high: int) -> Iterator[Finding]:
    yield from _number(ports.min, (*path, "min"), low, high)
    yield from _number(ports.max, (*path, "max"), low, high)
    if low <= ports.max < ports.min:
        yield Finding((*path, "max"), "too-low", "must be at least min")
