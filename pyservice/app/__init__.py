"""Entry points of the service's roles: both planes together, data plane, control plane, edge-guard.

Each entry point imports the module of its role when it is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyservice.process.directory_lock import DirectoryLock, DirectoryUnusable, make_folder
from pyservice.process.ready_report import SupervisorLink, remove_ready_file
from pyservice.settings import Settings

_MODULES: Final = {
    "data": "pyservice.app.data_plane",
    "control": "pyservice.app.control_plane",
    "cdn": "pyservice.app.cdn_plane",
}

_LATE_MS: Final = 5_000
"""Time that an orderly stop may take beyond the times of the settings."""

__all__ = [
    "Launch",
    "load",
    "longest_end_ms",
    "run_all",
    "run_cdn",
    "run_control",
    "run_data",
    "run_edge_guard",
]


@dataclass(frozen=True, slots=True)
class Launch:
    settings: Settings
    reread: Callable[[], Settings]
    ready_file: Path | None = None
    parent: SupervisorLink | None = None
    warning: str | None = None
    """A problem of the configuration that does not prevent the start. It is logged once."""
    flags: Sequence[str] = ()
    """Command-line flags of `pyservice serve`, without the role. Child processes receive them."""
    listeners: Mapping[str, int] = field(default_factory=dict)
    """Descriptors of listening sockets that this process inherited, by name."""


def run_all(launch: Launch) -> int:
    """Starts the data plane and the control plane, and supervises them until a stop signal.

    Returns the exit status. Logs a failed start.
    """
    from pyservice.app.supervisor import run

    return run(launch)


def load(role: str) -> None:
    importlib.import_module("pyservice.app.plane_process")
    importlib.import_module(_MODULES[role])


def run_data(launch: Launch) -> int:
    from pyservice.app.data_plane import START_FAILURES, DataPlane
    from pyservice.app.plane_process import run_plane

    def make(settings: Settings) -> DataPlane:
        return DataPlane(settings, launch.listeners, is_control_awaited=launch.parent is not None)

    return run_plane(make, launch, launch.settings.data_dir, START_FAILURES)


def run_edge_guard(launch: Launch) -> int:
    from pyservice.app.edge_guard_role import run_edge_guard_role

    return run_edge_guard_role(launch)


def run_control(launch: Launch) -> int:
    """Runs the control plane until a stop signal.

    If the supervisor dies, the control plane stops after the data plane, which still needs it for
    its last responses.
    """
    from pyservice.app.control_plane import FAILURES, ControlPlane
    from pyservice.app.plane_process import run_plane
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
    from pyservice.app.plane_process import run_plane
    from pyservice.storage.database_errors import DatabaseUnusable

    def make(settings: Settings) -> CdnPlane:
        return CdnPlane(settings, tuple(launch.listeners.values()))

    return run_plane(make, launch, launch.settings.data_dir / "control/cdn", (DatabaseUnusable,))


def run_locked(
    launch: Launch, locks: Sequence[tuple[Path, str]], live: Callable[[], Coroutine[Any, Any, int]]
) -> int:
    """Takes the `locks`, which are pairs of folder and file name, and runs `live` while it holds
    them.

    If `live` or a lock fails with an expected error, logs the error and returns 1.
    """
    try:
        make_folder(launch.settings.data_dir)
        with contextlib.ExitStack() as stack:
            for folder, name in locks:
                stack.callback(DirectoryLock.take(folder, name).release)
            if launch.ready_file is not None:
                remove_ready_file(launch.ready_file)
            return asyncio.run(live())
    except (DirectoryUnusable, OSError) as error:
        # Loaded here, because `live` loads it while the planes start.
        from pyservice.observability.logging import configure_logging, get_logger

        settings = launch.settings
        configure_logging(level=settings.log_level, format=settings.log_format)
        get_logger("serve").error("fatal error", error=str(error))
        return 1


def longest_end_ms(settings: Settings) -> int:
    """Returns how long an orderly stop of a plane may take, in ms."""
    # A stop can take longer if the disk hangs.
    return settings.lame_duck_ms + settings.stop_grace_ms + _LATE_MS
