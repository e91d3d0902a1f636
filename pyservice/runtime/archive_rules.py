"""Rules for the entries of a build's tar, and limits of its unpacked size. Does no I/O.

Entries outside of the target folder are refused. In a root file system, symbolic links may have any
target, because only the program inside the container follows them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

STEPS_MAX: Final = 5_000_000
NAME_MAX_BYTES: Final = 255
PATH_MAX_BYTES: Final = 3_072
"""Linux allows 4,095 bytes, including the target folder."""
LINK_MAX_BYTES: Final = 4_095
DEPTH_MAX: Final = 256
FILES: Final = frozenset(b"\x0007")
HARD_LINK, SYMBOLIC_LINK, FOLDER = b"1"[0], b"2"[0], b"5"[0]
DEVICES: Final = frozenset(b"346")
_JUMPS_MAX: Final = 40

UNPACKED_MAX_BYTES: Final = 32 << 30
FREE_BYTES: Final = 1 << 30
RATIO_MAX: Final = 100
"""Largest unpacked size of a large upload, as a multiple of its size.

Programs, maps and textures compress to a third, seldom to a tenth.
"""
ENTRIES_MAX: Final = 100_000
"""Each entry needs an inode. An ordinary distribution has 20,000 to 60,000."""
DISK_BLOCK_BYTES: Final = 4_096


class BadArchive(Exception):
    """An archive is invalid. `entry` is the path of its invalid entry, or empty for the whole
    archive.

    `word` is a problem code, such as `too-long`. `reason` continues a sentence about the entry,
    such as `has .. in its path`.
    """

    def __init__(self, entry: str, word: str, reason: str) -> None:
        super().__init__(f"{entry}: {reason}")
        self.entry = entry
        self.word = word
        self.reason = reason


class Rules(Protocol):
    def entry(self, kind: int, name: bytes, link: bytes) -> None: ...

    def finish(self) -> None: ...


class FolderRules:
    def __init__(self) -> None:
        self._links: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}

    def entry(self, kind: int, name: bytes, link: bytes) -> None:
        display_name = _display_name(name)
        if kind in DEVICES:
            raise BadArchive(display_name, "not-allowed", "is a device or a pipe")
        if kind not in FILES and kind not in (HARD_LINK, SYMBOLIC_LINK, FOLDER):
            reason = "has an unsupported type: use files, folders and links"
            raise BadArchive(display_name, "not-allowed", reason)
        path = self._inside(display_name, name)
        if path in self._links:
            raise BadArchive(display_name, "not-unique", "has the same path as a symbolic link")
        if not path and kind != FOLDER:
            raise BadArchive(display_name, "invalid", "has an empty path")
        if kind == HARD_LINK and self._inside(display_name, link) in self._links:
            raise BadArchive(display_name, "not-allowed", "is a hard link to a symbolic link")
        if kind == SYMBOLIC_LINK:
            _refuse_link(display_name, link)
            if link.startswith(b"/") or not link:
                reason = "is a symbolic link with an absolute or empty target"
                raise BadArchive(display_name, "not-allowed", reason)
            self._links[path] = tuple(link.split(b"/"))

    def _inside(self, display_name: str, name: bytes) -> tuple[bytes, ...]:
        if name.startswith(b"/"):
            raise BadArchive(display_name, "not-allowed", "has an absolute path")
        words = tuple(path_parts(name))
        _refuse_path(display_name, words)
        for length in range(1, len(words)):
            if words[:length] in self._links:
                raise BadArchive(
                    display_name, "not-allowed", "has a symbolic link as a parent folder"
                )
        return words

    def finish(self) -> None:
        steps = 0
        for path in self._links:
            folder, remaining = list(path[:-1]), [*reversed(self._links[path])]
            jumps = 0
            while remaining:
                word = remaining.pop()
                steps += 1
                if steps > STEPS_MAX:
                    raise BadArchive("", "too-many", "has too many nested symbolic links")
                if word in (b"", b"."):
                    continue
                if word != b"..":
                    folder.append(word)
                    target = self._links.get(tuple(folder))
                    jumps += target is not None
                    if target is not None and jumps <= _JUMPS_MAX:
                        folder.pop()
                        remaining += reversed(target)
                elif folder:
                    folder.pop()
                else:
                    display_name = b"/".join(path).decode("utf-8", "replace")[:256]
                    reason = "is a symbolic link that points outside the archive"
                    raise BadArchive(display_name, "not-allowed", reason)

    def resolve(self, path: bytes) -> bytes:
        """Returns the path of the archive behind all symbolic links. Call it after `finish`."""
        at: list[bytes] = []
        remaining, jumps = [*reversed(path.split(b"/"))], 0
        while remaining and jumps <= _JUMPS_MAX:
            word = remaining.pop()
            if word in (b"", b"."):
                continue
            if word == b"..":
                del at[-1:]
                continue
            at.append(word)
            target = self._links.get(tuple(at))
            if target is not None:
                jumps += 1
                at.pop()
                remaining += reversed(target)
        return b"/".join(at)


class RootRules:
    """Rules for a root file system or one of its image layers. Paths start at the root.

    Devices are allowed, but the unpacker skips them.
    """

    def entry(self, kind: int, name: bytes, link: bytes) -> None:
        display_name = _display_name(name)
        kinds = (HARD_LINK, SYMBOLIC_LINK, FOLDER)
        if kind not in FILES and kind not in kinds and kind not in DEVICES:
            reason = "has an unsupported type: use files, folders, links and devices"
            raise BadArchive(display_name, "not-allowed", reason)
        _refuse_path(display_name, path_parts(name))
        if kind == HARD_LINK:
            _refuse_path(display_name, path_parts(link))
        elif kind == SYMBOLIC_LINK:
            _refuse_link(display_name, link)
        if kind in (HARD_LINK, SYMBOLIC_LINK) and not link:
            raise BadArchive(display_name, "not-allowed", "is a link without a target")

    def finish(self) -> None:
        pass


def path_parts(path: bytes) -> list[bytes]:
    return [word for word in path.split(b"/") if word not in (b"", b".")]


def _refuse_path(display_name: str, words: Collection[bytes]) -> None:
    if b".." in words:
        raise BadArchive(display_name, "not-allowed", "has .. in its path")
    if len(words) > DEPTH_MAX:
        reason = f"has more than {DEPTH_MAX} segments in its path"
        raise BadArchive(display_name, "not-allowed", reason)
    # Without this check, the error would only occur at the start of a run.
    lengths = [len(word) for word in words]
    if max(lengths, default=0) > NAME_MAX_BYTES:
        reason = f"has a name in its path that is longer than {NAME_MAX_BYTES} bytes"
        raise BadArchive(display_name, "too-long", reason)
    if sum(lengths) + len(lengths) - 1 > PATH_MAX_BYTES:
        reason = f"has a path that is longer than {PATH_MAX_BYTES} bytes"
        raise BadArchive(display_name, "too-long", reason)
    if any(b"\0" in word for word in words):
        raise BadArchive(display_name, "invalid", "has a NUL in its path")


def _refuse_link(display_name: str, link: bytes) -> None:
    if len(link) > LINK_MAX_BYTES:
        reason = f"has a link target that is longer than {LINK_MAX_BYTES} bytes"
        raise BadArchive(display_name, "too-long", reason)
    if b"\0" in link:
        raise BadArchive(display_name, "invalid", "has a NUL in its link target")


def _display_name(name: bytes) -> str:
    return name.decode("utf-8", "replace")[:256] or "."


class SizeAllowance:
    def __init__(self, packed_bytes: int) -> None:
        self._packed_bytes = packed_bytes
        self._taken_bytes = 0
        self._entries = 0
        self.max_bytes = min(UNPACKED_MAX_BYTES, max(FREE_BYTES, RATIO_MAX * packed_bytes))

    def take(self, more_bytes: int) -> None:
        self._taken_bytes += more_bytes
        self.refuse_beyond(0)

    def take_entry(self, folders: int, content_bytes: int) -> None:
        """Counts an entry of an archive, and its `folders` implicit parent folders, towards the
        archive's limits.

        Each of them counts as at least one disk block. Raises BadArchive beyond a limit.
        """
        self._entries += 1 + folders
        if self._entries > ENTRIES_MAX:
            raise too_many()
        self.take(folders * DISK_BLOCK_BYTES + max(0, DISK_BLOCK_BYTES - content_bytes))

    def refuse_beyond(self, announced_bytes: int) -> None:
        bytes_so_far = self._taken_bytes + announced_bytes
        if bytes_so_far > self.max_bytes:
            raise BadArchive("", "too-high", self._reason(bytes_so_far))

    def _reason(self, bytes_so_far: int) -> str:
        if self.max_bytes == UNPACKED_MAX_BYTES:
            return (
                f"unpacks to at least {bytes_so_far} bytes, and no build may unpack to more than {self.max_bytes}: "
                "leave out files that the server does not need"
            )
        return (
            f"unpacks to at least {bytes_so_far} bytes, and {self._packed_bytes} bytes may unpack to at most "
            f"{self.max_bytes} ({RATIO_MAX} times as much, or {FREE_BYTES}): leave out files that the server does not "
            "need, let the server create large empty files when it starts, or upload it with less compression"
        )


def too_many() -> BadArchive:
    reason = (
        f"must have at most {ENTRIES_MAX} files, folders and links, all layers of an image together: leave out files "
        "that the server does not need, or pack many small files into one"
    )
    return BadArchive("", "too-many", reason)


class ImplicitFolders:
    """Folders that a tar does not list, but that its entries need as parents.

    Paths are stored as hashes, because paths can be long.
    """

    def __init__(self) -> None:
        self._folders: set[int] = set()

    def add_parents(self, kind: int, name: bytes) -> int:
        *parents, last = path_parts(name) or [b""]
        folders, at, count = self._folders, 0, len(self._folders)
        for word in parents:
            at = hash((at, word))
            folders.add(at)
        new_count = len(folders) - count
        if kind == FOLDER:
            folders.add(hash((at, last)))
        return new_count
