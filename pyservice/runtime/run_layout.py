"""Layout of a run: its folder, its environment, its container bundle, and the input of its keeper."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyservice.network.port_ranges import PROCESS_PORTS
from pyservice.runtime import containers
from pyservice.runtime.containers import ContainerRuntime
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.filesystem import FileChange, apply_changes, is_folder_empty, remove_tree
from pyservice.runtime.network_isolation import NetworkPolicy
from pyservice.runtime.process_environment import (
    EnvironmentTooLong,
    default_variables,
    expand_references,
    merge_variables,
    service_variables,
)
from pyservice.runtime.root_filesystem import ContainerProgram, find_program
from pyservice.runtime.run_folder import Isolation, KeeperSpec, RunFolder
from pyservice.runtime.run_requests import RunPlacement, RunRequest
from pyservice.runtime.scratch_folders import IMAGE, NoTemplate, ScratchLimits
from pyservice.runtime.start_problems import RunProblem, start_problem
from pyservice.runtime.unpacked_builds import UnpackedBuild
from pyservice.settings.user_ids import DEFAULT_USER_IDS

KINDS: Final = ("archive",)
PATH: Final = "/usr/local/bin:/usr/bin:/bin"

_LAYOUT_ATTEMPTS: Final = 2
"""The first attempt may find a folder of an interrupted attempt, or a missing parent."""
REPORTED: Final = "told"
"""File that marks a run as reported to its owner."""


class CannotRun(Exception):
    def __init__(self, sentence: str, kind: str = "") -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class NodeSettings:
    keeper: Path
    isolation: Isolation | None
    """Isolation of programs without a container. None: only containers can run."""
    shared_paths: Sequence[Path]
    log_bytes_max: int
    notify: Path
    aliases: Mapping[str, str]
    groups: ControlGroups
    containers: ContainerRuntime | None = None
    reserve_bytes: int = 0
    process_ports: range = PROCESS_PORTS
    network: NetworkPolicy | None = None
    """None: the kernel cannot isolate the network of runs."""
    log_lines_per_s: int = 0
    log_bytes_per_s: int = 0
    user_ids: range = DEFAULT_USER_IDS.numbers
    scratch: ScratchLimits | None = None
    """Limits of scratch folders without a container. None: they have no limit."""

    @property
    def has_images(self) -> bool:
        """Returns whether scratch folders of runs are sparse images on the disk."""
        containers = self.containers
        limits = (self.scratch, None if containers is None else containers.limits)
        return any(limit is not None and limit.kind == "image" for limit in limits)

    @property
    def has_users(self) -> bool:
        return self.isolation in ("user", "namespace", "landlock") and os.geteuid() == 0


class StoredRun:
    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.id = path.name

    def placement(self) -> RunPlacement | None:
        try:
            note = self.folder.note()
            return None if note is None else RunPlacement.of(json.loads(note))
        except (KeyError, TypeError, ValueError):
            return None

    def lay_out(
        self, request: RunRequest, build: UnpackedBuild, placement: RunPlacement, node: NodeSettings
    ) -> None:
        """Writes the files of a run, and replaces those of an interrupted attempt.

        The files are not synced to disk, because a run does not survive a crash of the machine.
        Raises CannotRun, OSError.
        """
        path = self.folder.path
        spec, inside = _spec(request, build, placement, node, self.folder), build.contained
        groups = node.groups.steps(request.id, request.resources)
        folder_changes = self.folder.folder_changes()
        limits = node.scratch
        if inside is not None:
            limits = None if node.containers is None else node.containers.limits
        spec = self._with_scratch(spec, limits, request, build)
        try:
            last = self.folder.spec_change(spec)
        except ValueError as error:
            raise CannotRun(str(error)) from None
        if inside is None:
            self._make([*groups, *folder_changes, last], node.groups)
            return
        if node.containers is None:
            raise CannotRun("no OCI runtime works on this node")
        command = _command_in_container(spec, inside, build.root)
        around = node.containers.command(build.root, path, self.folder.scratch)
        self._make([*groups, *folder_changes], node.groups)
        node.containers.write_bundle(path, inside, command, spec.env)
        apply_changes([self.folder.spec_change(_container_spec(spec, around))])

    def _with_scratch(
        self,
        spec: KeeperSpec,
        limits: ScratchLimits | None,
        request: RunRequest,
        build: UnpackedBuild,
    ) -> KeeperSpec:
        if limits is None or limits.kind == "folder":
            return spec
        size = limits.size(build.scratch_mb, request.disk_mb, request.resources.memory_mb)
        try:
            template = limits.template(size)
        except NoTemplate as error:
            raise CannotRun(f"its scratch folder could not be created: {error}") from None
        return replace(
            spec, scratch=self.folder.scratch, scratch_bytes=size, scratch_template=template
        )

    def _make(self, steps: Sequence[FileChange], groups: ControlGroups) -> None:
        path = self.folder.path
        for _ in range(_LAYOUT_ATTEMPTS):
            try:
                apply_changes(steps)
            except FileExistsError:
                shutil.rmtree(path)
            except FileNotFoundError:
                groups.make_parents()
                path.parent.mkdir(parents=True, exist_ok=True)
            else:
                return
        apply_changes(steps)

    @property
    def is_reported(self) -> bool:
        return (self.folder.path / REPORTED).exists()

    def mark_reported(self, groups: ControlGroups) -> None:
        groups.remove(self.id)
        (self.folder.path / REPORTED).touch()
        (self.folder.path / IMAGE).unlink(missing_ok=True)
        for name in ("scratch", containers.BUNDLE):
            # An empty folder stays: some file systems scan recently freed inodes before they create
            # a file.
            if not is_folder_empty(self.folder.path / name):
                remove_tree(self.folder.path / name)

    def remove(self, groups: ControlGroups) -> None:
        groups.remove(self.id)
        shutil.rmtree(self.folder.path, ignore_errors=True)

    def start_problem(self) -> RunProblem | None:
        """Returns why the program of this run could not start, if the program is not in a container.

        Raises OSError.
        """
        folder = self.folder
        [isolation] = folder.spec_values("isolation")
        if isolation == "processes":
            return None
        command, *_ = folder.spec_values("command")
        [workdir], root = folder.spec_values("workdir"), folder.spec_values("read")[0]
        visible = [*map(Path, folder.spec_values("read") + folder.spec_values("write"))]
        seen = None if isolation == "none" else visible
        return start_problem(Path(command), Path(workdir), Path(root), seen)

    def scratch_mb(self) -> int:
        """Returns the size of the scratch folder in MiB, or 0 if it has no limit. Raises OSError."""
        return sum(map(int, self.folder.spec_values("scratch_bytes"))) >> 20

    def failure(self) -> str | None:
        return containers.runtime_failure(self.folder)

    @property
    def reported_s(self) -> float:
        return (self.folder.path / REPORTED).stat().st_mtime


def _spec(
    request: RunRequest,
    build: UnpackedBuild,
    placement: RunPlacement,
    node: NodeSettings,
    folder: RunFolder,
) -> KeeperSpec:
    inside = build.contained
    variables = merge_variables(
        {"PATH": PATH, **default_variables(str(folder.scratch))}
        if inside is None
        else {"PATH": containers.PATH, "HOME": inside.home},
        build.env,
        request.env,
        service_variables(request.own_env, placement.ports),
        aliases=node.aliases,
    )
    args = request.args if inside is None else request.args or build.args
    try:
        command = expand_references([*build.command, *args], variables)
    except EnvironmentTooLong as error:
        raise CannotRun(str(error)) from None
    if inside is None:
        command[0] = _find_on_path(command[0], build, variables.get("PATH", PATH))
    isolation = node.isolation if inside is None else "processes"
    if isolation is None:
        raise CannotRun("no isolation of game servers works on this node")
    membership, network = node.groups.membership(request.id), None
    if node.network and node.groups.network and not request.has_host_network:
        group = node.groups.network / request.id
        memory_mb = request.resources.memory_mb
        network = node.network.rules(group, placement.ports, request.own_env, memory_mb)
    return KeeperSpec(
        request.id,
        command,
        build.workdir,
        variables,
        isolation,
        uid=placement.uid,
        gid=placement.uid,
        read=[build.root, *node.shared_paths],
        write=[folder.scratch],
        kill_timeout_ms=request.kill_timeout_ms,
        log_bytes_max=node.log_bytes_max,
        log_lines_per_s=node.log_lines_per_s,
        log_bytes_per_s=node.log_bytes_per_s,
        reserve_bytes=node.reserve_bytes,
        memory_max_bytes=0 if membership.oom_counter else request.resources.memory_mb << 20,
        cgroups=membership.tasks,
        cgroup_v2=membership.group,
        machine_id=_machine_id(request.game_id),
        cgroup_views=node.groups.views(request.id) if inside is None else (),
        oom_counter=membership.oom_counter,
        nice=0 if node.groups.cpu else _nice(request.resources.cpu_millicores),
        notify=node.notify,
        network=network,
        note=json.dumps(placement.fields()),
    )


def _machine_id(game_id: str) -> str:
    """Returns an invented id for `/etc/machine-id`. It is stable, and does not tell that of the host."""
    return hashlib.sha256(f"machine-id {game_id}".encode()).hexdigest()[:32]


def _container_spec(spec: KeeperSpec, command: Sequence[str]) -> KeeperSpec:
    return replace(
        spec,
        command=command,
        workdir=Path("/"),
        env={"PATH": containers.PATH},
        uid=0,
        gid=0,
        read=(),
        write=(),
    )


def _command_in_container(spec: KeeperSpec, inside: ContainerProgram, root: Path) -> list[str]:
    if not spec.command:
        raise CannotRun("the image has no ENTRYPOINT and no CMD, and there are no arguments")
    program, *args = spec.command
    path = spec.env.get("PATH", containers.PATH)
    program_path = find_program(root, program, inside.workdir, path)
    if program_path is None:
        raise CannotRun(f"{program} is neither a program of the build nor a program in {path}")
    return [program_path, *args]


def _find_on_path(name: str, build: UnpackedBuild, path: str) -> str:
    if "/" in name:
        return name if name.startswith("/") else str(build.workdir / name)
    for folder in path.split(":"):
        program_path = os.path.join(folder, name)
        if folder.startswith("/") and os.access(program_path, os.X_OK):
            return program_path
    sentence = f"{name} is not in any of {path}: give its path in the archive, such as ./{name}"
    raise CannotRun(sentence, "program-not-found")


def _nice(cpu_millicores: int) -> int:
    steps = (1000, 500, 250, 125, 62)
    return next((nice for nice, above in enumerate(steps) if cpu_millicores >= above), len(steps))
