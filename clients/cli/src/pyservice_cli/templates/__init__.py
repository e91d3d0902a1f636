"""Templates of games for `pyservice init`. Each folder here is a template."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from pyservice_cli.failures import InputInvalid, Problem
from pyservice_cli.project import FILE, GAME_NAME_RULE, is_game_name, make_work_folder
from pyservice_cli.terminal import Terminal

_GAME: Final = "@GAME@"
_NAME_MAX: Final = 40


def create_game(terminal: Terminal, folder: Path, template: str, name: str | None) -> None:
    """Copies a template into a folder. Existing files are not changed. Raises InputInvalid."""
    known = sorted(
        entry.name for entry in resources.files(__name__).iterdir() if (entry / FILE).is_file()
    )
    if template not in known:
        raise InputInvalid(f"There is no template {template}.", f"Templates: {', '.join(known)}.")
    game = _game_name(folder.absolute().name) if name is None else name
    if not is_game_name(game):
        raise InputInvalid(
            f"The name {game!r} of a game {GAME_NAME_RULE}.",
            f"Run `pyservice init --name {_game_name(game)}`.",
        )
    files = dict(_files(resources.files(__name__) / template, Path()))
    taken = [path for path in files if (folder / path).exists()]
    if taken:
        raise InputInvalid(
            f"{folder.absolute()} already has files of the template. Nothing was changed.",
            "Use an empty folder.",
            [Problem(path.as_posix(), "exists") for path in taken],
        )
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.replace(_GAME.encode(), game.encode()))
    make_work_folder(folder)
    terminal.finish(
        {"game": game, "template": template, "files": [path.as_posix() for path in files]},
        f"Created the game {game}: {', '.join(sorted({path.parts[0] for path in files}))}.",
        "Next: pyservice deploy",
    )


def _game_name(text: str) -> str:
    """Returns the name of a game that is most similar to a text."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "-".join(words)[:_NAME_MAX].strip("-") or "game"


def _files(folder: Traversable, prefix: Path) -> list[tuple[Path, bytes]]:
    found = []
    for entry in folder.iterdir():
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            found += _files(entry, prefix / entry.name)
        else:
            found.append((prefix / entry.name, entry.read_bytes()))
    return found
