"""Commands for developers and their options. The module of a command is imported on use."""

from __future__ import annotations

import copy
import enum
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pyservice_cli.chosen_game import ChosenGame
from pyservice_cli.failures import (
    CommandFailed,
    DiskFull,
    ExitStatus,
    Refused,
    UsageWrong,
    is_disk_full,
)
from pyservice_cli.kinds import KINDS, singular
from pyservice_cli.terminal import Terminal

DEVELOPER_PANEL: Final = "Your game"
SERVICE_PANEL: Final = "Services"
OPERATOR_PANEL: Final = "Operator, on the machine of the service"
TEMPLATES: Final = ("ws-python", "ws-node", "udp-rust", "existing-server", "godot")
"""Folders of `templates`. The first one is the default."""
_COMPLETION: Final = "_PYSERVICE_COMPLETE"

_UsageError: Any = typer.BadParameter.__base__
"""The error of a wrong option or argument. Typer exports only this subclass of it."""

app = typer.Typer(
    name="pyservice",
    help=(
        "Multiplayer games on your own servers: make a game, deploy it, play it, and run the service."
        "\n\nStart in an empty folder: `pyservice init`, then `pyservice deploy`, then `pyservice play`."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

dev_app = typer.Typer(
    help="Run the game on this machine, and start its server again at each change.",
    invoke_without_command=True,
)
app.add_typer(dev_app, name="dev", rich_help_panel=DEVELOPER_PANEL)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Profile of the service. `local` is the one that runs on this machine.",
    ),
]
StoredProfile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Profile. Default: the one of the last login."),
]
NamespaceName = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Namespace. Default: that of hosting.toml."),
]
Folder = Annotated[
    Path,
    typer.Option("--folder", help="Folder of the game, with hosting.toml. Default: this folder."),
]

GameMode = Annotated[
    str | None, typer.Option(metavar="NAME", help="Game mode. Default: the only one.")
]


def _for_game(run: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name a game, and `--json`. The function gets them as a ChosenGame."""

    def command(
        *,
        namespace: NamespaceName = None,
        folder: Folder = Path(),
        profile: ProfileName = None,
        json: Json = False,
        **own: object,
    ) -> None:
        chosen = ChosenGame(folder, namespace, profile, Terminal(json))
        try:
            run(chosen, **own)
        except Refused as refused:
            if refused.code == "NAMESPACE_NOT_FOUND":
                # Raises a failure that names the known namespaces.
                chosen.open().describe_namespace()
            raise

    _, *first = inspect.signature(run, eval_str=True).parameters.values()
    *shared, _ = inspect.signature(command, eval_str=True).parameters.values()
    options = [one.replace(kind=one.KEYWORD_ONLY) for one in (*first, *shared)]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in options}
    command.__name__, command.__doc__ = run.__name__, run.__doc__
    return command


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
    """Takes the options of the program itself."""


def _matching_templates(incomplete: str) -> Iterator[str]:
    return (name for name in TEMPLATES if name.startswith(incomplete))


@app.command(rich_help_panel=DEVELOPER_PANEL)
def init(
    template: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Template: {', '.join(TEMPLATES)}.",
            autocompletion=_matching_templates,
        ),
    ] = TEMPLATES[0],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the game. Default: the folder's.")
    ] = None,
    folder: Folder = Path(),
    json: Json = False,
) -> None:
    """Write a small playable game into an empty folder."""
    from pyservice_cli.templates import create_game

    create_game(Terminal(json), folder, template, name)


@app.command(rich_help_panel=DEVELOPER_PANEL)
@_for_game
def deploy(
    chosen: ChosenGame,
    trial: Annotated[
        bool,
        typer.Option(" /--no-trial", help="Switch without a lobby on trial.", show_default=False),
    ] = True,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the game, print the steps, and change nothing."),
    ] = False,
) -> None:
    """Upload what changed, try the game server, and let players in."""
    from pyservice_cli.deployment import deploy as run_deployment
    from pyservice_cli.games import Game

    game, mistakes = Game.open_with_mistakes(chosen.folder, chosen.namespace, chosen.profile)
    run_deployment(chosen.terminal, game, has_trial=trial, is_dry_run=dry_run, mistakes=mistakes)


@app.command(rich_help_panel=DEVELOPER_PANEL)
@_for_game
def play(
    chosen: ChosenGame,
    bots: Annotated[
        int | None, typer.Option("--bots", min=1, max=64, help="Number of bots that play.")
    ] = None,
) -> None:
    """Open the game's page in the browser, or play with bots.

    The command ends when the page is open. With --bots, or without a browser or a page, it plays
    with bots until Ctrl-C.
    """
    from pyservice_cli.playing import play as run_play

    run_play(chosen.terminal, chosen.open(), bots)


@app.command("open", rich_help_panel=DEVELOPER_PANEL)
@_for_game
def open_page(
    chosen: ChosenGame,
) -> None:
    """Open the game's page in the browser, and print its address."""
    from pyservice_cli.playing import open_page as run_open

    run_open(chosen.terminal, chosen.open())


@app.command("public-token", rich_help_panel=DEVELOPER_PANEL)
@_for_game
def public_token(chosen: ChosenGame) -> None:
    """Print a pub_ token for the players' clients of the game."""
    from pyservice_cli.games import show_public_token

    show_public_token(chosen.terminal, chosen.open())


@app.command(rich_help_panel=DEVELOPER_PANEL)
@_for_game
def status(
    chosen: ChosenGame,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print each change, until Ctrl-C.")
    ] = False,
) -> None:
    """Print the version, the lobbies that run with their players, and the servers that run."""
    from pyservice_cli.watching import show_status

    show_status(chosen.terminal, chosen.open(), is_watching=watch)


