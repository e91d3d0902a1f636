"""Start of a process of the service: what the command line passes on, and the locks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyservice.process.directory_lock import DirectoryLock, DirectoryUnusable, make_folder
from pyservice.process.ready_report import SupervisorLink, remove_ready_file
from pyservice.settings import Settings

GUARD_LOCK: Final = "GUARD.LOCK"
"""Lock of the process that supervises edge-guard. Edge-guard has a lock of its own."""
_LATE_MS: Final = 5_000
"""Time that an orderly stop may take beyond the times of the settings."""


@dataclass(frozen=True, slots=True)
class Launch:
    settings: Settings
    reread: Callable[[], Settings]
    ready_file: Path | None = None
    parent: SupervisorLink | None = None
    warnings: Sequence[str] = ()
    """Findings in the configuration that do not prevent the start. Each is logged once."""
    flags: Sequence[str] = ()
    """Command-line flags of `pyservice serve`, without the role. Child processes receive them."""
    listeners: Mapping[str, int] = field(default_factory=dict)
    """Descriptors of listening sockets that this process inherited, by name."""


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
        return report_failed_start(launch.settings, error)


def report_failed_start(settings: Settings, error: Exception) -> int:
    """Logs why the service does not start. Returns the exit status."""
    # Loaded here, because a start loads it while the planes start.
    from pyservice.observability.logging import configure_logging, get_logger

    configure_logging(level=settings.log_level, format=settings.log_format)
    get_logger("serve").error("fatal error", error=str(error))
    return 1


def longest_end_ms(settings: Settings) -> int:
    """Returns how long an orderly stop of a plane may take, in ms."""
    # A stop can take longer if the disk hangs.
    return settings.lame_duck_ms + settings.stop_grace_ms + _LATE_MS
