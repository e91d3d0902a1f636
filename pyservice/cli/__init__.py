"""The command line. Each command is a module that is imported when it is used: a start has 2 s, and
a compaction runs beside a service that needs the processor.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of `pyservice`."""
    if sys.argv[1:2] == ["compact"]:
        from pyservice.cli import compact

        sys.exit(compact.main(sys.argv[2:]))
    from pyservice.cli.commands import app

    app()
