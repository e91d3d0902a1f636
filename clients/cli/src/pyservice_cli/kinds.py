"""Kinds of things that `pyservice list` and `pyservice show` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    path: str
    field: str
    columns: tuple[str, ...]
    one: str = ""
    """Path of a single thing. Empty if only the list has it."""

    @property
    def needs_game(self) -> bool:
        """Returns whether the path names a game or its namespace."""
        return "{" in self.path


KINDS: Final[Mapping[str, Kind]] = {
    "games": Kind(
        "/cloud/games", "games", ("name_id", "display_name", "game_id"), "/cloud/games/{id}"
    ),
    "groups": Kind("/cloud/games", "groups", ("display_name", "group_id"), "/cloud/groups/{id}"),
    "namespaces": Kind(
        "{game}/namespaces",
        "namespaces",
        ("name_id", "display_name", "version_id"),
        "{game}/namespaces/{id}",
    ),
    "versions": Kind(
        "{game}/versions",
        "versions",
        ("display_name", "create_ts", "version_id"),
        "{game}/versions/{id}",
    ),
    "builds": Kind(
        "{game}/builds", "builds", ("build_id", "create_ts", "content_length", "complete")
    ),
    "sites": Kind(
        "{game}/cdn/sites", "sites", ("site_id", "create_ts", "content_length", "complete")
    ),
    "lobbies": Kind(
        "{namespace}/logs/lobbies",
        "lobbies",
        ("lobby_id", "lobby_group_name_id", "state", "connected_count", "create_ts"),
        "{namespace}/logs/lobbies/{id}",
    ),
    "servers": Kind(
        "{environment}/servers",
        "servers",
        ("id", "status", "datacenter"),
        "{environment}/servers/{id}",
    ),
    "tokens": Kind("{namespace}/tokens", "tokens", ("token_id", "kind", "create_ts", "revoke_ts")),
    "tiers": Kind("/cloud/region-tiers", "tiers", ("tier_name_id", "cpu", "memory", "disk")),
}


def singular(kind: str) -> str:
    """Returns the name of one thing of a kind, such as lobby."""
    return f"{kind.removesuffix('ies')}y" if kind.endswith("ies") else kind.removesuffix("s")
