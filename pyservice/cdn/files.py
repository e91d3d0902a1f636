"""How a file is answered: conditions, ranges, gzip, pieces. Of sites and signed URLs alike."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyservice.cdn.answers import Answer, page
from pyservice.cdn.compression import WHOLE_MAX_BYTES, Compressor, accepts_gzip
from pyservice.cdn.conditions import (
    GZIPPED,
    Unsatisfiable,
    http_date,
    is_unchanged,
    told_date,
    wanted_range,
)
from pyservice.cdn.content_types import is_compressible
from pyservice.storage.objects import Objects

_SMALL_BYTES: Final = 256 << 10
_WITH_304: Final = frozenset({"cache-control", "etag", "expires", "last-modified", "vary"})


@dataclass(frozen=True, slots=True)
class File:
    """What is sent: an object, its tag, and the headers that its owner wants (lower case)."""

    key: str
    length: int
    tag: str
    modified_s: float
    headers: Mapping[str, str]
    is_in_parts: bool = False


class Files:
    """Answers with objects."""

    def __init__(self, objects: Objects, compressor: Compressor) -> None:
        self._objects = objects
        self._compressor = compressor

    async def answer(
        self, file: File, asked: Mapping[bytes, bytes], *, is_head: bool = False
    ) -> Answer:
        """The answer to GET, or to HEAD, whose body is left out by whoever sends it.

        Range is for GET alone (RFC 9110, 14.2).
        """
        is_packable = (
            "content-encoding" not in file.headers
            and is_compressible(file.headers["content-type"])
            and self._compressor.is_worth(file.length)
        )
        headers = {
            **file.headers,
            "etag": f'"{file.tag}"',
            "accept-ranges": "bytes",
        }
        modified_s = told_date(file.modified_s, time.time())
        if modified_s is not None:
            headers["last-modified"] = http_date(modified_s)
        if is_packable:
            headers["vary"] = "accept-encoding"
        if is_unchanged(asked, file.tag, modified_s):
            kept = {name: value for name, value in headers.items() if name in _WITH_304}
            if f'"{file.tag}{GZIPPED}"'.encode() in asked.get(b"if-none-match", b""):
                # It is the compressed form that the client has and goes on with.
                kept["etag"] = f'"{file.tag}{GZIPPED}"'
            return Answer(304, kept)
        try:
            wanted = None if is_head else wanted_range(asked, file.length, file.tag)
        except Unsatisfiable:
            return page(416, {"content-range": f"bytes */{file.length}"})
        if wanted is not None:
            start, end = wanted
            headers["content-range"] = f"bytes {start}-{end - 1}/{file.length}"
            headers["content-length"] = str(end - start)
            return await self._sent(206, headers, file, start, end)
        if is_packable and accepts_gzip(asked.get(b"accept-encoding")):
            packed = await self._packed(file, headers)
            if packed is not None:
                return packed
        headers["content-length"] = str(file.length)
        return await self._sent(200, headers, file, 0, file.length)

    async def _sent(
        self, status: int, headers: dict[str, str], file: File, start: int, end: int
    ) -> Answer:
        """The beginning is read before the answer begins: what fails can still be told."""
        pieces = self._pieces(file, start, end)
        if end - start <= _SMALL_BYTES:
            return Answer(status, headers, b"".join([piece async for piece in pieces]))
        begun = await anext(pieces, b"")
        return Answer(status, headers, pieces, begun=begun)

    def _pieces(self, file: File, start: int, end: int) -> AsyncIterator[bytes]:
        if file.is_in_parts:
            return self._objects.read(file.key, start, end)
        return self._objects.read_whole(file.key, start, end)

    async def _packed(self, file: File, headers: Mapping[str, str]) -> Answer | None:
        """The compressed form, None when there is no thread for it now."""
        packed = {**headers, "etag": f'"{file.tag}{GZIPPED}"', "content-encoding": "gzip"}
        packed["accept-ranges"] = "none"
        content = self._compressor.remembered(file.tag)
        if content is not None:
            return Answer(200, packed, content)
        if not self._compressor.take():
            return None
        if file.length > WHOLE_MAX_BYTES:
            pieces = self._compressor.pieces(self._pieces(file, 0, file.length))
            return Answer(200, packed, pieces, when_over=self._compressor.give)
        try:
            whole = b"".join([piece async for piece in self._pieces(file, 0, file.length)])
            return Answer(200, packed, await self._compressor.whole(file.tag, whole))
        finally:
            self._compressor.give()
