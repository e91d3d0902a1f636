"""Running lobbies in `status` and `play`, of namespaces with many records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from pyservice_cli.api import Answer, Api
from pyservice_cli.connections import Connection
from pyservice_cli.games import Game
from pyservice_cli.playing import _player_counts
from pyservice_cli.project import read_project
from pyservice_cli.terminal import Terminal
from pyservice_cli.watching import show_status

PAGE: Final = 64
"""Records on a page of the service."""


def record(lobby_id: str, state: str) -> Answer:
    return {
        "lobby_id": lobby_id,
        "lobby_group_name_id": "duel",
        "state": state,
        "is_closed": False,
        "connected_count": 2,
        "version_id": "v1",
        "usage": {"player_count": 2},
    }


class Service(Api):
    """Stands for a service, which returns lists in pages."""

    def __init__(self, lobbies: list[Answer]) -> None:
        super().__init__(Connection("http://127.0.0.1:1", None, "test"))
        self._lists: dict[str, list[Answer]] = {
            "lobbies": lobbies,
            "versions": [{"version_id": "v1", "display_name": "1.0"}],
        }

    def get(self, path: str, **query: object) -> Answer:
        name = path.rpartition("/")[2]
        if name == "prod":
            return {"namespace": {"version_id": "v1", "site_url": "http://game"}}
        entries, start = self._lists.get(name, []), int(str(query.get("cursor") or 0))
        page: dict[str, Any] = {name: entries[start : start + PAGE]}
        if start + PAGE < len(entries):
            page["cursor"] = str(start + PAGE)
        return page


@pytest.fixture
def game(tmp_path: Path) -> Game:
    """Returns a game in which the newest 64 records are those of ended lobbies."""
    (tmp_path / "hosting.toml").write_text('game = "arena"\n')
    ended = [record(f"ended-{number}", "stopped") for number in range(PAGE)]
    service = Service([*ended, record("played", "running")])
    return Game(read_project(tmp_path), service, "prod")


def test_status_has_a_running_lobby_behind_many_ended_ones(
    game: Game, capsys: pytest.CaptureFixture[str]
) -> None:
    show_status(Terminal(is_json=False), game, is_watching=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines if line.startswith(("ended", "played"))] == [
        ["played", "duel", "running", "2"]
    ]


def test_play_counts_the_players_of_all_running_lobbies(game: Game) -> None:
    assert _player_counts(game) == {"played": 2}
