"""Flags of the command `quota`."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Final

import typer

from pyservice.cli.options import As, Config, DataDir, Json, data_dir_of, fail

quota_app = typer.Typer(help="Quotas of groups of a running service.", no_args_is_help=True)

Group = Annotated[str, typer.Option(help="Id of the group.")]

_LIMIT: Final = re.compile(r"([a-z_]+)=([0-9]{1,16})(KiB|MiB|GiB|TiB)?")
_SIZES: Final = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@quota_app.command("list")
def list_quotas(
    group: Group, config: Config = None, data_dir: DataDir = None, json: Json = False
) -> None:
    """Print name, use and limit of every quota of a group. --json adds scope, unit and object."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.list_quotas(folder, group, json))


@quota_app.command("set")
def set_quotas(
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...", help="New limits, such as games=20 or build_bytes=10GiB."
        ),
    ],
    group: Group,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Set limits of a group. A limit below the use refuses new objects and removes none."""
    values = {}
    for text in limits:
        match = _LIMIT.fullmatch(text)
        if match is None:
            fail([f"{text}: write NAME=VALUE with a whole number, such as build_bytes=10GiB"])
        values[match[1]] = int(match[2]) * _SIZES[match[3]]
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.set_quotas(folder, as_, group, values, json))


@quota_app.command("reset")
def reset_quotas(
    group: Group,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Quotas. Default: all.")
    ] = None,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Return limits of a group to the defaults of the service."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.reset_quotas(folder, as_, group, names or [], json))
