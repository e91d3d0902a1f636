"""Commands for developers and their options. The module of a command is imported on use."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Final

import typer

from pyservice_cli.failures import CommandFailed, Interrupted
from pyservice_cli.terminal import Terminal

DEVELOPER_PANEL: Final = "Your game"
SERVICE_PANEL: Final = "Services"
OPERATOR_PANEL: Final = "Operator, on the machine of the service"

app = typer.Typer(
    name="pyservice",
    help="Multiplayer games on your own servers: make a game, deploy it, play it, and run the service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Profile of the service. `local` is the one that runs on this machine.",
    ),
]
NamespaceName = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Namespace. Default: that of hosting.toml."),
]
Folder = Annotated[
    Path,
    typer.Option("--folder", help="Folder of the game, with hosting.toml. Default: this folder."),
]


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version

        print(f"pyservice {version('pyservice-cli')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Multiplayer games on your own servers: make a game, deploy it, play it, and run the service."""


@app.command(rich_help_panel=DEVELOPER_PANEL)
def init(
    template: Annotated[
        str | None, typer.Option(metavar="NAME", help="Template. Default: ws-python.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the game. Default: the folder's.")
    ] = None,
    folder: Folder = Path(),
    json: Json = False,
) -> None:
    """Write a small playable game into an empty folder."""
    from pyservice_cli.templates import create_game

    create_game(Terminal(json), folder, template or "ws-python", name)


@app.command(rich_help_panel=DEVELOPER_PANEL)
def deploy(
    namespace: NamespaceName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, and change nothing.")
    ] = False,
    folder: Folder = Path(),
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Upload what changed, create a version and let players in."""
    from pyservice_cli.deployment import deploy as run_deployment

    run_deployment(Terminal(json), folder, namespace, profile, is_dry_run=dry_run)


@app.command(rich_help_panel=DEVELOPER_PANEL)
def play(
    bots: Annotated[
        int | None, typer.Option("--bots", min=1, max=64, help="Number of bots that play.")
    ] = None,
    namespace: NamespaceName = None,
    folder: Folder = Path(),
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Open the game's page, or play with bots, until Ctrl-C."""
    from pyservice_cli.playing import play as run_play

    run_play(Terminal(json), folder, namespace, profile, bots)


@app.command(rich_help_panel=SERVICE_PANEL)
def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the service.")],
    token: Annotated[
        str | None, typer.Option(help="A cloud_ token. `-` reads it from standard input.")
    ] = None,
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Store the address of a service and a token for it."""
    from pyservice_cli.login import log_in

    log_in(Terminal(json), url, token, profile)


@app.command(rich_help_panel=SERVICE_PANEL)
def logout(profile: ProfileName = None, json: Json = False) -> None:
    """Forget the token of a profile."""
    from pyservice_cli.login import log_out

    log_out(Terminal(json), profile)


@app.command(rich_help_panel=SERVICE_PANEL)
def whoami(profile: ProfileName = None, json: Json = False) -> None:
    """Print the service, and the scope of the token."""
    from pyservice_cli.login import show_identity

    show_identity(Terminal(json), profile)


def run(words: list[str]) -> int:
    """Runs a command and returns its exit status. A wrong option ends the process with status 2."""
    _add_operator_commands()
    signal.signal(signal.SIGINT, _interrupt)
    try:
        app(words)
    except CommandFailed as failure:
        Terminal("--json" in words).fail(failure)
        return int(failure.status)
    return 0


def _interrupt(_number: int, _frame: object) -> None:
    """Ends the command with the status of Ctrl-C. `typer` would return 1."""
    raise Interrupted


def _add_operator_commands() -> None:
    import importlib.util

    if importlib.util.find_spec("pyservice") is None:
        return
    from pyservice.cli.commands import app as operator

    for command in operator.registered_commands:
        command.rich_help_panel = OPERATOR_PANEL
        app.registered_commands.append(command)
    for group in operator.registered_groups:
        group.rich_help_panel = OPERATOR_PANEL
        app.registered_groups.append(group)
