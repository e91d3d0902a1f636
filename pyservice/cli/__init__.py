"""The command line. Each command is a module that is imported when it is used: a start has 2 s, and
a compaction runs beside a service that needs the processor.

A start begins its children here, before anything is loaded that they need as well (`spawning`).
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from pyservice import held_signals

if TYPE_CHECKING:
    from pyservice.spawning import Awaited

__all__ = ["main"]


def main() -> None:
    """Entry point of `pyservice`."""
    if sys.argv[1:2] == ["compact"]:
        from pyservice.cli import compact

        sys.exit(compact.main(sys.argv[2:]))
    held_signals.hold(sys.argv[1:])
    from pyservice import spawning

    # What is loaded stays: nobody looks for garbage among it, now or later.
    gc.disable()
    awaited = spawning.Awaited.of(sys.argv[1:])
    if awaited is not None:
        # Its parent does what is to be done about them.
        held_signals.release()
        _load(awaited)
        words = awaited.words()
        if words is None:
            return
        sys.argv[1:] = words
    spawning.begin_early(sys.argv[1:])
    try:
        from pyservice.cli.commands import app

        gc.freeze()
        gc.enable()
        app()
    finally:
        spawning.drop_early()


def _load(awaited: Awaited) -> None:
    """Loads all that the role needs."""
    from pyservice.process import Parent

    # It does not stay either when its parent goes before it has begun.
    if not Parent.parse(awaited.parent).share_its_end():
        sys.exit()
    from pyservice.app import load
    from pyservice.cli import commands  # noqa: F401 — loaded now, used later

    load(awaited.role)
