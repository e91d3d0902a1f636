"""`pyservice list` and `pyservice show`: the things of a game, of its namespace and of the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyservice_cli.failures import InputInvalid
from pyservice_cli.games import Game
from pyservice_cli.hidden_values import hide_secrets
from pyservice_cli.terminal import Terminal, table


@dataclass(frozen=True, slots=True)
class _Kind:
    path: str
    field: str
    columns: tuple[str, ...]
    one: str = ""
    """Path of a single thing. Empty if only the list has it."""


_KINDS: Final[Mapping[str, _Kind]] = {
    "games": _Kind(
        "/cloud/games", "games", ("name_id", "display_name", "game_id"), "/cloud/games/{id}"
    ),
    "groups": _Kind("/cloud/games", "groups", ("display_name", "group_id"), "/cloud/groups/{id}"),
    "namespaces": _Kind(
        "{game}/namespaces",
        "namespaces",
        ("name_id", "display_name", "version_id"),
        "{game}/namespaces/{id}",
    ),
    "versions": _Kind(
        "{game}/versions",
        "versions",
        ("display_name", "create_ts", "version_id"),
        "{game}/versions/{id}",
    ),
    "builds": _Kind(
        "{game}/builds", "builds", ("build_id", "create_ts", "content_length", "complete")
    ),
    "sites": _Kind(
        "{game}/cdn/sites", "sites", ("site_id", "create_ts", "content_length", "complete")
    ),
    "lobbies": _Kind(
        "{namespace}/logs/lobbies",
        "lobbies",
        ("lobby_id", "lobby_group_name_id", "state", "connected_count", "create_ts"),
        "{namespace}/logs/lobbies/{id}",
    ),
    "servers": _Kind(
        "{environment}/servers",
        "servers",
        ("id", "status", "datacenter"),
        "{environment}/servers/{id}",
    ),
    "tokens": _Kind("{namespace}/tokens", "tokens", ("token_id", "kind", "create_ts", "revoke_ts")),
    "tiers": _Kind("/cloud/region-tiers", "tiers", ("tier_name_id", "cpu", "memory", "disk")),
}
KINDS: Final = tuple(_KINDS)


def show_list(terminal: Terminal, game: Game, kind: str) -> None:
    """Prints all things of a kind."""
    chosen = _kind(kind)
    pages = game.api.pages(_path(game, chosen.path), chosen.field)
    rows = [hide_secrets(row, game.project.secrets) for row in pages]
    terminal.finish({chosen.field: rows}, *table(rows, chosen.columns))


def show_one(terminal: Terminal, game: Game, kind: str, subject: str) -> None:
    """Prints a thing with all fields, as JSON. Secrets are hidden."""
    plurals = (kind, f"{kind}s", f"{kind[:-1]}ies")
    chosen = _kind(next((name for name in plurals if name in _KINDS), kind))
    if chosen.one:
        found = game.api.get(_path(game, chosen.one, subject))
        terminal.print_json(hide_secrets(found, game.project.secrets))
        return
    for row in game.api.pages(_path(game, chosen.path), chosen.field):
        if subject in (row[chosen.columns[0]], row.get("display_name")):
            terminal.print_json(hide_secrets(row, game.project.secrets))
            return
    raise InputInvalid(
        f"There is no {subject} among the {chosen.field}.",
        f"`pyservice list {chosen.field}` prints them.",
    )


def _kind(name: str) -> _Kind:
    if name not in _KINDS:
        raise InputInvalid(f"There is no kind {name}.", f"Kinds: {', '.join(KINDS)}.")
    return _KINDS[name]


def _path(game: Game, template: str, subject: str = "") -> str:
    places: Mapping[str, Any] = {
        "game": game.path,
        "namespace": game.namespace_path,
        "environment": game.environment_path,
        "id": subject,
    }
    return template.format(**places)
