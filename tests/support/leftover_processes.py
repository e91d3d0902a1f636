"""Cleanup of processes that outlive a service on purpose: edge-guard, keepers and their control
groups.

Memory of cached pages stays charged to a control group until the group is removed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from pyservice.runtime.control_groups import ControlGroups


def end_leftovers(data_dir: Path) -> None:
    """Kills the leftover processes. The service itself must have ended, because it would start
    them again.
    """
    # A keeper may be about to start another process.
    while pids := list(pids_of(data_dir)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    groups = ControlGroups.find(data_dir.resolve())
    while any(_is_left(parent) for parent in (groups.memory, groups.cpu)):
        groups.remove_others(())
        time.sleep(0.005)


def _is_left(parent: Path | None) -> bool:
    """Returns whether a group exists. Kills its processes, because a program may have forked after
    its keeper was killed.
    """
    if parent is None or not parent.exists():
        return False
    for members in parent.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            for pid in members.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
    return True


def pids_of(data_dir: Path) -> Iterator[int]:
    """Yields the process ids of edge-guard and keepers of the directory, and of the keepers'
    children.
    """
    folder = str(data_dir.resolve())
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            program = words[0].decode(errors="replace").rpartition("/")[2]
            if program not in ("hosting-edge-guard", "hosting-keeper"):
                continue
            if any(word.decode(errors="replace").startswith(folder) for word in words[1:]):
                yield int(process.name)
                yield from _children(process)


def _children(process: Path) -> Iterator[int]:
    listed = (process / "task" / process.name / "children").read_text()
    yield from map(int, listed.split())
