"""Flags of the command `audit`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pyservice.cli.options import Config, DataDir, Json, data_dir_of

_MAX = 10_000


def audit(
    group: Annotated[str | None, typer.Option(help="Only entries of this group.")] = None,
    identity: Annotated[str | None, typer.Option(help="Only entries of this identity.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only entries from this time on."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=_MAX, help="Most entries.")] = 100,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Print the audit log of all groups, newest first: time, operation, outcome, token, address,
    group and object.
    """
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.list_audit(folder, group, identity, since, limit, json))
