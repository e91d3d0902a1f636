"""Flags of the commands `group`, `identity`, `billing` and `namespace`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pyservice.cli.options import As, Config, DataDir, Json, data_dir_of, fail

group_app = typer.Typer(help="Groups of developers of a running service.", no_args_is_help=True)
identity_app = typer.Typer(
    help="People and machines that can be members of groups.", no_args_is_help=True
)
billing_app = typer.Typer(help="Billing of groups of a running service.", no_args_is_help=True)
namespace_app = typer.Typer(help="Namespaces of a running service.", no_args_is_help=True)

Group = Annotated[str, typer.Option(help="Id of the group.")]
Identity = Annotated[str, typer.Option(help="Id of the identity.")]
IdentityArgument = Annotated[str, typer.Argument(metavar="IDENTITY", help="Id of the identity.")]
DisplayName = Annotated[str, typer.Option(help="Readable name, 1 to 128 characters.")]
Time = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Time of the event, such as 2030-01-31T12:00:00Z."),
]


@group_app.command("create")
def create_group(
    display_name: DisplayName,
    owner: Annotated[
        str | None, typer.Option(help="Id of the owner. Default: the owner of the service.")
    ] = None,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Create a group and print its id."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.create_group(folder, as_, display_name, owner, json))


@group_app.command("list")
def list_groups(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Print id and name of every group, oldest first. --json adds the members."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.list_groups(folder, json))


@group_app.command("update")
def update_group(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")],
    display_name: Annotated[
        str | None, typer.Option(help="Readable name, 1 to 128 characters.")
    ] = None,
    bio: Annotated[
        str | None,
        typer.Option(help="Description of the group, at most five lines. Empty removes it."),
    ] = None,
    publicity: Annotated[
        str | None, typer.Option(metavar="open|closed", help="Whether new members can join.")
    ] = None,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Change a group's profile. Options that are not given keep their values."""
    if display_name is None and bio is None and publicity is None:
        fail(["give at least one of --display-name, --bio, --publicity"])
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.update_group(folder, as_, group, display_name, bio, publicity, json))


@group_app.command("add-member")
def add_member(
    group: Group,
    identity: Identity,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Add an identity to a group. Repeating it changes nothing."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.add_member(folder, as_, group, identity, json))


@group_app.command("remove-member")
def remove_member(
    group: Group,
    identity: Identity,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove an identity from a group and revoke its tokens for the group. Repeating it changes nothing."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.remove_member(folder, as_, group, identity, json))


@identity_app.command("create")
def create_identity(
    display_name: DisplayName,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Create an identity and print its id."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.create_identity(folder, as_, display_name, json))


@identity_app.command("list")
def list_identities(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Print id and name of every identity, oldest first. --json adds groups and state."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.list_identities(folder, json))


@identity_app.command("disable")
def disable_identity(
    identity: IdentityArgument,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Refuse every cloud_ token of an identity at once, until it is enabled. Repeating it changes nothing."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.disable_identity(folder, as_, identity, json))


@identity_app.command("enable")
def enable_identity(
    identity: IdentityArgument,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Accept the tokens of an identity again, except the expired and revoked ones."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.enable_identity(folder, as_, identity, json))


@billing_app.command("record")
def record_billing(
    group: Group,
    payment_failed: Time = None,
    payment_method_attached: Time = None,
    payment_method_valid: Time = None,
    payment_succeeded: Time = None,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Record the time of one billing event of a group. Give exactly one of the four events."""
    options = {
        "payment-failed": payment_failed,
        "payment-method-attached": payment_method_attached,
        "payment-method-valid": payment_method_valid,
        "payment-succeeded": payment_succeeded,
    }
    events = [(event, time) for event, time in options.items() if time is not None]
    if len(events) != 1:
        fail([f"give exactly one of {', '.join(f'--{event}' for event in options)}"])
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    [(event, time)] = events
    sys.exit(admin_requests.record_billing(folder, as_, group, event, time, json))


@namespace_app.command("orphans")
def list_orphans(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Print id and game/namespace of namespaces that the data plane has and the database lost."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.list_orphans(folder, json))


@namespace_app.command("remove-orphans")
def remove_orphans(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Ids, as `orphans` prints them.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Remove all orphans.")] = False,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove orphaned namespaces from the data plane and print them. Their tokens end, their names become free."""
    if bool(ids) == is_all:
        fail(["give ids of orphans, or --all"])
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.remove_orphans(folder, as_, ids or [], is_all, json))
