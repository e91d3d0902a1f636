"""Files of a game that `.gitignore` and `build.exclude` keep out of an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice_cli.packing import files_of
from pyservice_cli.python_packages import packed_packages


def write(folder: Path, *names: str, ignored: str = "") -> None:
    """Writes empty files, and a `.gitignore`."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    if ignored:
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text(f"{ignored}\n")


def names(folder: Path, game: Path, *exclude: str) -> set[str]:
    """Returns the names in an archive, without those of the `.gitignore` files."""
    entries = files_of(folder, exclude, game)
    return {one.name for one in entries if not one.name.endswith(".gitignore")}


def test_rules_of_the_games_folder_act_in_the_folder_of_the_build(tmp_path: Path) -> None:
    write(tmp_path, "hosting.toml", ignored=".env\n/server/keys/")
    server = tmp_path / "server"
    write(server, ".env", "server.py", "keys/a.pem", "maps/.env", "maps/keys/sea")
    assert names(server, tmp_path) == {"server.py", "maps/keys/sea"}


def test_rules_of_an_inner_folder_act_in_it(tmp_path: Path) -> None:
    write(tmp_path, "server.py", "old.log", "maps/old.log", "maps/sea.map", "maps/sea/a.log")
    write(tmp_path / "maps", ignored="*.log")
    assert names(tmp_path, tmp_path) == {"server.py", "old.log", "maps/sea.map"}


def test_deeper_rules_decide_before_outer_ones_and_exclude_before_all(tmp_path: Path) -> None:
    server = tmp_path / "server"
    write(server, "a.log", "b.map", "inner/c.log", "inner/d.map")
    write(tmp_path, ignored="*.log\n*.map")
    write(server, ignored="!*.log")
    write(server / "inner", ignored="*.log")
    assert names(server, tmp_path) == {"a.log"}
    assert names(server, tmp_path, "!b.map", "a.log") == {"b.map"}


@pytest.mark.parametrize("rule", ["dist/", "/dist", "dist/*", "*"])
def test_output_of_a_command_is_sent_though_git_ignores_it(tmp_path: Path, rule: str) -> None:
    write(tmp_path, ignored=f"{rule}\n*.txt")
    write(tmp_path / "dist", "server.js", "notes.txt")
    assert names(tmp_path / "dist", tmp_path) == {"server.js", "notes.txt"}


def test_folder_outside_of_the_game_has_only_its_own_rules(tmp_path: Path) -> None:
    game = tmp_path / "game"
    write(game, "hosting.toml", ignored="*.py")
    write(tmp_path / "server", "server.py", "a.log", ignored="*.log")
    assert names(game / "../server", game) == {"server.py"}


def test_packages_of_pip_keep_what_their_authors_ignore(tmp_path: Path) -> None:
    write(tmp_path, "lib/data", "lib/__pycache__/a.pyc")
    write(tmp_path / "lib", ignored="data")
    found = {one.name for one in packed_packages(tmp_path)}
    assert found == {"python_packages/lib/.gitignore", "python_packages/lib/data"}
