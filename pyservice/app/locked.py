"""A process that keeps others and serves nothing itself: its locks, its ready file, what prevents its start."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from pyservice.app import Launch
from pyservice.process.directory_lock import DirectoryLock, DirectoryUnusable, make_folder
from pyservice.process.ready_report import remove_ready_file


def run_locked(
    launch: Launch,
    locks: Sequence[tuple[Path, str]],
    live: Callable[[], Coroutine[Any, Any, int]],
) -> int:
    """Lives as long as it has these locks, by folder and name; the exit status. What prevents a start is told on
    standard error.
    """
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
