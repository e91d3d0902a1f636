"""What entries of a build's tar may be, and where they may lead (decisions 6.5). Pure.

An archive is a folder: refused is what would leave it. A root file system has rules of its own: its links lead wherever
they do, and are followed by nobody but who is inside of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Protocol

LINKS_MAX: Final = 100_000
STEPS_MAX: Final = 5_000_000
"""Words of links that are followed."""
PATH_MAX_BYTES: Final = 4096
DEPTH_MAX: Final = 256
"""Folders in folders."""
FILES: Final = frozenset(b"\x0007")
HARD_LINK, SYMBOLIC_LINK, FOLDER = b"1"[0], b"2"[0], b"5"[0]
DEVICES: Final = frozenset(b"346")
_STEPS_AT_ONCE: Final = 10_000
_JUMPS_MAX: Final = 40


class BadArchive(Exception):
    """Why it is refused, to be told to its developer: the entry (empty: the whole), a word, a reason."""

    def __init__(self, entry: str, word: str, reason: str) -> None:
        super().__init__(f"{entry}: {reason}")
        self.entry = entry
        self.word = word
        self.reason = reason


class Rules(Protocol):
    """What entries may be."""

    def entry(self, kind: int, name: bytes, link: bytes) -> None:
        """Raises BadArchive for what is refused for itself."""
        ...

    def finish(self) -> Iterator[None]:
        """Raises BadArchive for what is refused for all of it."""
        ...


class FolderRules:
    """Where entries and links lead."""

    def __init__(self) -> None:
        self._links: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}

    def entry(self, kind: int, name: bytes, link: bytes) -> None:
        """Raises BadArchive for what is refused for itself."""
        told = _told(name)
        if kind in DEVICES:
            raise BadArchive(told, "not-allowed", "is a device or a pipe")
        if kind not in FILES and kind not in (HARD_LINK, SYMBOLIC_LINK, FOLDER):
            raise BadArchive(told, "not-allowed", "is neither file, folder nor link")
        path = self._inside(told, name)
        if path in self._links:
            # Whoever unpacks it might write through the link.
            raise BadArchive(told, "not-unique", "stands where a link is")
        if not path and kind != FOLDER:
            raise BadArchive(told, "invalid", "has no name")
        if kind == HARD_LINK and self._inside(told, link) in self._links:
            raise BadArchive(told, "not-allowed", "is another name of a link")
        if kind == SYMBOLIC_LINK:
            if link.startswith(b"/") or not link or len(link) > PATH_MAX_BYTES:
                raise BadArchive(told, "not-allowed", "is a link out of the archive")
            self._links[path] = tuple(link.split(b"/"))
            if len(self._links) > LINKS_MAX:
                raise BadArchive("", "too-many", f"must have at most {LINKS_MAX} links")

    def _inside(self, told: str, name: bytes) -> tuple[bytes, ...]:
        """The words of a path that stays inside and goes through no link."""
        if name.startswith(b"/") or len(name) > PATH_MAX_BYTES:
            raise BadArchive(told, "not-allowed", "has no relative path, or too long a one")
        words = tuple(word for word in name.split(b"/") if word not in (b"", b"."))
        _refuse_path(told, words)
        for length in range(1, len(words)):
            if words[:length] in self._links:
                raise BadArchive(told, "not-allowed", "is behind a link")
        return words

    def finish(self) -> Iterator[None]:
        """Follows every link through all others, as a file system would."""
        steps = 0
        for path in self._links:
            place, left = list(path[:-1]), [*reversed(self._links[path])]
            jumps = 0
            while left:
                word = left.pop()
                steps += 1
                if not steps % _STEPS_AT_ONCE:
                    yield
                if steps > STEPS_MAX:
                    raise BadArchive("", "too-many", "has too many links through links")
                if word in (b"", b"."):
                    continue
                if word != b"..":
                    place.append(word)
                    target = self._links.get(tuple(place))
                    jumps += target is not None
                    if target is not None and jumps <= _JUMPS_MAX:
                        place.pop()
                        left += reversed(target)
                elif place:
                    place.pop()
                else:
                    told = b"/".join(path).decode("utf-8", "replace")[:256]
                    raise BadArchive(told, "not-allowed", "is a link out of the archive")


class RootRules:
    """Of a root file system, or a layer of one: paths are taken from its root, links are for who is inside; who
    unpacks it goes through none that leads out, and leaves devices out.
    """

    def entry(self, kind: int, name: bytes, link: bytes) -> None:
        """Raises BadArchive."""
        told = _told(name)
        kinds = (HARD_LINK, SYMBOLIC_LINK, FOLDER)
        if kind not in FILES and kind not in kinds and kind not in DEVICES:
            raise BadArchive(told, "not-allowed", "is neither file, folder, link nor device")
        if max(len(name), len(link)) > PATH_MAX_BYTES:
            raise BadArchive(told, "not-allowed", "has too long a path")
        _refuse_path(told, name.split(b"/"))
        if kind == HARD_LINK:
            _refuse_path(told, link.split(b"/"))
        if kind in (HARD_LINK, SYMBOLIC_LINK) and not link:
            raise BadArchive(told, "not-allowed", "is a link to nothing")

    def finish(self) -> Iterator[None]:
        """Nothing is left to be looked at."""
        yield from ()


def _refuse_path(told: str, words: Collection[bytes]) -> None:
    if b".." in words:
        raise BadArchive(told, "not-allowed", "has .. in its path")
    if len(words) > DEPTH_MAX:
        raise BadArchive(told, "not-allowed", "is too deep in folders")


def _told(name: bytes) -> str:
    return name.decode("utf-8", "replace")[:256] or "."
