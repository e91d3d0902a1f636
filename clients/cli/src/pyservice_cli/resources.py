"""`pyservice list` and `pyservice show`: the things of a game, of its namespace and of the service."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pyservice_cli.api import Api
from pyservice_cli.chosen_game import ChosenGame
from pyservice_cli.failures import InputInvalid, Refused
from pyservice_cli.games import Game
from pyservice_cli.hidden_values import hide_secrets
from pyservice_cli.kinds import KINDS, Kind, singular
from pyservice_cli.terminal import table


def show_list(chosen: ChosenGame, name: str) -> None:
    """Prints all things of a kind."""
    kind = _kind(name)
    place = _Place.of(chosen, kind)
    rows = [hide_secrets(row, place.secrets) for row in place.rows(kind)]
    chosen.terminal.finish({kind.field: rows}, *table(rows, kind.columns))


def show_one(chosen: ChosenGame, name: str, subject: str) -> None:
    """Prints a thing with all fields, as JSON. Secrets are hidden."""
    plurals = (name, f"{name}s", f"{name[:-1]}ies")
    kind = _kind(next((one for one in plurals if one in KINDS), name))
    place = _Place.of(chosen, kind)
    if kind.one:
        found = _found(place, kind, subject)
        chosen.terminal.print_json(hide_secrets(found, place.secrets))
        return
    for row in place.rows(kind):
        if subject in (row[kind.columns[0]], row.get("display_name")):
            chosen.terminal.print_json(hide_secrets(row, place.secrets))
            return
    raise InputInvalid(
        f"There is no {subject} among the {kind.field}.",
        f"`pyservice list {kind.field}` prints them.",
    )


def _found(place: _Place, kind: Kind, subject: str) -> Mapping[str, Any]:
    """Returns the thing with this id, or else the first one with this display name."""
    try:
        return place.api.get(place.path(kind.one, subject))
    except Refused as refused:
        is_missing = refused.http_status == HTTPStatus.NOT_FOUND or refused.code == "ID_INVALID"
        if not is_missing or "display_name" not in kind.columns:
            raise
        for row in place.rows(kind):
            if row["display_name"] == subject:
                return place.api.get(place.path(kind.one, row[f"{singular(kind.field)}_id"]))
        raise


@dataclass(frozen=True, slots=True)
class _Place:
    """The service, and the game of the folder if the kind needs one."""

    api: Api
    game: Game | None

    @classmethod
    def of(cls, chosen: ChosenGame, kind: Kind) -> _Place:
        game = chosen.open() if kind.needs_game else None
        return cls(chosen.connect() if game is None else game.api, game)

    @property
    def secrets(self) -> Collection[str]:
        return () if self.game is None else self.game.project.secrets

    def rows(self, kind: Kind) -> Iterator[Mapping[str, Any]]:
        return self.api.pages(self.path(kind.path), kind.field)

    def path(self, template: str, subject: str = "") -> str:
        places = {"id": subject}
        if self.game is not None:
            places["game"] = self.game.path
            places["namespace"] = self.game.namespace_path
            places["environment"] = self.game.environment_path
        return template.format(**places)


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise InputInvalid(f"There is no kind {name}.", f"Kinds: {', '.join(KINDS)}.")
    return KINDS[name]
