"""Commands and their flags."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from pyservice.cli import (
    admin_commands,
    audit_commands,
    backup_commands,
    machine_commands,
    quota_commands,
    token_commands,
)
from pyservice.cli.options import (
    As,
    Cdn,
    Config,
    DataDir,
    Feed,
    FrontOption,
    Grpc,
    Http,
    Metrics,
    Set,
    data_dir_of,
    fail,
    flags_of,
    load_of_service,
)

app = typer.Typer(
    name="pyservice",
    help="Commands of the operator, on the machine of the service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(token_commands.token_app, name="token")
keys_app = typer.Typer(help="Keys of a running service.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
upgrade_app = typer.Typer(help="Upgrade to this release.", no_args_is_help=True)
app.add_typer(upgrade_app, name="upgrade")
app.add_typer(admin_commands.group_app, name="group")
app.add_typer(admin_commands.identity_app, name="identity")
app.add_typer(admin_commands.billing_app, name="billing")
app.add_typer(admin_commands.namespace_app, name="namespace")
app.add_typer(quota_commands.quota_app, name="quota")
app.add_typer(backup_commands.backup_app, name="backup")
app.command("restore")(backup_commands.restore)
app.command("audit")(audit_commands.audit)
app.command("drain")(machine_commands.drain)
app.command("status")(machine_commands.status)


class Role(enum.StrEnum):
    """Part of the service that `serve` runs."""

    ALL = "all"
    DATA = "data"
    CONTROL = "control"
    CDN = "cdn"
    EDGE_GUARD = "edge-guard"
    NODE = "node"


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
    front: FrontOption = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="JSON file with the addresses, written when the service is ready."),
    ] = None,
    settings: Set = None,
    child_of: Annotated[str | None, typer.Option(hidden=True)] = None,
    listener: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    from pyservice.cli import service_start

    options = {
        "config": config,
        "data-dir": data_dir,
        "http": http,
        "grpc": grpc,
        "cdn": cdn,
        "metrics": metrics,
        "feed": feed,
        "front": front and front.value,
    }
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    words += [f"--set={pair}" for pair in settings or ()]
    flags = flags_of(data_dir, http, grpc, cdn, metrics, feed, settings, front)
    sys.exit(
        service_start.serve(role.value, flags, config, ready_file, child_of, words, listener or ())
    )


@app.command("check-config")
def check_config(
    config: Config = None,
    data_dir: DataDir = None,
    http: Http = None,
    grpc: Grpc = None,
    cdn: Cdn = None,
    metrics: Metrics = None,
    feed: Feed = None,
    front: FrontOption = None,
    settings: Set = None,
) -> None:
    """Print every problem of settings, certificates and feed file (--feed). Exit with 1 if there is one.

    Also warn of a settings file with secrets that other users can read, and of missing certificates for lobbies.
    """
    from pyservice.cli.offline_commands import check_configuration

    report = check_configuration(
        flags_of(data_dir, http, grpc, cdn, metrics, feed, settings, front), config
    )
    for warning in report.warnings:
        print(f"pyservice: warning: {warning}", file=sys.stderr)
    if report.problems:
        fail(report.problems)
    print("ok")


@app.command()
def migrate(config: Config = None, data_dir: DataDir = None, settings: Set = None) -> None:
    """Migrate the database of a stopped service to this version and print its revision."""
    loaded = load_of_service(flags_of(data_dir=data_dir, settings=settings), config)
    from pyservice.cli import offline_commands

    sys.exit(offline_commands.migrate_database(loaded))


@app.command()
def takeover(config: Config = None, data_dir: DataDir = None, settings: Set = None) -> None:
    """Make the service of this data directory the owner of the database, if the earlier one is lost."""
    flags = flags_of(data_dir=data_dir, settings=settings)
    loaded = load_of_service(flags, config, needs_keys=True)
    from pyservice.cli import offline_commands

    sys.exit(offline_commands.take_over_database(loaded))


@upgrade_app.command("commit")
def commit_upgrade(config: Config = None, data_dir: DataDir = None, settings: Set = None) -> None:
    """Allow this release to write what the release before cannot read."""
    loaded = load_of_service(flags_of(data_dir=data_dir, settings=settings), config)
    from pyservice.cli import offline_commands

    sys.exit(offline_commands.commit_upgrade(loaded))


@app.command("rollback-check")
def rollback_check(config: Config = None, data_dir: DataDir = None, settings: Set = None) -> None:
    """Say what a rollback to the release before loses. Exit with 1 if it cannot read the data directory."""
    loaded = load_of_service(flags_of(data_dir=data_dir, settings=settings), config)
    from pyservice.cli import offline_commands

    sys.exit(offline_commands.check_rollback(loaded))


@app.command()
def certificates(
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Folder of the authority, with a folder for the service and for each node.",
        ),
    ],
    node: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Name of a node in the cluster. Repeat it for each one."),
    ],
    days: Annotated[
        int, typer.Option(min=1, max=36_500, help="Days for which the certificates are valid.")
    ] = 365,
) -> None:
    """Make certificates for the connections between the service and the nodes of a cluster.

    A repeat renews them. It uses the authority in the folder, so it can also add nodes.
    """
    from pyservice.node.certificates import CertificatesFailed, write_certificates

    try:
        folders = write_certificates(out, node, days)
    except CertificatesFailed as error:
        fail([f"certificates: {problem}" for problem in error.problems])
    for host, folder in folders.items():
        print(f"{host}: {folder}")


KeysAsJson = Annotated[bool, typer.Option("--json", help="Print the numbers of all keys as JSON.")]


@keys_app.command("rotate")
def rotate_keys(
    drop_unused: Annotated[
        bool,
        typer.Option(
            "--drop-unused",
            help="Drop older keys that no lobby, player, upload or link needs. This ends pub_ and dev_ tokens "
            "and picture addresses of these keys: replace the tokens first.",
        ),
    ] = False,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: KeysAsJson = False,
) -> None:
    """Add a signing key and print its number. Tokens that older keys signed stay valid."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.rotate_keys(folder, as_, drop_unused, json))


@keys_app.command("drop")
def drop_keys(
    keys: Annotated[
        list[int],
        typer.Argument(
            metavar="NUMBER...", min=1, max=65_535, help="Numbers, as `rotate --json` prints them."
        ),
    ],
    config: Config = None,
    data_dir: DataDir = None,
    json: KeysAsJson = False,
) -> None:
    """Drop exactly these keys of tokens, all or none, such as after a leak. Their tokens end at once.

    Replace the tokens first, see `rotate`. Tokens of all other keys stay valid.
    """
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.drop_keys(folder, keys, json))
