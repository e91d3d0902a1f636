"""Flags that several commands share, and the settings that they result in."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from pyservice.settings import Settings


Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of journal, keys and feed.")]
Http = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of the HTTP server; port 0 picks one."),
]
Grpc = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of the gRPC server; port 0 picks one."),
]
Cdn = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address for sites and files; port 0 picks one."),
]
Metrics = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address for metrics and health; port 0 picks one."),
]
Feed = Annotated[Path | None, typer.Option(help="JSON file with games and namespaces.")]


class Front(enum.StrEnum):
    ON = "on"
    OFF = "off"


FrontOption = Annotated[
    Front | None,
    typer.Option("--front", help="`off` serves clients without the front, for development only."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as journal.segment_bytes."),
]


def _or_login_name(name: str) -> str:
    # Loaded on use, as the settings are.
    from pyservice.settings.login_name import login_name

    return name or login_name()


As = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="NAME",
        callback=_or_login_name,
        show_default="your login name",
        help="Your name in the audit log.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def flags_of(
    data_dir: Path | None = None,
    http: str | None = None,
    grpc: str | None = None,
    cdn: str | None = None,
    metrics: str | None = None,
    feed: Path | None = None,
    settings: list[str] | None = None,
    front: Front | None = None,
) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "data_dir": data_dir,
        "http": http,
        "grpc": grpc,
        "cdn": cdn,
        "metrics": metrics,
        "feed_file": feed,
        "front": front and front.value,
    }
    for pair in settings or ():
        name, separator, value = pair.partition("=")
        if not separator or not name:
            fail([f"--set {pair}: must be NAME=VALUE"])
        holder = flags
        *sections, last = name.split(".")
        for section in sections:
            holder = holder.setdefault(section, {})
            if not isinstance(holder, dict):
                fail([f"--set {pair}: {section} is not a section"])
        holder[last] = value
    return flags


def load_or_exit(flags: dict[str, Any], config: Path | None) -> Settings:
    # Loaded on use: the list of commands does not need it.
    from pyservice.settings import SettingsError, load

    try:
        return load(flags, config)
    except SettingsError as error:
        fail([str(problem) for problem in error.problems])


def load_of_service(
    flags: dict[str, Any], config: Path | None, *, needs_keys: bool = False
) -> Settings:
    """Loads the settings of an existing service. Exits if the data directory has no data of one."""
    settings = load_or_exit(flags, config)
    from pyservice.data_formats import DataMissing, require_data, require_keys

    require = require_keys if needs_keys else require_data
    try:
        require(settings.data_dir)
    except DataMissing as error:
        fail([str(error)])
    except OSError as error:
        fail([f"{settings.data_dir} cannot be read: {error.strerror}"])
    return settings


def data_dir_of(data_dir: Path | None, config: Path | None) -> Path:
    return load_of_service(flags_of(data_dir=data_dir), config).data_dir


def fail(problems: list[str]) -> NoReturn:
    for problem in problems:
        print(f"pyservice: {problem}", file=sys.stderr)
    sys.exit(1)
