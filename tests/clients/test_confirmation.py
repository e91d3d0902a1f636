"""`pyservice destroy` asks before it deletes a game."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pyservice_cli.failures import CommandFailed
from pyservice_cli.games import Game, destroy
from pyservice_cli.project import read_project
from pyservice_cli.terminal import Terminal


class Keyboard(io.StringIO):
    """Standard input of a person at a terminal."""

    def isatty(self) -> bool:
        return True


class Service:
    """Stands for the service, and keeps the paths of what it deletes."""

    url = "http://service"

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete(self, path: str, **_query: object) -> None:
        self.deleted.append(path)


def asked_game(folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str) -> tuple[Game, Service]:
    """Returns a game, and its service. A person types the answer to the question."""
    (folder / "hosting.toml").write_text('game = "arena"\n')
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    service = Service()
    stand_in: Any = service
    return Game(read_project(folder), stand_in, "prod"), service


@pytest.mark.parametrize("is_json", [False, True])
def test_question_is_not_part_of_the_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_json: bool,
) -> None:
    """Standard output is a file here, as in `destroy --json >result`."""
    game, service = asked_game(tmp_path, monkeypatch, "arena\n")
    destroy(Terminal(is_json), game, is_confirmed=False)
    assert service.deleted == ["/cloud/games/arena"]
    output, errors = capsys.readouterr()
    assert "This deletes the game arena at http://service" in errors
    assert "Type arena to go on: " in errors
    if is_json:
        assert json.loads(output) == {"game": "arena", "deleted": True}
    else:
        assert output == "The game arena is deleted.\n"


@pytest.mark.parametrize("typed", ["aren\n", "\n", ""], ids=["another name", "nothing", "Ctrl-D"])
def test_game_is_kept_without_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    game, service = asked_game(tmp_path, monkeypatch, typed)
    with pytest.raises(CommandFailed, match="Nothing was deleted"):
        destroy(Terminal(is_json=False), game, is_confirmed=False)
    assert service.deleted == []
