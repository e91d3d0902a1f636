"""How much a build may unpack to (decisions 6.5): so many times what was uploaded, beyond a size that anybody may have.
Pure: counted while it is unpacked, and while an image is gone through whose layers are packed themselves.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from pyservice.runtime.archive_rules import FILES, FOLDER, BadArchive, words_of
from pyservice.runtime.decompression import (
    MAGIC_BYTES,
    BadCompression,
    Unpacker,
    compression_of,
    unpacker,
)

UNPACKED_MAX_BYTES: Final = 32 << 30
FREE_BYTES: Final = 1 << 30
"""What any build may unpack to, however small it is."""
RATIO_MAX: Final = 100
"""Times its own size, for what unpacks to more. Programs, maps and textures pack to a third, seldom to a tenth."""
ENTRIES_MAX: Final = 100_000
"""Files, folders and links of a build, each an inode of the disk. An ordinary distribution has 20,000 to 60,000."""
DISK_BLOCK_BYTES: Final = 4_096
"""What each of them takes of the disk at least."""
_PIECE_BYTES: Final = 64 << 10


class Allowance:
    """What is left of it, for all that is unpacked one after the other."""

    def __init__(self, packed_bytes: int) -> None:
        """`packed_bytes`: the size of what was uploaded."""
        self._packed_bytes = packed_bytes
        self._taken_bytes = 0
        self._entries = 0
        self.max_bytes = min(UNPACKED_MAX_BYTES, max(FREE_BYTES, RATIO_MAX * packed_bytes))

    def take(self, more_bytes: int) -> None:
        """So many came out. Raises BadArchive."""
        self._taken_bytes += more_bytes
        self.refuse_beyond(0)

    def take_entry(self, folders: int, content_bytes: int) -> None:
        """A file, folder or link, and folders above it that come to be with it. Their content is taken as it comes, but
        none takes less of the disk than a block. Raises BadArchive.
        """
        self._entries += 1 + folders
        if self._entries > ENTRIES_MAX:
            raise too_many()
        self.take(folders * DISK_BLOCK_BYTES + max(0, DISK_BLOCK_BYTES - content_bytes))

    def refuse_beyond(self, coming_bytes: int) -> None:
        """So many are announced. Raises BadArchive."""
        told_bytes = self._taken_bytes + coming_bytes
        if told_bytes > self.max_bytes:
            raise BadArchive("", "too-high", self._reason(told_bytes))

    def _reason(self, told_bytes: int) -> str:
        if self.max_bytes == UNPACKED_MAX_BYTES:
            return (
                f"unpacks to at least {told_bytes} bytes, and no build may unpack to more than {self.max_bytes}: "
                "leave out what the server does not need"
            )
        return (
            f"unpacks to at least {told_bytes} bytes, and {self._packed_bytes} bytes may unpack to at most "
            f"{self.max_bytes} ({RATIO_MAX} times as much, or {FREE_BYTES}): leave out what the server does not need, "
            "have it write what is empty when it starts, or upload it with less compression"
        )


def too_many() -> BadArchive:
    """Of files, folders and links."""
    reason = (
        f"must have at most {ENTRIES_MAX} files, folders and links, layers of an image together: leave out what the "
        "server does not need, or put many small files into one"
    )
    return BadArchive("", "too-many", reason)


class Folders:
    """Of one tar those that its paths go through: they come to be when it is unpacked, whether they are entries or not.
    Known by their hashes, as paths may be long.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()

    def made_by(self, kind: int, name: bytes) -> int:
        """How many come to be above an entry, which nothing before it was in."""
        *above, last = words_of(name) or [b""]
        known, at, count = self._known, 0, len(self._known)
        for word in above:
            at = hash((at, word))
            known.add(at)
        made = len(known) - count
        if kind == FOLDER:
            known.add(hash((at, last)))
        return made


class Walk(Protocol):
    """Goes through a tar."""

    def feed(self, content: bytes) -> None:
        """More of it, which is taken of an allowance before anything else. Raises BadArchive."""
        ...


class PackedLayers:
    """Counts what the files of an image's archive unpack to, those that are packed and those that are not: its layers
    with what describes them. What is a tar is gone through, too; whether it is whole is seen when it is unpacked.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self._walk: Walk | None = None
        """Through the file; None: it is no tar."""
        self._new_walk: Callable[[], Walk] | None = None
        self._waiting: collections.deque[bytes | None] = collections.deque()
        """Pieces of files; None: another one begins."""
        self._left = 0
        self._begin: bytes | None = b""
        """Of a file of which nobody knows yet whether it is packed."""
        self._unpack: Unpacker | None = None

    def walk_with(self, new_walk: Callable[[], Walk]) -> None:
        """Makes one for each file, which takes of the same allowance."""
        self._new_walk = new_walk

    def begins(self, kind: int, size: int) -> None:
        """An entry."""
        self._left = size if kind in FILES else 0
        self._waiting.append(None)

    def take(self, content: bytes) -> None:
        """More of the entry, padding included."""
        piece = content[: self._left]
        self._left -= len(piece)
        if piece:
            self._waiting.append(piece)

    def work(self) -> Iterator[None]:
        """Goes through what was taken, in steps. Raises BadArchive."""
        while self._waiting:
            piece = self._waiting.popleft()
            if piece is None:
                self._ends()
                continue
            if self._begin is not None:
                self._begin += piece
                if len(self._begin) < MAGIC_BYTES:
                    continue
                piece, self._begin = self._begin, None
                compression = compression_of(piece)
                self._unpack = None if compression == "none" else unpacker(compression)
                self._walk = None if self._new_walk is None else self._new_walk()
            yield from self._counted(piece)

    def finish(self) -> None:
        """That was all. Raises BadArchive."""
        self._ends()

    def _ends(self) -> None:
        if self._begin:
            self.allowance.take(len(self._begin))
        self._begin, self._unpack, self._walk = b"", None, None

    def _counted(self, piece: bytes) -> Iterator[None]:
        if self._unpack is None:
            yield from self._walked(piece)
            return
        try:
            for part in self._unpack.pieces(piece):
                yield from self._walked(part)
        except BadCompression:
            # What follows is counted as it is.
            self._unpack = self._walk = None

    def _walked(self, content: bytes) -> Iterator[None]:
        for at in range(0, len(content), _PIECE_BYTES):
            piece = content[at : at + _PIECE_BYTES]
            if self._walk is None:
                self.allowance.take(len(piece))
            else:
                try:
                    self._walk.feed(piece)
                except BadArchive as error:
                    # Configurations and manifests are no tars.
                    if error.entry or error.word != "invalid":
                        raise
                    self._walk = None
            yield
