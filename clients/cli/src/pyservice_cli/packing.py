"""Archives of game servers. The same files give the same bytes on every system.

A file is executable if it begins with `#!` or with the mark of an ELF program, or if its mode says so.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyservice_cli.failures import InputInvalid, Problem
from pyservice_cli.ignore_rules import IgnoreRules

DESCRIPTION: Final = "server.json"
_EXECUTABLE_MARKS: Final = (b"#!", b"\x7fELF")
_BLOCK_BYTES: Final = 1 << 18
_HAS_MODES = os.name == "posix"
"""Whether files of this system say that they are executable."""

Progress = Callable[[int], None]
"""Takes the number of further bytes that were read."""


def _ignore(_count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of an archive. `target` is the target of a symbolic link, or None for a file."""

    name: str
    path: Path
    target: str | None = None


def files_of(
    folder: Path, exclude: Sequence[str] = (), game_folder: Path | None = None
) -> list[Entry]:
    """Returns the files of a folder in their order by name. Raises InputInvalid with all problems.

    Follows each `.gitignore` in the folder, those of the game's folder, and `exclude`, which has lines
    of the same form.
    """
    if not folder.is_dir():
        raise InputInvalid(f"The folder {folder} does not exist.")
    entries, problems = scan(folder, IgnoreRules.of(folder, exclude, game_folder))
    if problems:
        raise InputInvalid(
            f"{folder} has files that an archive cannot have.",
            "Remove them, or list them in `exclude`.",
            problems,
        )
    return entries


def scan(folder: Path, rules: IgnoreRules) -> tuple[list[Entry], list[Problem]]:
    """Returns the files of a folder in their order by name, and those that no archive can have."""
    problems: list[Problem] = []
    entries = sorted(_walk(folder, folder, "", rules, problems), key=lambda entry: entry.name)
    return entries, sorted(problems, key=lambda one: one.place)


def _walk(
    root: Path, folder: Path, place: str, rules: IgnoreRules, problems: list[Problem]
) -> Iterator[Entry]:
    """Yields the files of a folder. `place` is its path from the root, or empty."""
    rules = rules.within(folder, place)
    for item in os.scandir(folder):
        path = Path(item.path)
        name = f"{place}/{item.name}" if place else item.name
        is_folder = item.is_dir(follow_symlinks=False)
        if rules.excludes(f"{name}/" if is_folder else name):
            continue
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = name.encode("utf-8", "backslashreplace").decode()
            problems.append(Problem(shown, "the name is not in UTF-8"))
            continue
        if item.is_symlink():
            yield from _link(root, path, name, problems)
        elif is_folder:
            yield from _walk(root, path, name, rules, problems)
        elif item.is_file(follow_symlinks=False):
            yield Entry(name, path)
        else:
            problems.append(Problem(name, "is neither a file nor a folder"))


def _link(root: Path, path: Path, name: str, problems: list[Problem]) -> Iterator[Entry]:
    target = os.readlink(path)
    inside = os.path.normpath(path.parent / target)
    if os.path.isabs(target) or not Path(inside).is_relative_to(os.path.normpath(root)):
        problems.append(Problem(name, f"is a link out of the folder, to {target}"))
    else:
        yield Entry(name, path, Path(target).as_posix())


def pack(
    entries: list[Entry],
    description: Mapping[str, Any],
    target: BinaryIO,
    progress: Progress = _ignore,
) -> None:
    """Writes a tar with the entries, and with `server.json` unless the entries have one."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        if description:
            text = json.dumps(description, sort_keys=True).encode()
            archive.addfile(_information(DESCRIPTION, len(text), 0o644), io.BytesIO(text))
        for entry in entries:
            if entry.target is not None:
                link = _information(entry.name, 0, 0o777)
                link.type, link.linkname = tarfile.SYMTYPE, entry.target
                archive.addfile(link)
                continue
            with entry.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                information = _information(entry.name, size, _mode(file))
                archive.addfile(information, _CountedFile(file, progress))


class _CountedFile(io.RawIOBase):
    """A file that reports the number of bytes of each read."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        self._file = file
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._progress(len(block))
        return block


def _information(name: str, size: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry


def _mode(file: BinaryIO) -> int:
    start = file.read(4)
    file.seek(0)
    is_executable = start.startswith(_EXECUTABLE_MARKS)
    if _HAS_MODES:
        is_executable |= bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
    return 0o755 if is_executable else 0o644


def digest_of(file: BinaryIO, progress: Progress = _ignore) -> str:
    """Returns the SHA-256 of a file from its current position on."""
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        progress(len(block))
    return digest.hexdigest()
