"""What is run of an image or a bundle, once it is unpacked: found when it is, kept beside its root (decisions 6.5)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pyservice.runtime.archive_rules import BadArchive
from pyservice.runtime.layers import RootFolder
from pyservice.runtime.manifests import IDS_MAX, BadManifest, Program

PROGRAM_JSON: Final = "program.json"
OWNER: Final = 2_100_000
"""User and group of this machine that the root of containers is; IDS_MAX from it on are theirs, and nobody else's."""

_FILE_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Contained:
    """Users, groups and paths are as they are seen from inside."""

    command: Sequence[str]
    args: Sequence[str]
    env: Mapping[str, str]
    workdir: str
    uid: int
    gid: int
    groups: Sequence[int]
    home: str
    is_readonly: bool

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def owner() -> int | None:
    """Who is root in containers; None: we are, as we may not be anybody else."""
    return OWNER if os.geteuid() == 0 else None


def contained(program: Program, root: RootFolder) -> Contained:
    """Finds its user in the root, and makes its working folder there. Raises BadManifest, BadArchive, OSError."""
    user, _, group = program.user.partition(":")
    known = list(_records(root, "/etc/passwd", 7))
    found = _found(known, user or "0")
    if found is None and not user.isdigit() and user:
        raise BadManifest(f"has no user {user!r} in its /etc/passwd")
    uid = _number(found[2] if found else user or "0")
    gid = _number(found[3]) if found else 0
    groups: list[int] = []
    if group:
        of_group = _found(list(_records(root, "/etc/group", 4)), group)
        if of_group is None and not group.isdigit():
            raise BadManifest(f"has no group {group!r} in its /etc/group")
        gid = _number(of_group[2] if of_group else group)
    elif found:
        members = _records(root, "/etc/group", 4)
        groups = [_number(one[2]) for one in members if found[0] in one[3].split(",")]
    root.make(program.workdir)
    return Contained(
        tuple(program.command),
        tuple(program.args),
        dict(program.env),
        program.workdir,
        uid,
        gid,
        groups,
        (found[5] if found else "") or "/",
        program.is_readonly,
    )


def _found(records: Sequence[Sequence[str]], name: str) -> Sequence[str] | None:
    """By name, else by number."""
    by_name = (one for one in records if one[0] == name)
    by_number = (one for one in records if one[2] == name)
    return next(by_name, next(by_number, None))


def _records(root: RootFolder, path: str, fields: int) -> Iterator[Sequence[str]]:
    try:
        with root.open(path) as file:
            text = file.read(_FILE_MAX_BYTES).decode(errors="replace")
    except (OSError, BadArchive):
        return
    for line in text.splitlines():
        words = line.split(":")
        if len(words) >= fields:
            yield words


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) >= IDS_MAX:
        raise BadManifest(f"has a user or group {text!r}: their numbers must be below {IDS_MAX}")
    return int(text)


def program_in(root: Path, command: str, workdir: str, path: str) -> str | None:
    """Where a program is in a root, seen from inside, as a shell finds it; None: nowhere."""
    inside = RootFolder(root, None, lambda _: None)
    if "/" in command:
        places = [command if command.startswith("/") else f"{workdir}/{command}"]
    else:
        places = [f"{folder}/{command}" for folder in path.split(":") if folder.startswith("/")]
    for place in places:
        try:
            found = inside.find(place)
        except BadArchive:
            continue
        if os.path.isfile(found) and os.stat(found, follow_symlinks=False).st_mode & 0o111:
            return place
    return None