@app.command(rich_help_panel=DEVELOPER_PANEL)
@_for_game
def logs(
    chosen: ChosenGame,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the game server ends.")
    ] = False,
    lobby: Annotated[str | None, typer.Option(metavar="ID", help="Id of a lobby.")] = None,
    server: Annotated[str | None, typer.Option(metavar="ID", help="Id of a server.")] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="NAME", help="The newest lobby of this game mode.")
    ] = None,
) -> None:
    """Print the log of a game server, by default of the newest lobby."""
    from pyservice_cli.watching import show_logs

    show_logs(
        chosen.terminal, chosen.open(), lobby=lobby, server=server, mode=mode, is_following=follow
    )


@app.command(rich_help_panel=DEVELOPER_PANEL)
@_for_game
def why(
    chosen: ChosenGame,
    subject: Annotated[
        str | None, typer.Argument(metavar="ID", help="Id of a lobby or server, or a ray id.")
    ] = None,
) -> None:
    """Print why a lobby, by default the newest one, a server or a request ended as it did."""
    from pyservice_cli.watching import explain

    explain(chosen.terminal, chosen.open(), subject)


@app.command(rich_help_panel=DEVELOPER_PANEL)
@_for_game
def versions(
    chosen: ChosenGame,
) -> None:
    """Print the versions that the namespace has run, newest first."""
    from pyservice_cli.games import show_versions

    show_versions(chosen.terminal, chosen.open())


@app.command(rich_help_panel=DEVELOPER_PANEL)
@_for_game
def rollback(
    chosen: ChosenGame,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="Default: the last other version.")
    ] = None,
) -> None:
    """Run an earlier version again."""
    from pyservice_cli.switching import roll_back

    roll_back(chosen.terminal, chosen.open(), version)


@app.command("list", rich_help_panel=DEVELOPER_PANEL)
@_for_game
def list_things(
    chosen: ChosenGame,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
) -> None:
    """Print all things of a kind."""
    from pyservice_cli.resources import show_list

    show_list(chosen, kind)


@app.command(rich_help_panel=DEVELOPER_PANEL)
@_for_game
def show(
    chosen: ChosenGame,
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=f"One of {', '.join(map(singular, KINDS))}."),
    ],
    subject: Annotated[str, typer.Argument(metavar="ID", help="Its id or name.")],
) -> None:
    """Print a thing with all fields, as JSON."""
    from pyservice_cli.resources import show_one

    show_one(chosen, kind, subject)


class Creatable(enum.StrEnum):
    """Kind of thing that `create` makes."""

    NAMESPACE = "namespace"


@app.command(rich_help_panel=DEVELOPER_PANEL)
def create(
    kind: Annotated[Creatable, typer.Argument(metavar="KIND", help="Only `namespace`.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    folder: Folder = Path(),
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Create a namespace of the game, with the version that `prod` runs."""
    from pyservice_cli.games import create_namespace

    chosen = ChosenGame(folder, name, profile, Terminal(json))
    create_namespace(chosen.terminal, chosen.open())


@app.command(rich_help_panel=DEVELOPER_PANEL)
def destroy(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    folder: Folder = Path(),
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Delete the game with its namespaces, versions, builds, sites, tokens and logs."""
    from pyservice_cli.games import destroy as run_destroy

    chosen = ChosenGame(folder, None, profile, Terminal(json))
    run_destroy(chosen.terminal, chosen.open(), is_confirmed=yes)


@dev_app.callback()
def dev(
    context: typer.Context,
    bots: Annotated[
        int, typer.Option("--bots", min=0, max=64, help="Number of bots that play.")
    ] = 0,
    game_mode: GameMode = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address at which players reach this machine. Default: dev_hostname."),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NAME", help="Namespace of its own.")
    ] = "dev",
    folder: Folder = Path(),
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Run the game on this machine, and start its server again at each change, until Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    from pyservice_cli.development import DevelopmentOptions, develop

    options = DevelopmentOptions(game_mode, namespace, address, bots)
    develop(Terminal(json), folder, profile, options)


@dev_app.command("token")
@_for_game
def development_token(
    chosen: ChosenGame,
    hostname: Annotated[
        str | None, typer.Option(help="Host of the game server. Default: dev_hostname.")
    ] = None,
) -> None:
    """Print a dev_ token for a client and a game server on this machine."""
    from pyservice_cli.games import create_development_token

    create_development_token(chosen.terminal, chosen.open(), hostname)


@dev_app.command("attach")
@_for_game
def attach_program(
    chosen: ChosenGame,
    game_mode: GameMode = None,
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="Port of the program. Default: its dev_port, then a free one of dev_port_range.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Address at which players reach this machine. Default: dev_hostname, then 127.0.0.1."
        ),
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND]", help="Program to run.")
    ] = None,
) -> None:
    """Make a program on this machine the game server of a real lobby.

    Players of the namespace can join it. Without a command, print the variables that the program
    needs.
    """
    from pyservice_cli.attaching import attach

    attach(chosen.terminal, chosen.open(), game_mode, port or (), address, command or ())


