"""The commands and their flags. What a command does is in a module of its own or in `app`."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pyservice.app import Launch, run_all, run_control, run_data
from pyservice.process import Parent
from pyservice.settings import Settings, SettingsError, load

app = typer.Typer(
    name="pyservice",
    help="Self-hosted multiplayer hosting: matchmaking, lobbies and player tokens.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
token_app = typer.Typer(help="Tokens of a running service.", no_args_is_help=True)
app.add_typer(token_app, name="token")
keys_app = typer.Typer(help="Keys of a running service.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")


class Role(enum.StrEnum):
    """Which part of the service runs."""

    ALL = "all"
    DATA = "data"
    CONTROL = "control"


class Front(enum.StrEnum):
    """What answers at the doors of the data plane."""

    OFF = "off"


class TokenKind(enum.StrEnum):
    """Kinds of tokens of a namespace."""

    PUBLIC = "public"
    ENVIRONMENT = "environment"


Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of journal, keys and feed.")]
Http = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="HTTP door; port 0 picks.")]
Grpc = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="gRPC door; port 0 picks.")]
Cdn = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Sites and files; port 0 picks.")
]
Metrics = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Metrics and health; port 0 picks.")
]
Feed = Annotated[Path | None, typer.Option(help="JSON file with games and namespaces.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as journal.segment_bytes."),
]


@app.command()
def serve(
    role: Annotated[Role, typer.Option(help="Which part of the service to run.")] = Role.ALL,
    config: Config = None,
    data_dir: DataDir = None,
    http: Http = None,
    grpc: Grpc = None,
    cdn: Cdn = None,
    metrics: Metrics = None,
    feed: Feed = None,
    front: Annotated[
        Front, typer.Option(help="`off`: the Python doors alone, the only ones so far.")
    ] = Front.OFF,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written when ready: JSON with the addresses.")
    ] = None,
    settings: Set = None,
    child_of: Annotated[Parent | None, typer.Option(parser=Parent.parse, hidden=True)] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    flags = _flags(data_dir, http, grpc, cdn, metrics, feed, settings)

    def reread() -> Settings:
        return load(flags, config)

    launch = Launch(_load_or_exit(flags, config), reread, ready_file, child_of)
    if role is Role.DATA:
        sys.exit(run_data(launch))
    if role is Role.CONTROL:
        sys.exit(run_control(launch))
    given = {
        "config": config,
        "data-dir": data_dir,
        "http": http,
        "grpc": grpc,
        "cdn": cdn,
        "metrics": metrics,
        "feed": feed,
        "front": front.value,
    }
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    sys.exit(run_all(launch, words + [f"--set={pair}" for pair in settings or ()]))


@app.command("check-config")
def check_config(
    config: Config = None,
    data_dir: DataDir = None,
    http: Http = None,
    grpc: Grpc = None,
    cdn: Cdn = None,
    metrics: Metrics = None,
    feed: Feed = None,
    settings: Set = None,
) -> None:
    """Print every problem of settings and feed file; exit 1 when there is one."""
    from pyservice.cli.check_config import all_problems

    problems = all_problems(_flags(data_dir, http, grpc, cdn, metrics, feed, settings), config)
    if problems:
        _fail(problems)
    print("ok")


@token_app.command("create")
def create_token(
    kind: Annotated[TokenKind, typer.Option(help="Whom the token is for.")],
    namespace: Annotated[str, typer.Option(help="game/namespace, or the namespace's id.")],
    config: Config = None,
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print token and token_id as JSON.")] = False,
) -> None:
    """Make a token; it is printed this once."""
    loaded = _load_or_exit(_flags(data_dir=data_dir), config)
    from pyservice.cli import token

    sys.exit(token.create(loaded.data_dir, kind.value, namespace, json))


@keys_app.command("rotate")
def rotate_keys(
    drop_unused: Annotated[
        bool,
        typer.Option(
            "--drop-unused",
            help="Forget older keys that no lobby or player needs. Ends pub_ and dev_ tokens made "
            "with them: replace those first.",
        ),
    ] = False,
    config: Config = None,
    data_dir: DataDir = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print all numbers of keys as JSON.")
    ] = False,
) -> None:
    """Add a key that signs from now on; print its number. What older keys signed stays good."""
    loaded = _load_or_exit(_flags(data_dir=data_dir), config)
    from pyservice.cli import keys

    sys.exit(keys.rotate(loaded.data_dir, drop_unused, json))


def _flags(
    data_dir: Path | None = None,
    http: str | None = None,
    grpc: str | None = None,
    cdn: str | None = None,
    metrics: str | None = None,
    feed: Path | None = None,
    settings: list[str] | None = None,
) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "data_dir": data_dir,
        "http": http,
        "grpc": grpc,
        "cdn": cdn,
        "metrics": metrics,
        "feed_file": feed,
    }
    for pair in settings or ():
        name, separator, value = pair.partition("=")
        if not separator or not name:
            _fail([f"--set {pair}: must be NAME=VALUE"])
        holder = flags
        *sections, last = name.split(".")
        for section in sections:
            holder = holder.setdefault(section, {})
            if not isinstance(holder, dict):
                _fail([f"--set {pair}: {section} is not a section"])
        holder[last] = value
    return flags


def _load_or_exit(flags: dict[str, Any], config: Path | None) -> Settings:
    try:
        return load(flags, config)
    except SettingsError as error:
        _fail([str(problem) for problem in error.problems])


def _fail(problems: list[str]) -> NoReturn:
    for problem in problems:
        print(f"pyservice: {problem}", file=sys.stderr)
    sys.exit(1)
