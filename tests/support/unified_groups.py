"""Control groups of version 2 in a folder of their own, with the owners that a test gives them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from tests.support.unprivileged_python import USER
from tests.support.waiting import until

_ROOTS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""The mount of version 2, alone or beside hierarchies of version 1."""
_DELEGATED: Final = ("", "cgroup.procs", "cgroup.subtree_control")
"""Files that systemd gives to the user of a delegated group. The first one is its folder."""


@dataclass(frozen=True)
class UnifiedGroups:
    root: Path
    folder: Path
    controller: str
    """A controller that the groups of `folder` may enable. It counts as a domain controller."""
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def make(self, *names: str) -> None:
        for name in names:
            self.path(name).mkdir()

    def give(self, *names: str) -> None:
        """Delegates groups to the ordinary user."""
        for path in (self.path(name) / file for name in names for file in _DELEGATED):
            os.chown(path, USER, USER)

    def path(self, name: str) -> Path:
        return self.folder / name

    def enabled(self, name: str) -> set[str]:
        return set((self.path(name) / "cgroup.subtree_control").read_text().split())

    def processes(self, name: str) -> set[int]:
        return {int(pid) for pid in (self.path(name) / "cgroup.procs").read_text().split()}

    def start_in(self, name: str) -> int:
        """Starts a process in a group. Returns its PID."""
        join = f"echo 0 > {self.path(name)}/cgroup.procs; exec sleep 3600"
        process = subprocess.Popen(["sh", "-ec", join])
        self._started.append(process)
        until(lambda: process.pid in self.processes(name))
        return process.pid

    def remove(self) -> None:
        """Ends all processes of the groups, and removes the groups."""
        (self.folder / "cgroup.kill").write_text("1")
        for process in self._started:
            process.wait()
        until(lambda: "populated 0" in (self.folder / "cgroup.events").read_text())
        for path, _, _ in os.walk(self.folder, topdown=False):
            os.rmdir(path)


@contextlib.contextmanager
def unified_groups() -> Iterator[UnifiedGroups]:
    """Skips the test if this machine has no controller for groups of version 2."""
    root = next((path for path in _ROOTS if (path / "cgroup.controllers").exists()), None)
    if root is None or os.geteuid() != 0:
        pytest.skip("only root can delegate a control group of version 2")
    controllers = set((root / "cgroup.controllers").read_text().split()) & {"memory", "hugetlb"}
    if not controllers:
        pytest.skip("version 2 has no domain controller: no control group can enable one")
    controller = sorted(controllers)[-1]
    folder = root / f"hosting-test-{uuid4().hex[:12]}"
    switch = root / "cgroup.subtree_control"
    try:
        # Stays enabled: another test may use it.
        switch.write_text(f"+{controller}")
        folder.mkdir()
        (folder / switch.name).write_text(f"+{controller}")
    except OSError as error:
        pytest.skip(f"no control group can be created: {error}")
    groups = UnifiedGroups(root, folder, controller)
    try:
        yield groups
    finally:
        groups.remove()
