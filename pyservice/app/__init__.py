"""The composition root: the only place where parts meet. One module per role, imported when the role
runs: a start has 2 s, and the parent of both planes has to stay small.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyservice.process.ready_report import SupervisorLink
from pyservice.settings import Settings

_MODULES: Final = {"data": "pyservice.app.dataplane", "control": "pyservice.app.control"}

__all__ = ["Launch", "load", "run_all", "run_control", "run_data", "run_edge_guard"]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process of ours was started."""

    settings: Settings
    reread: Callable[[], Settings]
    """Reads the settings again. Raises SettingsError."""
    ready_file: Path | None = None
    parent: SupervisorLink | None = None
    """None: somebody runs this role alone."""


def run_all(launch: Launch, flags: Sequence[str]) -> int:
    """Keeps both planes running as children that get these flags of `pyservice serve`, until a signal.

    Like each of these functions it returns the exit status, and what prevents a start is told on
    standard error.
    """
    from pyservice.app.parent import run

    return run(launch, flags)


def load(role: str) -> None:
    """Imports what `run_data` and `run_control` need."""
    importlib.import_module("pyservice.app.serving")
    importlib.import_module(_MODULES[role])


def run_data(launch: Launch) -> int:
    """Serves as data plane until a signal."""
    from pyservice.app.dataplane import START_FAILURES, DataPlane
    from pyservice.app.serving import run_plane

    def make(settings: Settings) -> DataPlane:
        return DataPlane(settings, is_control_awaited=launch.parent is not None)

    return run_plane(make, launch, launch.settings.data_dir, START_FAILURES)


def run_edge_guard(launch: Launch) -> int:
    """Keeps edge-guard alone running until a signal."""
    from pyservice.app.edge_role import run

    return run(launch)


def run_control(launch: Launch) -> int:
    """Serves as control plane until a signal. It outlives a data plane that ends with the same parent:
    requests in flight there need it.
    """
    from pyservice.app.control import FAILURES, ControlPlane
    from pyservice.app.serving import run_plane

    data_dir = launch.settings.data_dir

    def make(settings: Settings) -> ControlPlane:
        parent = launch.parent
        return ControlPlane(settings, is_orphan=lambda: parent is not None and not parent.is_alive)

    return run_plane(make, launch, data_dir / "control", FAILURES, outlived_dir=data_dir)
