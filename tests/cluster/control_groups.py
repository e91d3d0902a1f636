"""Control groups of the nodes of a cluster, in each hierarchy of version 1."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.waiting import until

_MOUNTED: Final = Path("/sys/fs/cgroup")
_CONTROLLERS: Final = (
    *("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"),
)
PREFIX: Final = "hosting-cluster-"


def missing_controllers() -> list[str]:
    """Returns the hierarchies that a kubelet needs and this machine lacks."""
    return [name for name in _CONTROLLERS if not (_MOUNTED / name / "cgroup.procs").exists()]


def group_of(node: str) -> str:
    """Returns the control group of a node, which only this process uses."""
    return f"{PREFIX}{os.getpid()}/{node}"


def make_group(node: str) -> None:
    """Creates the control group of a node, without what a killed node has left in it."""
    remove_group(node)
    for controller in _CONTROLLERS:
        folder = _MOUNTED / controller / group_of(node)
        folder.mkdir(parents=True)
        if controller == "cpuset":
            for child in (folder.parent, folder):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (child / name).write_text((child.parent / name).read_text())


def remove_group(node: str) -> None:
    """Removes the control group of a node. Its processes have ended or are about to end."""
    for folder in _MOUNTED.glob(f"*/{group_of(node)}"):
        until(lambda folder=folder: _is_removed(folder))  # type: ignore[misc]


def remove_groups(pid: int) -> None:
    """Removes all groups of a process."""
    # runc creates groups in the hierarchy of version 2 too.
    for folder in _MOUNTED.glob(f"*/{PREFIX}{pid}"):
        until(lambda folder=folder: _is_removed(folder))  # type: ignore[misc]


def processes_with_groups() -> set[int]:
    """Returns the processes that have groups, also those that were killed."""
    return {int(folder.name.removeprefix(PREFIX)) for folder in _MOUNTED.glob(f"*/{PREFIX}*")}


def _is_removed(folder: Path) -> bool:
    for path in _deepest_first(folder):
        # A group with processes, or with groups of such, is busy.
        with contextlib.suppress(OSError):
            path.rmdir()
    return not folder.exists()


def _deepest_first(folder: Path) -> Iterator[Path]:
    for path, _, _ in os.walk(folder, topdown=False):
        yield Path(path)
