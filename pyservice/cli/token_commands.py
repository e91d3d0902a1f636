"""Flags of the command `token`."""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer

from pyservice.cli.options import As, Config, DataDir, Json, data_dir_of, fail

token_app = typer.Typer(help="Tokens of a running service.", no_args_is_help=True)


class NamespaceTokenKind(enum.StrEnum):
    PUBLIC = "public"
    SERVICE = "environment"


class ListedKind(enum.StrEnum):
    """Kind of listed tokens."""

    CLOUD = "cloud"
    PUBLIC = "public"
    SERVICE = "environment"
    DEVELOPMENT = "development"


@token_app.command("create")
def create_token(
    kind: Annotated[
        NamespaceTokenKind | None,
        typer.Option(
            help="Kind of a namespace's token: public for game clients, environment for a service "
            "token of game back ends."
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the token: game/namespace or an id.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Create a cloud_ token of this group, by id.")
    ] = None,
    game: Annotated[
        str | None, typer.Option(help="Create a cloud_ token of this game, by id or name.")
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option(
            help="Identity of the cloud_ token. Default: the owner of the service. Without --group and "
            "--game, the token covers all groups of the identity."
        ),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Lifetime of the token, such as 30d or 12h. Default: no expiry. Not with --kind public.",
        ),
    ] = None,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print token, token_id and expires_ts as JSON.")
    ] = False,
) -> None:
    """Create a token and print it once. Give --group, --game, --identity, or --kind with --namespace."""
    is_of_namespace = kind is not None or namespace is not None
    if is_of_namespace and (kind is None or namespace is None or group or game or identity):
        fail(["give --kind and --namespace together, without --group, --game and --identity"])
    if group and game:
        fail(["give --group or --game, not both"])
    if not (is_of_namespace or group or game or identity):
        fail(["give --group, --game, --identity, or --kind with --namespace"])
    if kind is NamespaceTokenKind.PUBLIC and expires_in is not None:
        fail(["--expires-in: a public token has no expiry; it is valid until it is revoked"])
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    if kind is not None and namespace is not None:
        sys.exit(
            admin_requests.create_namespace_token(
                folder, as_, kind.value, namespace, expires_in, json
            )
        )
    sys.exit(
        admin_requests.create_cloud_token(folder, as_, group, game, identity, expires_in, json)
    )


@token_app.command("list")
def list_tokens(
    identity: Annotated[
        str | None,
        typer.Option(help="Only tokens that act for this identity, or that its tokens created."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Only tokens that can act on this group, and those of its namespaces."),
    ] = None,
    kind: Annotated[ListedKind | None, typer.Option(help="Only tokens of this kind.")] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Also revoked and expired tokens.")
    ] = False,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Print id, kind, state, owner and scope of every token, newest first. Secrets are not stored."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    kind_name = None if kind is None else kind.value
    sys.exit(admin_requests.list_tokens(folder, identity, group, kind_name, ended, json))


@token_app.command("revoke")
def revoke_tokens(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids, as `list` prints them.")],
    cascade: Annotated[
        bool,
        typer.Option(
            "--cascade",
            help="Also revoke the tokens of namespaces that a cloud_ token created.",
        ),
    ] = False,
    as_: As = "",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Revoke tokens of any kind, all or none, within a second. The cloud_ tokens that they created end, too."""
    folder = data_dir_of(data_dir, config)
    from pyservice.cli import admin_requests

    sys.exit(admin_requests.revoke_tokens(folder, as_, ids, cascade, json))
