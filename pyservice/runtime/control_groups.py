"""Limits of memory, CPU, I/O and processes of runs through kernel control groups, versions 1 and 2.

Memory and the number of processes are limited. CPU and, in version 2, I/O are shared by weight. A
data directory has one parent group, and each run has a child group. The program joins its group
before it starts. If the service may not create groups, these limits do not apply.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from pyservice.runtime.containers import PROCESSES_MAX
from pyservice.runtime.filesystem import FileChange, apply_changes
from pyservice.runtime.run_requests import Resources

_ROOT: Final = Path("/sys/fs/cgroup")
_HYBRID: Final = "unified"
"""Hierarchy of version 2 beside those of version 1."""
_VERSION_1: Final = {"memory": "memory.limit_in_bytes", "cpu": "cpu.shares", "pids": "pids.max"}
"""Hierarchies of version 1, with a file that each of their groups has."""
_PROCS: Final = "cgroup.procs"
_TASKS: Final = "tasks"
"""File of a group of version 1. Unlike `_PROCS`, it moves a task without a wait in the kernel."""
_HARMLESS_FILE: Final = "cgroup.clone_children"
"""File of each group of version 1 that says nothing about other groups."""
_CONTROLLERS: Final = "cgroup.subtree_control"
_NEEDED: Final = ("memory", "cpu")
_OPTIONAL: Final = ("pids", "io")
"""Controllers of version 2 that a delegated group may lack."""
_SERVICE: Final = "service"
"""Group of the service's own processes below a group that has controllers."""
_MOVES_MAX: Final = 16
"""Readings of a group's processes until it is empty. A process can fork while it is moved."""
_TRIAL: Final = "trial"
_SHARES_OF_CORE: Final = 1024
_CPU_PERIOD_US: Final = 100_000
_WEIGHT_OF_CORE: Final = 100
_WEIGHT_MAX: Final = 10_000
_IO_WEIGHTS: Final = {"io.weight": 10_000, "io.bfq.weight": 1_000}
"""Largest weight in each file of the io controller. The kernel has the file of each active scheduler."""


class GroupUsage(NamedTuple):
    """Resources that a run has used. None: no control group counts them."""

    cpu_time_us: int | None = None
    memory_bytes: int | None = None
    """Memory as the limit of the run counts it, with its part of the page cache."""


