"""How much a build may unpack to (decisions 6.5): so many times what was uploaded, beyond a size that anybody may have.
Pure: counted while it is unpacked, and while an image is gone through whose layers are packed themselves.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Final

from pyservice.runtime.archive_rules import FILES, BadArchive
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


class Allowance:
    """What is left of it, for all that is unpacked one after the other."""

    def __init__(self, packed_bytes: int) -> None:
        """`packed_bytes`: the size of what was uploaded."""
        self._packed_bytes = packed_bytes
        self._taken_bytes = 0
        self.max_bytes = min(UNPACKED_MAX_BYTES, max(FREE_BYTES, RATIO_MAX * packed_bytes))

    def take(self, more_bytes: int) -> None:
        """So many came out. Raises BadArchive."""
        self._taken_bytes += more_bytes
        self.refuse_beyond(0)

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


class PackedLayers:
    """Counts what the files of an image's archive unpack to, those that are packed and those that are not: its layers
    with what describes them. Whether they can be unpacked is seen when they are.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._waiting: collections.deque[bytes | None] = collections.deque()
        """Pieces of files; None: another one begins."""
        self._left = 0
        self._begin: bytes | None = b""
        """Of a file of which nobody knows yet whether it is packed."""
        self._unpack: Unpacker | None = None

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
            yield from self._counted(piece)

    def finish(self) -> None:
        """That was all. Raises BadArchive."""
        self._ends()

    def _ends(self) -> None:
        if self._begin:
            self._allowance.take(len(self._begin))
        self._begin, self._unpack = b"", None

    def _counted(self, piece: bytes) -> Iterator[None]:
        if self._unpack is None:
            self._allowance.take(len(piece))
            return
        try:
            for part in self._unpack.pieces(piece):
                self._allowance.take(len(part))
                yield
        except BadCompression:
            # What follows is counted as it is.
            self._unpack = None
