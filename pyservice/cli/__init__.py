"""Command line. The module of a command is imported on use, because a start has 2 s.

`serve` spawns its child processes here, before it loads the modules that the children need as well.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

from pyservice.process import blocked_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyservice.process.early_spawn import PendingFlags

__all__ = ["COMMANDS", "is_operators", "main"]

COMMANDS: Final = frozenset(
    {
        "audit",
        "backup",
        "billing",
        "check-config",
        "drain",
        "group",
        "identity",
        "keys",
        "migrate",
        "namespace",
        "quota",
        "restore",
        "rollback-check",
        "serve",
        "takeover",
        "token",
        "upgrade",
    }
)
"""Commands of the operator. They run on the machine of the service."""
_STATUS_OPTIONS: Final = ("--data-dir", "--config")


def is_operators(words: Sequence[str]) -> bool:
    """Returns whether the words of a command line are a command of the operator.

    `status` without the data directory or settings of a service is the developer's command.
    """
    if words[:1] == ["status"]:
        return any(word.partition("=")[0] in _STATUS_OPTIONS for word in words)
    return bool(words) and words[0] in COMMANDS


def main() -> None:
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
        # The default of 700 new objects is reached by a few requests that run at once.
        gc.set_threshold(20_000)
        gc.enable()
        app()
    finally:
        early_spawn.kill_early()


def _load(awaited: PendingFlags) -> None:
    from pyservice.process.ready_report import SupervisorLink

    if not SupervisorLink.parse(awaited.parent).stop_on_supervisor_exit():
        sys.exit()
    from pyservice.app import load
    from pyservice.cli import commands, service_start  # noqa: F401 — loaded now, used later

    load(awaited.role)