class Membership(NamedTuple):
    tasks: tuple[Path, ...] = ()
    """`tasks` files of the groups of version 1."""
    group: Path | None = None
    """Folder of the group of version 2."""
    oom_counter: Path | None = None


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Control groups of one data directory.

    `memory`, `cpu`, `network`, `processes` and `io` are the folders of its parent groups. None: the service
    cannot create this group. The network and io groups are of version 2. The io files of version 1
    (`blkio`) have no weight in current kernels.
    """

    memory: Path | None
    cpu: Path | None
    is_unified: bool = False
    network: Path | None = None
    processes: Path | None = None
    io: Path | None = None
    cpu_limit_millicores: int = 0
    """Processor time that each run may use at most. A larger tier counts instead. 0: no limit."""

    @classmethod
    def find(cls, data_dir: Path, root: Path = _ROOT) -> ControlGroups:
        """Returns the groups that the service can create.

        In version 2, this may move processes of the service into a group below their own.
        """
        name = f"hosting-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}"
        if (root / "cgroup.controllers").exists():
            own = _own_group("")
            parent = find_parent(root, own, name, _NEEDED, _OPTIONAL)
            files = _trial_files(parent) if parent is not None else set()
            network = parent or _usable(root, name, _PROCS, own)
            return cls(
                parent if "memory.max" in files else None,
                parent if "cpu.weight" in files else None,
                is_unified=True,
                network=network,
                processes=parent if "pids.max" in files else None,
                io=parent if files & _IO_WEIGHTS.keys() else None,
            )
        memory, cpu, processes = (
            _usable(root / controller, name, limit, _own_group(controller))
            for controller, limit in _VERSION_1.items()
        )
        network = _usable(root / _HYBRID, name, _PROCS, _own_group(""))
        return cls(memory, cpu, network=network, processes=processes)

    @property
    def unenforced(self) -> list[str]:
        problems = []
        if self.memory is None:
            problems.append(
                "memory is watched twice a second, not limited: no control group can be created"
            )
        if self.cpu is None:
            problems.append("processors are shared by nice values: no control group can be created")
        if self.processes is None:
            problems.append(
                "processes are limited for each user only: no control group counts them"
            )
        if self.io is None:
            problems.append("disk I/O is not shared by weight: no control group has weights of it")
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

    def usage(self, run_id: str) -> GroupUsage:
        """Returns the processor time of a run since its start, and its memory now."""
        # Each group of version 2 counts processor time, also without the controller `cpu`.
        time_us = used_time_us(_child(self.network, run_id), is_unified=True)
        if time_us is None and not self.is_unified:
            # Most systems mount the controllers `cpu` and `cpuacct` together.
            time_us = used_time_us(_child(self.cpu, run_id), is_unified=False)
        memory = used_memory_bytes(_child(self.memory, run_id), is_unified=self.is_unified)
        return GroupUsage(time_us, memory)

    def peak_memory_bytes(self, run_id: str) -> int | None:
        """Returns the most memory that a run has used. None: no control group counts it."""
        name = "memory.peak" if self.is_unified else "memory.max_usage_in_bytes"
        group = _child(self.memory, run_id)
        return None if group is None else _first_number(group / name)

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
                    # Version 1 counts the queues of sockets apart, those of UDP as well.
                    _put_if_present(f"{group}/memory.kmem.tcp.limit_in_bytes", limit),
                ]
        if self.cpu is not None:
            group = f"{self.cpu}/{run_id}"
            if self.is_unified:
                steps.append(_put(f"{group}/cpu.weight", _weight(resources, _WEIGHT_MAX)))
            else:
                shares = max(2, _SHARES_OF_CORE * resources.cpu_millicores // 1000)
                steps.append(_put(f"{group}/cpu.shares", str(shares)))
            steps += self._cpu_limit(group, resources)
        if self.processes is not None:
            limit_file = f"{self.processes}/{run_id}/pids.max"
            steps.append(_put_if_present(limit_file, str(PROCESSES_MAX)))
        if self.io is not None:
            steps += [
                _put_if_present(f"{self.io}/{run_id}/{name}", _weight(resources, weight_max))
                for name, weight_max in _IO_WEIGHTS.items()
            ]
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

    def views(self, run_id: str) -> list[tuple[Path, Path]]:
        """Returns the files that show a run its limits: mount point in the run, and path of the host.

        Java and Node.js size their heaps by these files. Java ignores version 1 without all of its
        four hierarchies. For those without a group of the run, any file of the hierarchy will do.
        """
        if self.is_unified:
            return [(_ROOT, self.memory / run_id)] if self.memory is not None else []
        if self.memory is None or self.cpu is None:
            return []
        views = [(_ROOT / "memory", self.memory / run_id), (_ROOT / "cpu", self.cpu / run_id)]
        for name in ("cpuset", "cpuacct"):
            hierarchy = _ROOT / name
            if hierarchy.is_dir() and not os.path.samefile(hierarchy, _ROOT / "cpu"):
                views.append((hierarchy, hierarchy / _HARMLESS_FILE))
        return views

    def make_parents(self) -> None:
        for parent in self._parents():
            parent.mkdir(exist_ok=True)
            if self.is_unified and parent == self.memory:
                _enable_controllers(parent, _NEEDED, _OPTIONAL)

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
        parents = (self.memory, self.cpu, self.network, self.processes, self.io)
        return {parent for parent in parents if parent is not None}


def find_parent(
    root: Path, own: str | None, name: str, needed: Sequence[str], optional: Sequence[str] = ()
) -> Path | None:
    """Returns a new or existing parent group of version 2, or None if no group may have one.

    The parent is below the first group that the service may use, from the root of the hierarchy to
    the service's own group. The next start takes the same one.
    """
    groups = _groups_down_to(root, own)
    for group in groups:
        parent = group / name
        try:
            parent.mkdir(exist_ok=True)
            try:
                _enable_controllers(parent, needed, optional)
            except OSError as error:
                if error.errno != errno.EBUSY or group != groups[-1] or _is_unit(group):
                    raise
                # The kernel enables no controllers in a group that has processes itself.
                _move_processes(group)
                _enable_controllers(parent, needed, optional)
        except OSError:
            with contextlib.suppress(OSError):
                parent.rmdir()
        else:
            return parent
    return None


def _is_unit(group: Path) -> bool:
    """Returns whether a group is the one of a systemd service.

    systemd starts the service again in this group. The kernel refuses that while controllers of the
    group apply to game servers that still run.
    """
    return group.name.endswith(".service")


def _groups_down_to(root: Path, own: str | None) -> list[Path]:
    names = () if own is None else PurePosixPath(own).parts[1:]
    if ".." in names:
        # The own group is outside of the hierarchy that this mount shows.
        names = ()
    return [root.joinpath(*names[:count]) for count in range(len(names) + 1)]


def _enable_controllers(parent: Path, needed: Sequence[str], optional: Sequence[str]) -> None:
    files = [f"{group}/{_CONTROLLERS}" for group in (parent.parent, parent)]
    wanted = " ".join(f"+{controller}" for controller in needed)
    apply_changes([_put(file, wanted) for file in files])
    apply_changes([_put_if_present(file, f"+{one}") for one in optional for file in files])


def _move_processes(group: Path) -> None:
    """Moves all processes of a group into its child group `_SERVICE`."""
    target = group / _SERVICE
    target.mkdir(exist_ok=True)
    for _ in range(_MOVES_MAX):
        pids = (group / _PROCS).read_text().split()
        if not pids:
            return
        # A process may have exited since the reading.
        apply_changes([_put_if_present(f"{target}/{_PROCS}", pid) for pid in pids])


def used_time_us(group: Path | None, *, is_unified: bool) -> int | None:
    """Returns the processor time of a group since its creation in µs. None: nothing counts it.

    In version 1, the group is one of the controller `cpuacct`.
    """
    if group is None:
        return None
    if is_unified:
        return _first_number(group / "cpu.stat")
    time_ns = _first_number(group / "cpuacct.usage")
    return None if time_ns is None else time_ns // 1000


def used_memory_bytes(group: Path | None, *, is_unified: bool) -> int | None:
    """Returns the memory of a group now. None: nothing counts it."""
    name = "memory.current" if is_unified else "memory.usage_in_bytes"
    return None if group is None else _first_number(group / name)


def _child(parent: Path | None, name: str) -> Path | None:
    return None if parent is None else parent / name


def _first_number(path: Path) -> int | None:
    """Returns the first number of a file, such as 5 of `usage_usec 5`. None: there is no such file."""
    try:
        words = path.read_text().split()
    except OSError:
        return None
    return next((int(word) for word in words if word.isdecimal()), None)


def _usable(hierarchy: Path, name: str, limit: str, own: str | None) -> Path | None:
    """Returns the path of a usable parent group in a hierarchy, or None.

    Prefers a group at the top of the hierarchy, because the next start finds it there.
    """
    if own is None or not hierarchy.is_dir():
        return None
    parents = (group / name for group in _groups_down_to(hierarchy, own))
    return next((parent for parent in parents if limit in _trial_files(parent)), None)


def _trial_files(parent: Path) -> set[str]:
    """Returns the names of the files in a new child group, none if it cannot be created."""
    trial = parent / _TRIAL
    try:
        trial.mkdir(parents=True, exist_ok=True)
        names = set(os.listdir(trial))
        trial.rmdir()
        with contextlib.suppress(OSError):
            parent.rmdir()
    except OSError:
        return set()
    return names


def _own_group(controller: str) -> str | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _weight(resources: Resources, weight_max: int) -> str:
    weight = _WEIGHT_OF_CORE * resources.cpu_millicores // 1000
    return str(min(max(weight, 1), weight_max))


def _put(path: str, text: str) -> FileChange:
    return FileChange("put", path, content=text.encode())


def _put_if_present(path: str, text: str) -> FileChange:
    return FileChange("try", path, content=text.encode())
