"""Commands `drain` and `status` of the whole machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pyservice.cli.options import Config, DataDir, Json, data_dir_of, fail

_DEADLINE = "2h"


def drain(
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=f"Longest wait for matches, such as 2h or 0s; default: {_DEADLINE}.",
        ),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the drain.")] = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Start no new lobby or server, wait until matches have ended, and stop the service."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import machine_requests

    if not cancel:
        sys.exit(machine_requests.drain(folder, deadline or _DEADLINE, waits=not no_wait))
    if deadline is not None or no_wait:
        fail(["drain: --cancel takes no other option"])
    sys.exit(machine_requests.cancel_drain(folder))


def status(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Print parts, lobbies, servers, room, drain and last backup of this machine."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import machine_requests

    sys.exit(machine_requests.show_status(folder, is_json=json))
