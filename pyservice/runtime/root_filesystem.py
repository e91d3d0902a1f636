"""Root file systems of containers, built from image layers, and the programs that run in them.

Links are resolved with the root as `/`, so their targets stay inside. Whiteouts remove files of
lower layers. Devices, pipes, setuid bits and setgid bits are dropped. `owner` is the host's user ID
for root in the container, and is added to the user and group IDs of files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pyservice.runtime.archive_reader import ArchiveEntry
from pyservice.runtime.archive_rules import (
    DEPTH_MAX,
    DEVICES,
    DISK_BLOCK_BYTES,
    ENTRIES_MAX,
    FOLDER,
    HARD_LINK,
    STEPS_MAX,
    SYMBOLIC_LINK,
    BadArchive,
    too_many,
)
from pyservice.runtime.build_manifests import IDS_MAX, BadManifest, BuildProgram

_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_OF_WHITEOUTS: Final = ".wh..wh."
_LINKS_MAX: Final = 40
_KEPT_BITS: Final = 0o1777
_FOLDER_MODE: Final = 0o755


class RootFilesystem:
    def __init__(self, root: Path, owner: int | None, on_write: Callable[[int], None]) -> None:
        self._root = str(root)
        self._owner = owner
        self._on_write = on_write
        self._of_layer = {self._root}
        self._steps = 0
        self._folders_made = 0
        """Number of created implicit folders. Behind links there are more of them than the paths
        show.
        """
        self._own(self._root, 0, 0)

    def next_layer(self) -> None:
        self._of_layer = {self._root}

    def add(self, entry: ArchiveEntry, *, whiteouts: bool = True) -> None:
        words = _words(entry.name)
        if not words:
            if entry.kind == FOLDER:
                self._set_attributes(self._root, entry)
            return
        *above, name = words
        if whiteouts and name.startswith(_WHITEOUT):
            self._apply_whiteout(above, name)
            return
        path = self._path_of(entry, above, name)
        self._on_write(DISK_BLOCK_BYTES)
        if entry.kind == FOLDER:
            self._make_folder(path)
        elif entry.kind == SYMBOLIC_LINK:
            self._clear(path)
            os.symlink(entry.link, path)
        elif entry.kind == HARD_LINK:
            self._link(entry, path)
        elif entry.kind in DEVICES:
            return
        else:
            self._clear(path)
            self._write(entry, path)
        if entry.kind != HARD_LINK:
            self._set_attributes(path, entry)
        while path not in self._of_layer:
            self._of_layer.add(path)
            path = os.path.dirname(path)

    def open(self, path: str) -> IO[bytes]:
        target = self.find(path)
        return open(os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")

    def find(self, path: str) -> str:
        """Returns the host path of a path inside the root, with all links resolved.

        The target need not exist. Raises BadArchive.
        """
        return self._follow(path.split("/"), path)

    def make(self, path: str) -> None:
        self._make_parents(self.find(path))

    def _path_of(self, entry: ArchiveEntry, above: Sequence[str], name: str) -> str:
        folder = self._follow(above, entry.name)
        self._make_parents(folder)
        return f"{folder}/{name}"

    def _follow(self, words: Sequence[str], entry_name: str) -> str:
        at: list[str] = []
        remaining, links = [*reversed(words)], 0
        while remaining:
            word = remaining.pop()
            if word in ("", "."):
                continue
            if word == "..":
                del at[-1:]
                continue
            path = "/".join([self._root, *at, word])
            try:
                target = os.readlink(path)
            except OSError:
                at.append(word)
                continue
            links += 1
            words = target.split("/")
            self._steps += len(words)
            if links > _LINKS_MAX or self._steps > STEPS_MAX:
                raise BadArchive(
                    entry_name, "not-allowed", "has too many symbolic links in its path"
                )
            if target.startswith("/"):
                at = []
            remaining += reversed(words)
        if len(at) >= DEPTH_MAX:
            reason = f"has more than {DEPTH_MAX} segments in its path"
            raise BadArchive(entry_name, "not-allowed", reason)
        return "/".join([self._root, *at])

    def _make_parents(self, folder: str) -> None:
        words = folder[len(self._root) :].split("/")[1:]
        path = self._root
        for word in words:
            path = f"{path}/{word}"
            if not os.path.isdir(path):
                self._clear(path)
                self._on_write(DISK_BLOCK_BYTES)
                self._folders_made += 1
                if self._folders_made > ENTRIES_MAX:
                    raise too_many()
                os.mkdir(path, _FOLDER_MODE)
                self._own(path, 0, 0)

    def _make_folder(self, path: str) -> None:
        if os.path.islink(path) or not os.path.isdir(path):
            self._clear(path)
            os.mkdir(path, _FOLDER_MODE)

    def _link(self, entry: ArchiveEntry, path: str) -> None:
        *above, name = _words(entry.link) or [""]
        target = f"{self._follow(above, entry.name)}/{name}"
        if not name or not os.path.lexists(target) or stat.S_ISDIR(os.lstat(target).st_mode):
            reason = "is a hard link to a folder or a missing file"
            raise BadArchive(entry.name, "invalid", reason)
        if os.path.lexists(path) and os.path.samestat(os.lstat(target), os.lstat(path)):
            return
        self._clear(path)
        os.link(target, path, follow_symlinks=False)

    def _write(self, entry: ArchiveEntry, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
            for piece in entry.content:
                file.write(piece)
                self._on_write(len(piece))

    def _apply_whiteout(self, above: Sequence[str], name: str) -> None:
        folder = self._follow(above, name)
        if name == _OPAQUE:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for inside in os.listdir(folder):
                    self._remove_below(f"{folder}/{inside}")
        elif not name.startswith(_OF_WHITEOUTS):
            removed_name = name.removeprefix(_WHITEOUT)
            if removed_name in ("", ".", ".."):
                raise BadArchive(name, "invalid", "is a whiteout without a valid file name")
            self._remove_below(f"{folder}/{removed_name}")

    def _remove_below(self, path: str) -> None:
        if path not in self._of_layer:
            self._clear(path)
        elif os.path.isdir(path) and not os.path.islink(path):
            for inside in os.listdir(path):
                self._remove_below(f"{path}/{inside}")

    def _clear(self, path: str) -> None:
        try:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            pass

    def _set_attributes(self, path: str, entry: ArchiveEntry) -> None:
        self._own(path, entry.uid, entry.gid)
        if entry.kind == SYMBOLIC_LINK:
            return
        mode = entry.mode & _KEPT_BITS
        if self._owner is None:
            mode |= 0o700 if entry.kind == FOLDER else 0o400  # the service must be able to read it
        os.chmod(path, mode)

    def _own(self, path: str, uid: int, gid: int) -> None:
        if self._owner is not None:
            owners = (id_number if 0 <= id_number < IDS_MAX else 0 for id_number in (uid, gid))
            os.chown(path, *(self._owner + owner for owner in owners), follow_symlinks=False)


def path_words(path: str) -> list[str]:
    return [word for word in path.split("/") if word not in ("", ".")]


def _words(name: str) -> list[str]:
    words = path_words(name)
    if ".." in words:
        raise BadArchive(name, "not-allowed", "has .. in its path")
    return words


PROGRAM_JSON: Final = "program.json"

_FILE_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ContainerProgram:
    """Program of an image or bundle. Users, groups and paths are those inside the container."""

    command: Sequence[str]
    args: Sequence[str]
    env: Mapping[str, str]
    workdir: str
    uid: int
    gid: int
    groups: Sequence[int]
    home: str
    is_readonly: bool
    scratch_mb: int = 0


def container_root_uid(user_ids: range) -> int | None:
    """Returns the host id of the root user in containers, or None if the service is not root."""
    return user_ids.start if os.geteuid() == 0 else None


def resolve_program(program: BuildProgram, root: RootFilesystem) -> ContainerProgram:
    """Returns the program with user and group IDs from `/etc/passwd` and `/etc/group` inside the
    root.

    Creates the program's working folder. Raises BadManifest, BadArchive, OSError.
    """
    user, _, group = program.user.partition(":")
    users = list(_records(root, "/etc/passwd", 7))
    user_record = _find_record(users, user or "0")
    if user_record is None and not user.isdigit() and user:
        raise BadManifest(f"has no user {user!r} in its /etc/passwd")
    uid = _id_number(user_record[2] if user_record else user or "0")
    gid = _id_number(user_record[3]) if user_record else 0
    groups: list[int] = []
    if group:
        of_group = _find_record(list(_records(root, "/etc/group", 4)), group)
        if of_group is None and not group.isdigit():
            raise BadManifest(f"has no group {group!r} in its /etc/group")
        gid = _id_number(of_group[2] if of_group else group)
    elif user_record:
        members = _records(root, "/etc/group", 4)
        groups = [
            _id_number(member[2]) for member in members if user_record[0] in member[3].split(",")
        ]
    root.make(program.workdir)
    return ContainerProgram(
        tuple(program.command),
        tuple(program.args),
        dict(program.env),
        program.workdir,
        uid,
        gid,
        groups,
        (user_record[5] if user_record else "") or "/",
        program.is_readonly,
        program.scratch_mb,
    )


def _find_record(records: Sequence[Sequence[str]], name: str) -> Sequence[str] | None:
    by_name = (record for record in records if record[0] == name)
    by_number = (record for record in records if record[2] == name)
    return next(by_name, next(by_number, None))


def _records(root: RootFilesystem, path: str, fields: int) -> Iterator[Sequence[str]]:
    try:
        with root.open(path) as file:
            text = file.read(_FILE_MAX_BYTES).decode(errors="replace")
    except (OSError, BadArchive):
        return
    for line in text.splitlines():
        words = line.split(":")
        if len(words) >= fields:
            yield words


def _id_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) >= IDS_MAX:
        raise BadManifest(f"has a user or group {text!r}: their numbers must be below {IDS_MAX}")
    return int(text)


def find_program(root: Path, command: str, workdir: str, path: str) -> str | None:
    inside = RootFilesystem(root, None, lambda _: None)
    if "/" in command:
        candidates = [command if command.startswith("/") else f"{workdir}/{command}"]
    else:
        candidates = [f"{folder}/{command}" for folder in path.split(":") if folder.startswith("/")]
    for candidate in candidates:
        try:
            resolved = inside.find(candidate)
        except BadArchive:
            continue
        if os.path.isfile(resolved) and os.stat(resolved, follow_symlinks=False).st_mode & 0o111:
            return candidate
    return None
