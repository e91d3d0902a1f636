"""Files that no archive has: the rules of `.gitignore`, and of `build.exclude`.

As in git, the rules of a deeper folder decide before those of an outer one. In one file, the last line
that matches decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pathspec

_FILE: Final = ".gitignore"
_ALWAYS: Final = (".git/", ".hosting/", "__pycache__/", ".venv/", ".DS_Store")
_ANY_FILE: Final = "any"
"""Name of a file that only a rule for all files of a folder excludes."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of a folder. Names of files are relative to the folder of the archive."""

    lines: pathspec.GitIgnoreSpec
    added: str = ""
    """Path from an outer folder to that of the archive, with a slash at its end."""
    removed: int = 0
    """Length of the path from the folder of the archive to an inner one, with a slash at its end."""

    def decision(self, name: str) -> bool | None:
        """Returns whether the rules exclude a file, or None if no rule matches."""
        return self.lines.check_file(self.added + name[self.removed :]).include


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules for the files of one folder."""

    _exclude: _Rules
    _levels: tuple[_Rules, ...]
    """In the order in which they decide, after `_exclude`."""
    _has_files: bool = True
    """Whether `.gitignore` files act."""

    @classmethod
    def without_files(cls) -> IgnoreRules:
        """Returns the rules for files of a tool, such as pip. A `.gitignore` there is of no concern."""
        return cls(_Rules(_specification(())), (_Rules(_specification(_ALWAYS)),), False)

    @classmethod
    def of(cls, folder: Path, exclude: Sequence[str], game_folder: Path | None) -> IgnoreRules:
        """Returns the rules that act in all of a folder. `within` adds those of `.gitignore` files.

        The rules of the game's folder and of the folders between act, too. Rules that exclude every
        file of the folder do not: git often ignores what a command makes.
        """
        levels = [_Rules(_specification(_ALWAYS))]
        for outer, added in _outer_folders(folder, game_folder):
            lines = _lines(outer)
            if lines is None:
                continue
            levels.insert(0, _Rules(lines, added=added))
            if _excludes(levels, _ANY_FILE):
                levels = levels[-1:]
        return cls(_Rules(_specification(exclude)), tuple(levels))

    def within(self, folder: Path, name: str) -> IgnoreRules:
        """Returns the rules for the files of a folder, with those of its own `.gitignore`."""
        lines = _lines(folder) if self._has_files else None
        if lines is None:
            return self
        inner = _Rules(lines, removed=len(name) + 1 if name else 0)
        return IgnoreRules(self._exclude, (inner, *self._levels))

    def excludes(self, name: str) -> bool:
        """Returns whether a file is excluded. The name of a folder ends with a slash."""
        return _excludes((self._exclude, *self._levels), name)


def _excludes(levels: Iterable[_Rules], name: str) -> bool:
    decisions = (level.decision(name) for level in levels)
    return next((one for one in decisions if one is not None), False)


def _lines(folder: Path) -> pathspec.GitIgnoreSpec | None:
    file = folder / _FILE
    if not file.is_file():
        return None
    return _specification(file.read_text("utf-8", "surrogateescape").splitlines())


def _specification(lines: Iterable[str]) -> pathspec.GitIgnoreSpec:
    return pathspec.GitIgnoreSpec.from_lines(lines)


def _outer_folders(folder: Path, top: Path | None) -> list[tuple[Path, str]]:
    """Returns the folders from `top` to the parent of `folder`, each with the path from it to `folder`.

    Returns none for a folder that is not in `top`.
    """
    if top is None:
        return []
    parts = Path(os.path.relpath(folder.resolve(), top.resolve())).parts
    if not parts or parts[0] == os.pardir:
        return []
    return [
        (top.joinpath(*parts[:count]), "/".join([*parts[count:], ""]))
        for count in range(len(parts))
    ]
