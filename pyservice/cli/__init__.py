"""Command line. The module of a command is imported on use, because a start has 2 s.

`serve` spawns its child processes here, before it loads the modules that the children need as well.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from pyservice.process import blocked_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyservice.process.early_spawn import PendingFlags

__all__ = ["main"]


def main() -> None:
    if sys.argv[1:2] == ["compact"]:
        sys.exit(_compact(sys.argv[2:]))
    blocked_signals.block(sys.argv[1:])
    from pyservice.process import early_spawn

    # The collector finds no garbage during the imports, which take 0.75 instead of 0.85 s without it.
    gc.disable()
    awaited = early_spawn.PendingFlags.of(sys.argv[1:])
    if awaited is not None:
        # The supervisor handles the stop signals of this child.
        blocked_signals.unblock()
        _load(awaited)
        words = awaited.words()
        if words is None:
            return
        sys.argv[1:] = words
    early_spawn.spawn_early(sys.argv[1:])
    try:
        from pyservice.cli.commands import app

        gc.freeze()
        gc.enable()
        app()
    finally:
        early_spawn.kill_early()


def _load(awaited: PendingFlags) -> None:
    from pyservice.process.ready_report import SupervisorLink

    if not SupervisorLink.parse(awaited.parent).stop_on_supervisor_exit():
        sys.exit()
    from pyservice.app import load
    from pyservice.cli import commands  # noqa: F401 — loaded now, used later

    load(awaited.role)


def _compact(words: Sequence[str]) -> int:
    import argparse
    from pathlib import Path

    from pyservice.auth import keyring
    from pyservice.dataplane import engine
    from pyservice.dataplane.journal_compaction import NO_SPACE_STATUS
    from pyservice.durable_files import is_disk_full

    defaults = engine.EngineLimits()
    description = "Writes an image of the closed segments of a journal."
    parser = argparse.ArgumentParser("pyservice compact", description=description)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--segment-bytes", type=int, default=defaults.segment_bytes)
    parser.add_argument("--boot-id-path", type=Path, default=defaults.boot_id_path)
    parser.add_argument("--parent-pid", type=int, default=0, help="end when this process does")
    arguments = parser.parse_args(words)
    limits = engine.EngineLimits(
        segment_bytes=arguments.segment_bytes, boot_id_path=arguments.boot_id_path
    )
    try:
        ring = keyring.load(arguments.data_dir)
        lsn = engine.compact(arguments.data_dir / "journal", ring, limits, arguments.parent_pid)
    except (keyring.KeyringError, engine.OpenFailed, OSError) as error:
        print(f"pyservice compact: {error}", file=sys.stderr)
        is_no_space = isinstance(error, OSError) and is_disk_full(error)
        return NO_SPACE_STATUS if is_no_space else 1
    print(lsn)
    return 0
