"""Flags of the commands `group`, `identity`, `billing` and `namespace`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pyservice.cli.options import Config, DataDir, Json, fail, flags_of, load_or_exit

group_app = typer.Typer(help="Groups of developers of a running service.", no_args_is_help=True)
identity_app = typer.Typer(
    help="People and machines that can be members of groups.", no_args_is_help=True
)
billing_app = typer.Typer(help="Billing of groups of a running service.", no_args_is_help=True)
namespace_app = typer.Typer(help="Namespaces of a running service.", no_args_is_help=True)

Group = Annotated[str, typer.Option(help="The group, by its id.")]
Identity = Annotated[str, typer.Option(help="The identity, by its id.")]
DisplayName = Annotated[str, typer.Option(help="Readable name, 1 to 128 characters.")]
Time = Annotated[
    str | None, typer.Option(metavar="TIME", help="When, such as 2030-01-31T12:00:00Z.")
]


@group_app.command("create")
def create_group(
    display_name: DisplayName,
    owner: Annotated[
        str | None, typer.Option(help="Who owns it, by id; the service's owner when left out.")
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Make a group; print its id."""
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.create_group(loaded.data_dir, display_name, owner, json))


@group_app.command("list")
def list_groups(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Print id and name of every group, oldest first; with --json its members too."""
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.list_groups(loaded.data_dir, json))


@group_app.command("update")
def update_group(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group, by its id.")],
    display_name: Annotated[
        str | None, typer.Option(help="Readable name, 1 to 128 characters.")
    ] = None,
    bio: Annotated[
        str | None,
        typer.Option(help="What it says of itself, at most five lines; empty for nothing."),
    ] = None,
    publicity: Annotated[
        str | None, typer.Option(metavar="open|closed", help="Whether it takes new members.")
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Change what a group says of itself; what is left out stays."""
    if display_name is None and bio is None and publicity is None:
        fail(["give at least one of --display-name, --bio, --publicity"])
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(
        admin_requests.update_group(loaded.data_dir, group, display_name, bio, publicity, json)
    )


@group_app.command("add-member")
def add_member(
    group: Group,
    identity: Identity,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Make an identity a member of a group; repeats change nothing."""
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.add_member(loaded.data_dir, group, identity, json))


@group_app.command("remove-member")
def remove_member(
    group: Group,
    identity: Identity,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """End a membership, and the tokens that the identity has for the group; repeats change nothing."""
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.remove_member(loaded.data_dir, group, identity, json))


@identity_app.command("create")
def create_identity(
    display_name: DisplayName,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Make an identity; print its id."""
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.create_identity(loaded.data_dir, display_name, json))


@identity_app.command("list")
def list_identities(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Print id and name of every identity, oldest first; with --json its groups too."""
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.list_identities(loaded.data_dir, json))


@billing_app.command("record")
def record_billing(
    group: Group,
    payment_failed: Time = None,
    payment_method_attached: Time = None,
    payment_method_valid: Time = None,
    payment_succeeded: Time = None,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write down when something happened to a group's billing: exactly one of the four."""
    given = {
        "payment-failed": payment_failed,
        "payment-method-attached": payment_method_attached,
        "payment-method-valid": payment_method_valid,
        "payment-succeeded": payment_succeeded,
    }
    told = [(event, time) for event, time in given.items() if time is not None]
    if len(told) != 1:
        fail([f"give exactly one of {', '.join(f'--{event}' for event in given)}"])
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    [(event, time)] = told
    sys.exit(admin_requests.record_billing(loaded.data_dir, group, event, time, json))


@namespace_app.command("orphans")
def list_orphans(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Print id and game/namespace of what the data plane holds and no record has: left of a lost database."""
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.list_orphans(loaded.data_dir, json))


@namespace_app.command("remove-orphans")
def remove_orphans(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Ids, as `orphans` prints them.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove such namespaces from the data plane: their tokens end, their names and domains are free. Print them."""
    if bool(ids) == is_all:
        fail(["give ids of orphans, or --all"])
    loaded = load_or_exit(flags_of(data_dir=data_dir), config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.remove_orphans(loaded.data_dir, ids or [], is_all, json))