@app.command(rich_help_panel=SERVICE_PANEL)
def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the service.")],
    token: Annotated[
        str | None,
        typer.Option(
            help="A cloud_ token. `-` reads it from standard input. Default: approve in a browser."
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Profile to store. Default: the host and port of URL."),
    ] = None,
    json: Json = False,
) -> None:
    """Store the address of a service and a token for it.

    Without --token, a person approves the access to one game in a browser. So your first game needs
    --token, with a cloud_ token that covers your group.
    """
    from pyservice_cli.login import log_in

    log_in(Terminal(json), url, token, profile)


@app.command(rich_help_panel=SERVICE_PANEL)
def logout(profile: StoredProfile = None, json: Json = False) -> None:
    """Forget the token of a profile."""
    from pyservice_cli.login import log_out

    log_out(Terminal(json), profile)


@app.command(rich_help_panel=SERVICE_PANEL)
def whoami(profile: ProfileName = None, json: Json = False) -> None:
    """Print the service, and the scope of the token."""
    from pyservice_cli.login import show_identity

    show_identity(Terminal(json), profile)


@app.command(rich_help_panel=SERVICE_PANEL)
def doctor(folder: Folder = Path(), profile: ProfileName = None, json: Json = False) -> None:
    """Check this machine, the service, the token and the game."""
    from pyservice_cli.diagnosis import diagnose

    diagnose(Terminal(json), folder, profile)


def run(words: list[str]) -> int:
    """Runs a command and returns its exit status."""
    # The words after `--` are a program and its arguments.
    own = words[: words.index("--")] if "--" in words else words
    terminal = Terminal("--json" in own)
    try:
        return _run(terminal, words)
    except CommandFailed as failure:
        terminal.fail(failure)
        return int(failure.status)
    except OSError as error:
        terminal.fail(_failure(error))
        return int(CommandFailed.status)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0


def _failure(error: OSError) -> CommandFailed:
    if is_disk_full(error):
        return DiskFull(str(error.filename or Path().absolute()))
    place = f"{error.filename}: " if error.filename else ""
    return CommandFailed(f"{place}{error.strerror or error}.")


def _run(terminal: Terminal, words: list[str]) -> int:
    application = _with_operator_commands()
    # Shells ask for completions without an argument, in a variable.
    if words in ([], ["--help"], ["-h"]) and _COMPLETION not in os.environ:
        from pyservice_cli.front_page import print_front_page

        print_front_page(application)
        return ExitStatus.DONE if words else ExitStatus.USAGE
    command: Any = typer.main.get_command(application)
    hide_flag_types(command)
    if not terminal.is_json:
        command(words)
        return ExitStatus.DONE
    try:
        status = command(words, standalone_mode=False)
    except _UsageError as error:
        raise UsageWrong(error.format_message()) from None
    return status if isinstance(status, int) else ExitStatus.DONE


def hide_flag_types(command: Any, parent: typer.Context | None = None) -> None:
    """Removes the type from the help of flags, which take no value."""
    context = typer.Context(
        command, parent=parent, info_name=command.name, **command.context_settings
    )
    for parameter in command.get_params(context):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        hide_flag_types(inner, context)


def _name(command: Any) -> str:
    return str(command.name or getattr(command.callback, "__name__", ""))


def _with_operator_commands() -> typer.Typer:
    """Returns the commands for developers, and those of the operator if the service is installed."""
    import importlib.util

    if importlib.util.find_spec("pyservice") is None:
        return app
    from pyservice.cli.commands import app as operator

    combined = copy.copy(app)
    for command in operator.registered_commands:
        command.rich_help_panel = OPERATOR_PANEL
    for group in operator.registered_groups:
        group.rich_help_panel = OPERATOR_PANEL
    # `status` of the operator has options of its own, by which `main` has recognized it already.
    own_names = {_name(command) for command in app.registered_commands}
    operator_commands = sorted(
        (command for command in operator.registered_commands if _name(command) not in own_names),
        key=lambda command: _name(command) != "serve",
    )
    combined.registered_commands = [*app.registered_commands, *operator_commands]
    combined.registered_groups = [*app.registered_groups, *operator.registered_groups]
    return combined
