"""Objects that the service makes itself, piece by piece: exports of any length."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

_PIECE_BYTES: Final = 4 << 20


class Draft:
    """It is there, whole, once `keep` returned; of one that was given up `Objects.delete_prefix` of its folder removes
    the pieces. Both raise what writing raises: STORAGE_FULL, CONTROL_PLANE_UNAVAILABLE.
    """

    def __init__(
        self,
        write: Callable[[str, bytes], Awaitable[None]],
        name: str,
        kept: Callable[[int], None],
    ) -> None:
        """`name` is that of the kept blob; `kept` hears how many bytes it has."""
        self._write_blob = write
        self._name = name
        self._kept = kept
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._lengths: list[int] = []

    async def add(self, content: bytes) -> None:
        """What comes next."""
        self._held.append(content)
        self._held_bytes += len(content)
        if self._held_bytes >= _PIECE_BYTES:
            await self._write()

    async def keep(self) -> None:
        """That was all."""
        await self._write()
        await self._write_blob(f"{self._name}.parts", manifest(self._lengths))
        self._kept(sum(self._lengths))

    async def _write(self) -> None:
        piece = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        await self._write_blob(f"{self._name}.{sum(self._lengths)}", piece)
        self._lengths.append(len(piece))


def manifest(lengths: Sequence[int]) -> bytes:
    """What says of which pieces, in a row, an object consists."""
    return json.dumps(lengths).encode()
