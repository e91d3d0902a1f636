"""Ends what a service leaves running on purpose: edge-guard and the keepers of a data directory, and their control
groups, whose pages would burden the machine's accounts for as long as they are cached.
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
    """At once. Nothing of the service itself may run any more: it would start them again."""
    # What a keeper is about to start is there a moment later.
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
    """Whether a group is. Who is still in it ends: a program may have forked away from a keeper that was killed."""
    if parent is None or not parent.exists():
        return False
    for members in parent.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            for pid in members.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
    return True


def pids_of(data_dir: Path) -> Iterator[int]:
    """Of edge-guard and keepers that name the directory, and of what keepers keep."""
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
