"""Gzip on the way out: small files whole and remembered, larger ones in pieces, so many at once."""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

WHOLE_MAX_BYTES: Final = 1 << 20
_FILE_MIN_BYTES: Final = 512
_FILE_MAX_BYTES: Final = 128 << 20
_REMEMBERED_BYTES: Final = 32 << 20
_LEVEL: Final = 5
_ACCEPTED: Final = re.compile(r"\s*(gzip|x-gzip|\*)\s*(?:;\s*q=([01](?:\.\d{0,3})?)\s*)?")


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Whether the client takes gzip (RFC 9110, 12.5.3)."""
    weights: dict[str, float] = {}
    for word in (accept_encoding or b"").decode("latin-1").lower().split(","):
        match = _ACCEPTED.fullmatch(word)
        if match:
            weights[match[1]] = float(match[2] or 1)
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


class Compressor:
    """Two threads that compress. Who finds them busy sends the file as it is."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="gzip")
        self._free = threads
        self._remembered: OrderedDict[str, bytes] = OrderedDict()
        self._remembered_bytes = 0

    def close(self) -> None:
        """Waits for what is being compressed."""
        self._threads.shutdown()

    def is_worth(self, length: int) -> bool:
        """Whether a file of so many bytes is compressed at all."""
        return _FILE_MIN_BYTES <= length <= _FILE_MAX_BYTES

    def remembered(self, tag: str) -> bytes | None:
        """What was compressed before."""
        found = self._remembered.get(tag)
        if found is not None:
            self._remembered.move_to_end(tag)
        return found

    def take(self) -> bool:
        """Whether there is a thread; if so, it is held until `give`."""
        if not self._free:
            return False
        self._free -= 1
        return True

    def give(self) -> None:
        """Ends what `take` began."""
        self._free += 1

    async def whole(self, tag: str, content: bytes) -> bytes:
        """A small file, compressed."""
        loop = asyncio.get_running_loop()
        packed = await loop.run_in_executor(
            self._threads, lambda: gzip.compress(content, _LEVEL, mtime=0)
        )
        self._remember(tag, packed)
        return packed

    async def pieces(self, blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A large file, compressed as it is read."""
        loop = asyncio.get_running_loop()
        state = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        async for block in blocks:
            packed = await loop.run_in_executor(self._threads, state.compress, block)
            if packed:
                yield packed
        yield await loop.run_in_executor(self._threads, state.flush)

    def _remember(self, tag: str, packed: bytes) -> None:
        self._remembered_bytes += len(packed) - len(self._remembered.pop(tag, b""))
        self._remembered[tag] = packed
        while self._remembered_bytes > _REMEMBERED_BYTES:
            self._remembered_bytes -= len(self._remembered.popitem(last=False)[1])
