"""Composition root: starts each role of the service. A role's module is imported when the role
starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyservice.process.directory_lock import DirectoryLock, DirectoryUnusable, make_folder
from pyservice.process.ready_report import SupervisorLink, remove_ready_file
from pyservice.settings import Settings

_MODULES: Final = {"data": "pyservice.app.data_plane", "control": "pyservice.app.control_plane"}

__all__ = ["Launch", "load", "run_all", "run_control", "run_data", "run_edge_guard"]


@dataclass(frozen=True, slots=True)
class Launch:
    settings: Settings
    reread: Callable[[], Settings]
    ready_file: Path | None = None
    parent: SupervisorLink | None = None


def run_all(launch: Launch, flags: Sequence[str]) -> int:
    """Supervises both planes until a signal. Starts them with `flags` of `pyservice serve`.

    Like each function of this module, returns the exit status and prints start failures.
    """
    from pyservice.app.supervisor import run

    return run(launch, flags)


def load(role: str) -> None:
    importlib.import_module("pyservice.app.plane_process")
    importlib.import_module(_MODULES[role])


def run_data(launch: Launch) -> int:
    from pyservice.app.data_plane import START_FAILURES, DataPlane
    from pyservice.app.plane_process import run_plane

    def make(settings: Settings) -> DataPlane:
        return DataPlane(settings, is_control_awaited=launch.parent is not None)

    return run_plane(make, launch, launch.settings.data_dir, START_FAILURES)


def run_edge_guard(launch: Launch) -> int:
    from pyservice.app.edge_guard import run_edge_guard_role

    return run_edge_guard_role(launch)


def run_control(launch: Launch) -> int:
    """Runs the control plane until a signal.

    If the supervisor dies, the control plane waits for the data plane to end, and serves its last
    requests.
    """
    from pyservice.app.control_plane import FAILURES, ControlPlane
    from pyservice.app.plane_process import run_plane

    data_dir = launch.settings.data_dir

    def make(settings: Settings) -> ControlPlane:
        parent = launch.parent
        return ControlPlane(settings, is_orphan=lambda: parent is not None and not parent.is_alive)

    return run_plane(make, launch, data_dir / "control", FAILURES, outlived_dir=data_dir)


def run_locked(
    launch: Launch, locks: Sequence[tuple[Path, str]], live: Callable[[], Coroutine[Any, Any, int]]
) -> int:
    """Runs `live` while this process holds the locks (folder, name). Returns the exit status."""
    try:
        make_folder(launch.settings.data_dir)
        with contextlib.ExitStack() as held:
            for folder, name in locks:
                held.callback(DirectoryLock.take(folder, name).release)
            if launch.ready_file is not None:
                remove_ready_file(launch.ready_file)
            return asyncio.run(live())
    except (DirectoryUnusable, OSError) as error:
        print(f"pyservice: {error}", file=sys.stderr)
        return 1
