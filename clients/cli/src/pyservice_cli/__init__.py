"""Command line `pyservice`: commands for developers, and those of the operator.

Commands for developers need only this distribution and a service that they can reach. The
operator's commands are in the package `pyservice`, which has the service itself.
"""

from __future__ import annotations

import gc
import importlib.util
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command of this process."""
    if _is_service_installed():
        from pyservice import cli as operator

        # The service starts its planes before it imports anything else.
        if operator.is_operators(sys.argv[1:]):
            operator.main()
            return
    from pyservice_cli.failures import Interrupted
    from pyservice_cli.interrupts import raise_on_signals

    raise_on_signals()
    try:
        # The collector finds no garbage during the imports. Its runs take a tenth of the time of a help page.
        gc.disable()
        from pyservice_cli.application import run

        gc.freeze()
        gc.enable()
        sys.exit(run(sys.argv[1:]))
    except Interrupted as failure:
        # The signal came during the imports, or while the command ended.
        from pyservice_cli.terminal import Terminal

        Terminal("--json" in sys.argv).fail(failure)
        sys.exit(failure.status)


def _is_service_installed() -> bool:
    return importlib.util.find_spec("pyservice") is not None
