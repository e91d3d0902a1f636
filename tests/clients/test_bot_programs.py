"""The program of `play.bot`, from another folder than the game's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice_cli.failures import InputInvalid
from pyservice_cli.playing import _found_command
from pyservice_cli.project import read_project


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of a game, relative to the current folder."""
    program = tmp_path / "my-game/build/bin/bot"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return Path("my-game")


@pytest.mark.parametrize("name", ["build/bin/bot", "./build/bin/bot"])
def test_path_of_the_bot_is_relative_to_the_game(game: Path, name: str) -> None:
    (game / "hosting.toml").write_text(f'game = "a"\nplay.bot = ["{name}", "--fast"]\n')
    program, *arguments = _found_command(read_project(game))
    # Bots start in the game's folder, where a relative path would be another one.
    assert Path(program).is_absolute()
    assert Path(program).samefile(game / "build/bin/bot")
    assert arguments == ["--fast"]


def test_bot_that_cannot_run_is_named_with_its_folder(game: Path) -> None:
    (game / "build/bin/bot").chmod(0o644)
    (game / "hosting.toml").write_text('game = "a"\nplay.bot = ["build/bin/bot"]\n')
    with pytest.raises(InputInvalid, match=r"build/bin/bot .* is not in .*/my-game or not exec"):
        _found_command(read_project(game))


def test_bot_without_a_path_is_a_file_of_the_game_or_an_installed_program(game: Path) -> None:
    (game / "walk").write_text("#!/bin/sh\n")
    (game / "walk").chmod(0o755)
    for name in ("walk", "sh"):
        (game / "hosting.toml").write_text(f'game = "a"\nplay.bot = ["{name}"]\n')
        (program,) = _found_command(read_project(game))
        assert Path(program).is_absolute()
    (game / "hosting.toml").write_text('game = "a"\nplay.bot = ["no-such-program"]\n')
    with pytest.raises(InputInvalid, match="is not installed"):
        _found_command(read_project(game))
