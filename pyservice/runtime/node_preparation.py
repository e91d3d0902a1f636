"""Preparation of the node at the start: which isolation, limits and containers work here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyservice.observability.logging import get_logger
from pyservice.runtime.build_sandbox import refused_sandbox_parts
from pyservice.runtime.containers import KINDS, ContainerRuntime
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.isolation_trials import (
    choose_container_runtime,
    choose_isolation,
    choose_scratch,
    landlock_version,
    needs_open_folders,
    network_isolation_problem,
    open_abstract_sockets,
    open_folders,
    unenforced_by_isolation,
)
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.network_isolation import NetworkPolicy
from pyservice.runtime.run_layout import NodeSettings
from pyservice.runtime.scratch_folders import remove_templates
from pyservice.runtime.shared_network import NETWORK_NOT_ISOLATED
from pyservice.settings import Settings
from pyservice.settings.user_ids import host_user_ids

SYSTEM_PATHS: Final = tuple(
    Path(path)
    for path in (
        *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
        # Programs behind links, libraries, and the system that a runtime reports.
        *("/etc/alternatives", "/etc/ld.so.cache", "/etc/os-release", "/etc/debian_version"),
        # Time zone, and terminals.
        *("/etc/localtime", "/etc/timezone", "/etc/terminfo", "/etc/inputrc"),
        # Certificates without keys.
        *("/etc/ca-certificates", "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf"),
        *("/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted"),
        # Names of hosts, services and protocols. The keeper replaces the accounts, except under landlock.
        *("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf"),
        *("/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols", "/etc/mime.types"),
        # Settings of runtimes, to which files in /usr/lib link. _SETTINGS_OF_RUNTIMES adds those of Java.
        *("/etc/mono", "/etc/fonts", "/etc/dotnet", "/etc/perl", "/etc/magic"),
    )
)
"""Visible to every game server, so without secrets."""

_SETTINGS_OF_RUNTIMES: Final = ("java-*-openjdk", "java")
"""Patterns of folders in `/etc` that the files of a runtime in `/usr/lib` link to."""


def system_paths() -> tuple[Path, ...]:
    """Returns the paths of this machine that every game server sees."""
    settings = (sorted(Path("/etc").glob(pattern)) for pattern in _SETTINGS_OF_RUNTIMES)
    return (*SYSTEM_PATHS, *itertools.chain.from_iterable(settings))


_NOTICES_PIPE: Final = "notices"

_log = get_logger("runtime")


@dataclass(frozen=True, slots=True)
class PreparedNode:
    settings: NodeSettings
    allowed_kinds: Sequence[str]
    container_problem: str
    unenforced_rules: Sequence[str]

    @property
    def kinds(self) -> list[str]:
        """Kinds of builds that run here."""
        return [kind for kind in self.allowed_kinds if self.refusal_reason(kind) is None]

    @property
    def unenforced(self) -> list[str]:
        """Sentences about rules that this node does not enforce, and kinds that it does not run."""
        reasons = {kind: self.refusal_reason(kind) for kind in self.allowed_kinds}
        refused = [f"{kind} is not run: {why}" for kind, why in reasons.items() if why is not None]
        return [*self.unenforced_rules, *refused]

    def refusal_reason(self, kind: str) -> str | None:
        """Returns why this node refuses builds of this kind, or None if it accepts them.

        The reason continues a sentence, such as "no isolation of game servers works here".
        """
        if kind not in self.allowed_kinds:
            return "the operator does not allow this kind"
        if kind not in KINDS and self.settings.isolation is None:
            return "no isolation of game servers works here"
        if kind in KINDS and self.container_problem:
            return f"no OCI runtime works here, {self.container_problem}"
        return None


async def prepare_node(settings: Settings) -> PreparedNode:
    """Tries what the settings allow, and returns what works. Logs what does not work."""
    data_dir, runtime = settings.data_dir.resolve(), settings.runtime
    folder, build_folder = data_dir / "servers", data_dir / "builds"
    for path in (folder, build_folder):
        path.mkdir(mode=0o700, exist_ok=True)
    shared_paths = (*system_paths(), *runtime.shared_paths)
    isolation = await choose_isolation(runtime.isolation, KEEPER_BINARY, folder, shared_paths)
    if isolation is None:
        _log.error("no game server can run: no isolation works", wanted=runtime.isolation)
    elif needs_open_folders(isolation):
        open_folders(build_folder)
    remove_templates(folder)
    scratch, scratch_problem = await choose_scratch(
        isolation, KEEPER_BINARY, folder, shared_paths, runtime.scratch_bytes_max
    )
    in_containers, container_problem = await _choose_containers(settings, folder)
    groups = replace(
        ControlGroups.find(data_dir), cpu_limit_millicores=runtime.cpu_limit_millicores
    )
    network_problem = await network_isolation_problem(groups, KEEPER_BINARY, folder)
    if network_problem is not None:
        _log.warning("network of game servers is not isolated", problem=network_problem)
    node = NodeSettings(
        KEEPER_BINARY,
        isolation,
        shared_paths,
        runtime.log_bytes_max,
        folder / _NOTICES_PIPE,
        settings.lobby_env_aliases or {},
        groups,
        in_containers,
        settings.storage_reserve_bytes,
        runtime.process_ports.numbers,
        _network_policy(settings) if network_problem is None else None,
        runtime.log_lines_per_second,
        runtime.log_bytes_per_second,
        host_user_ids(runtime.user_ids, runtime.container_user_ids).servers.numbers,
        scratch,
    )
    unenforced = [
        *groups.unenforced,
        *await unenforced_by_isolation(isolation, KEEPER_BINARY, folder, shared_paths),
        *open_abstract_sockets(isolation, in_containers is not None, landlock_version()),
        *([] if network_problem is None else [f"{NETWORK_NOT_ISOLATED}: {network_problem}"]),
        *await _refused_sandbox(),
        *_unenforced_scratch(node, scratch_problem),
    ]
    return PreparedNode(node, runtime.kinds, container_problem, unenforced)


async def _choose_containers(
    settings: Settings, folder: Path
) -> tuple[ContainerRuntime | None, str]:
    """Returns the runtime of containers, and otherwise the problem, if any kind needs containers."""
    runtime = settings.runtime
    kinds = [kind for kind in runtime.kinds if kind in KINDS]
    if not kinds:
        return None, ""
    found, problem = await choose_container_runtime(
        runtime.oci_runtime,
        KEEPER_BINARY,
        folder,
        runtime.scratch_bytes_max,
        host_user_ids(runtime.user_ids, runtime.container_user_ids).containers.numbers,
    )
    if found is None:
        _log.error("no OCI runtime works", kinds=kinds, problem=problem)
    return found, problem


def _network_policy(settings: Settings) -> NetworkPolicy:
    runtime = settings.runtime
    return NetworkPolicy(
        runtime.egress,
        runtime.egress_networks,
        runtime.client_sockets_max,
        runtime.own_port_sockets_max,
    )


async def _refused_sandbox() -> list[str]:
    refused = list(await refused_sandbox_parts())
    for part in refused:
        _log.warning("sandbox of build workers is incomplete", without=part)
    return [f"builds are read without {part}" for part in refused]


def _unenforced_scratch(node: NodeSettings, problem: str) -> list[str]:
    unenforced = []
    container_limits = None if node.containers is None else node.containers.limits
    if node.isolation is not None and node.scratch is not None and node.scratch.kind == "folder":
        reason = problem or f"isolation {node.isolation} has no mounts of its own"
        unenforced.append(f"scratch folders have no size limit: {reason}")
    if container_limits is not None and container_limits.kind == "folder":
        unenforced.append("scratch folders of containers have no size limit")
    return unenforced
