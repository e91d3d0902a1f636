"""Limits of memory, CPU and processes of runs through kernel control groups, versions 1 and 2.

Memory and the number of processes are limited, and CPU is shared by weight. A data directory has
one parent group, and each run has a child group. The program joins its group before it starts. If
the service may not create groups, these limits do not apply.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.runtime.containers import PROCESSES_MAX
from pyservice.runtime.filesystem import FileChange, apply_changes
from pyservice.runtime.run_requests import Resources

_ROOT: Final = Path("/sys/fs/cgroup")
_HYBRID: Final = "unified"
"""Hierarchy of version 2 beside those of version 1."""
_PROCS: Final = "cgroup.procs"
_TASKS: Final = "tasks"
"""File of a group of version 1. Unlike `_PROCS`, it moves a task without a wait in the kernel."""
_TRIAL: Final = "trial"
_SHARES_OF_CORE: Final = 1024
_CPU_PERIOD_US: Final = 100_000
_WEIGHT_OF_CORE: Final = 100
_WEIGHTS: Final = (1, 10_000)


class Membership(NamedTuple):
    tasks: tuple[Path, ...] = ()
    """`tasks` files of the groups of version 1."""
    group: Path | None = None
    """Folder of the group of version 2."""
    oom_counter: Path | None = None


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Control groups of one data directory.

    `memory`, `cpu`, `network` and `processes` are the folders of its parent groups. None: the service cannot
    create this group. The network group is of version 2.
    """

    memory: Path | None
    cpu: Path | None
    is_unified: bool = False
    network: Path | None = None
    processes: Path | None = None
    cpu_limit_millicores: int = 0
    """Processor time that each run may use at most. A larger tier counts instead. 0: no limit."""

    @classmethod
    def find(cls, data_dir: Path, root: Path = _ROOT) -> ControlGroups:
        name = f"hosting-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}"
        if (root / "cgroup.controllers").exists():
            parent = _unified_parent(root, name)
            network = parent or _usable(root, name, _PROCS)
            return cls(parent, parent, is_unified=True, network=network, processes=parent)
        memory = _usable(root / "memory", name, "memory.limit_in_bytes")
        cpu = _usable(root / "cpu", name, "cpu.shares")
        processes = _usable(root / "pids", name, "pids.max")
        return cls(memory, cpu, network=_usable(root / _HYBRID, name, _PROCS), processes=processes)

    @property
    def unenforced(self) -> list[str]:
        problems = []
        if self.memory is None:
            problems.append(
                "memory is watched twice a second, not limited: no control group can be created"
            )
        if self.cpu is None:
            problems.append("processors are shared by nice values: no control group can be created")
        return problems

    def membership(self, run_id: str) -> Membership:
        tasks: tuple[Path, ...] = ()
        if not self.is_unified:
            parents = (self.memory, self.cpu, self.processes)
            tasks = tuple(parent / run_id / _TASKS for parent in parents if parent is not None)
        counter = None
        if self.memory is not None:
            name = "memory.events" if self.is_unified else "memory.oom_control"
            counter = self.memory / run_id / name
        group = None if self.network is None else self.network / run_id
        return Membership(tasks, group, counter)

    def steps(self, run_id: str, resources: Resources) -> list[FileChange]:
        """Returns the file changes that create and limit the control group of a run.

        The parent groups must exist.
        """
        steps = [FileChange("group", f"{parent}/{run_id}") for parent in self._parents()]
        if self.memory is not None:
            group, limit = f"{self.memory}/{run_id}", str(resources.memory_mb << 20)
            if self.is_unified:
                steps += [
                    _put(f"{group}/memory.max", limit),
                    _put_if_present(f"{group}/memory.swap.max", "0"),
                    _put_if_present(f"{group}/memory.oom.group", "1"),
                ]
            else:
                steps += [
                    _put(f"{group}/memory.limit_in_bytes", limit),
                    _put_if_present(f"{group}/memory.memsw.limit_in_bytes", limit),
                ]
        if self.cpu is not None:
            group = f"{self.cpu}/{run_id}"
            if self.is_unified:
                weight = _WEIGHT_OF_CORE * resources.cpu_millicores // 1000
                steps.append(
                    _put(f"{group}/cpu.weight", str(min(max(weight, _WEIGHTS[0]), _WEIGHTS[1])))
                )
            else:
                shares = max(2, _SHARES_OF_CORE * resources.cpu_millicores // 1000)
                steps.append(_put(f"{group}/cpu.shares", str(shares)))
            steps += self._cpu_limit(group, resources)
        if self.processes is not None:
            limit_file = f"{self.processes}/{run_id}/pids.max"
            steps.append(_put_if_present(limit_file, str(PROCESSES_MAX)))
        return steps

    def _cpu_limit(self, group: str, resources: Resources) -> list[FileChange]:
        """Returns the limit of a run, and a burst of unused time for garbage collectors."""
        if not self.cpu_limit_millicores:
            return []
        millicores = max(self.cpu_limit_millicores, resources.cpu_millicores)
        quota_us = millicores * _CPU_PERIOD_US // 1000
        if self.is_unified:
            limits = (("cpu.max", f"{quota_us} {_CPU_PERIOD_US}"), ("cpu.max.burst", f"{quota_us}"))
        else:
            limits = (("cpu.cfs_quota_us", f"{quota_us}"), ("cpu.cfs_burst_us", f"{quota_us}"))
        return [_put_if_present(f"{group}/{name}", text) for name, text in limits]

    def make_parents(self) -> None:
        for parent in self._parents():
            is_limiting = self.is_unified and parent == self.memory
            _make_parent(parent, is_unified=is_limiting)

    def remove(self, run_id: str) -> None:
        """Removes the control group of an ended run, and the parent group if it is then empty.

        Leaves a group that still has processes. A later call of `remove_others` removes it.
        """
        for parent in self._parents():
            with contextlib.suppress(OSError):
                (parent / run_id).rmdir()
                parent.rmdir()

    def remove_others(self, run_ids: Collection[str]) -> None:
        for parent in self._parents():
            with contextlib.suppress(FileNotFoundError):
                for group in list(parent.iterdir()):
                    if group.is_dir() and group.name not in run_ids:
                        self.remove(group.name)

    def _parents(self) -> set[Path]:
        parents = (self.memory, self.cpu, self.network, self.processes)
        return {parent for parent in parents if parent is not None}


def _usable(hierarchy: Path, name: str, limit: str) -> Path | None:
    """Returns the path of a usable parent group in a hierarchy, or None.

    Prefers a group at the top of the hierarchy, because the next start finds it there. Otherwise
    the parent group is below the service's own group.
    """
    is_version_2 = limit == _PROCS
    own = _own_group("" if is_version_2 else hierarchy.name)
    if own is None or not hierarchy.is_dir():
        return None
    return _try_parent(hierarchy / name, limit) or _try_parent(
        hierarchy / own.lstrip("/") / name, limit
    )


def _try_parent(parent: Path, limit: str) -> Path | None:
    try:
        (parent / _TRIAL).mkdir(parents=True, exist_ok=True)
        is_usable = (parent / _TRIAL / limit).exists()
        (parent / _TRIAL).rmdir()
        with contextlib.suppress(OSError):
            parent.rmdir()
    except OSError:
        return None
    return parent if is_usable else None


def _unified_parent(root: Path, name: str) -> Path | None:
    parent = root / name
    try:
        _make_parent(parent, is_unified=True)
    except OSError:
        return None
    return _try_parent(parent, "memory.max")


def _make_parent(parent: Path, *, is_unified: bool) -> None:
    parent.mkdir(exist_ok=True)
    if is_unified:
        groups = (parent.parent, parent)
        apply_changes([_put(f"{group}/cgroup.subtree_control", "+memory +cpu") for group in groups])
        apply_changes(
            [_put_if_present(f"{group}/cgroup.subtree_control", "+pids") for group in groups]
        )


def _own_group(controller: str) -> str | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _put(path: str, text: str) -> FileChange:
    return FileChange("put", path, content=text.encode())


def _put_if_present(path: str, text: str) -> FileChange:
    return FileChange("try", path, content=text.encode())
