"""Entry points of the service's roles: both planes together, data plane, control plane, edge-guard, node.

Each entry point imports the module of its role when it is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from pyservice.process.launch import Launch
from pyservice.settings import Settings

if TYPE_CHECKING:
    from pyservice.edge_guard.absent_edge_guard import AbsentEdgeGuard
    from pyservice.edge_guard.supervision import EdgeGuard

_MODULES: Final = {
    "data": "pyservice.app.data_plane",
    "control": "pyservice.app.control_plane",
    "cdn": "pyservice.app.cdn_plane",
}

__all__ = [
    "load",
    "run_all",
    "run_cdn",
    "run_control",
    "run_data",
    "run_edge_guard",
    "run_node",
]


def run_all(launch: Launch) -> int:
    """Starts the data plane and the control plane, and supervises them until a stop signal.

    Returns the exit status. Logs a failed start.
    """
    from pyservice.process.supervisor import run

    def make_edge_guard() -> EdgeGuard | AbsentEdgeGuard:
        if launch.settings.is_on_cluster:
            from pyservice.edge_guard.absent_edge_guard import AbsentEdgeGuard

            return AbsentEdgeGuard()
        # The supervisor starts its children first, because this import is slow.
        from pyservice.edge_guard.supervision import EdgeGuard

        return EdgeGuard(launch.settings, launch.reread)

    return run(launch, make_edge_guard)


def load(role: str) -> None:
    importlib.import_module("pyservice.process.plane_process")
    importlib.import_module(_MODULES[role])


def run_data(launch: Launch) -> int:
    from pyservice.app.data_plane import START_FAILURES, DataPlane
    from pyservice.process.plane_process import run_plane

    def make(settings: Settings) -> DataPlane:
        return DataPlane(settings, launch.listeners, is_supervised=launch.parent is not None)

    data_dir = launch.settings.data_dir
    # A drain ends the game servers with the control plane, which needs the data plane for that.
    drained_dir = data_dir / "control"
    return run_plane(make, launch, data_dir, START_FAILURES, drained_dir=drained_dir)


def run_edge_guard(launch: Launch) -> int:
    from pyservice.app.edge_guard_role import run_edge_guard_role

    return run_edge_guard_role(launch)


def run_node(launch: Launch) -> int:
    from pyservice.app.node_role import run_node_role

    return run_node_role(launch)


def run_control(launch: Launch) -> int:
    """Runs the control plane until a stop signal.

    If the supervisor dies, the control plane stops after the data plane, which still needs it for
    its last responses.
    """
    from pyservice.app.control_plane import FAILURES, ControlPlane
    from pyservice.process.plane_process import run_plane
    from pyservice.process.priority import lower_priority

    lower_priority()
    data_dir = launch.settings.data_dir

    def make(settings: Settings) -> ControlPlane:
        parent = launch.parent
        return ControlPlane(
            settings,
            launch.flags,
            launch.listeners,
            is_supervised=parent is not None,
            is_orphan=lambda: parent is not None and not parent.is_alive,
        )

    return run_plane(make, launch, data_dir / "control", FAILURES, outlived_dir=data_dir)


def run_cdn(launch: Launch) -> int:
    """Runs the CDN until a stop signal. The control plane is its parent."""
    from pyservice.app.cdn_plane import CdnPlane
    from pyservice.process.capabilities import drop_capabilities
    from pyservice.process.plane_process import run_plane
    from pyservice.storage.database_errors import DatabaseUnusable

    # The process parses requests of the internet. It inherits its listeners, and only uses files.
    drop_capabilities()

    def make(settings: Settings) -> CdnPlane:
        return CdnPlane(settings, tuple(launch.listeners.values()))

    return run_plane(make, launch, launch.settings.data_dir / "control/cdn", (DatabaseUnusable,))
