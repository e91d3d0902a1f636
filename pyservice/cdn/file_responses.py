"""Responses with files: conditional requests, ranges, gzip."""

from __future__ import annotations

import asyncio
import gzip
import re
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from math import ceil
from typing import Final

from pyservice.cdn.byte_cache import ByteCache
from pyservice.cdn.content_types import is_compressible
from pyservice.cdn.responses import Response, error_page
from pyservice.storage.objects import Objects

GZIPPED: Final = "-gzip"

_RANGE: Final = re.compile(r"bytes=[ \t]*(\d{0,19})-(\d{0,19})[ \t]*")
_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


class Unsatisfiable(Exception):
    pass


def http_date(modified_s: float) -> str:
    return formatdate(ceil(modified_s), usegmt=True)


def last_modified_time(modified_s: float, now_s: float) -> float | None:
    """Returns `modified_s` as Last-Modified time, or None during the second of the modification."""
    # Later content of the same second would have the same date (RFC 9110, 8.8.2.1).
    return modified_s if ceil(modified_s) <= now_s else None


def is_unchanged(headers: Mapping[bytes, bytes], tag: str, modified_s: float | None) -> bool:
    """Returns whether the client already has this file, so that the response is 304.

    If-None-Match takes precedence. Otherwise If-Modified-Since must equal the Last-Modified date.
    """
    known_tags = headers.get(b"if-none-match")
    if known_tags is not None:
        text = known_tags.decode("latin-1")
        if text.strip() == "*":
            return True
        return any(match[2].removesuffix(GZIPPED) == tag for match in _TAG.finditer(text))
    since_s = _seconds(headers.get(b"if-modified-since"))
    return since_s is not None and modified_s is not None and ceil(modified_s) == since_s


def wanted_range(headers: Mapping[bytes, bytes], length: int, tag: str) -> tuple[int, int] | None:
    """Returns the requested bytes [start, end), or None for the whole file.

    A request for several ranges, or in other units than bytes, gets the whole file (RFC 9110).
    Raises Unsatisfiable if the file does not have the requested bytes.
    """
    match = _RANGE.fullmatch(headers.get(b"range", b"").decode("latin-1"))
    if match is None or not (match[1] or match[2]):
        return None
    if not _is_same(headers.get(b"if-range"), tag):
        return None
    if not match[1]:
        size = min(int(match[2]), length)
        if not size:
            raise Unsatisfiable
        return length - size, length
    start = int(match[1])
    last = int(match[2]) if match[2] else max(start, length - 1)
    if last < start:
        return None
    if start >= length:
        raise Unsatisfiable
    return start, min(last + 1, length)


def _is_same(condition: bytes | None, tag: str) -> bool:
    """Returns whether the request has no If-Range header, or one with this strong entity tag."""
    # A date never matches, because dates are too coarse to combine parts of a file.
    return condition is None or condition.decode("latin-1").strip() == f'"{tag}"'


def _seconds(date: bytes | None) -> int | None:
    if date is None:
        return None
    try:
        return int(parsedate_to_datetime(date.decode("latin-1")).timestamp())
    except (ValueError, OverflowError):
        return None


WHOLE_MAX_BYTES: Final = 1 << 20
_FILE_MIN_BYTES: Final = 512
_FILE_MAX_BYTES: Final = 128 << 20
_CACHE_MAX_BYTES: Final = 32 << 20
_LEVEL: Final = 5
_ACCEPTED: Final = re.compile(r"\s*(gzip|x-gzip|\*)\s*(?:;\s*q=([01](?:\.\d{0,3})?)\s*)?")


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    weights: dict[str, float] = {}
    for word in (accept_encoding or b"").decode("latin-1").lower().split(","):
        match = _ACCEPTED.fullmatch(word)
        if match:
            weights[match[1]] = float(match[2] or 1)
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


class GzipCache:
    """Two compression threads and a cache of compressed files.

    If both threads are busy, the caller sends the file uncompressed.
    """

    def __init__(self, threads: int = 2) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="gzip")
        self._free = threads
        self._cache: ByteCache[str, bytes] = ByteCache(
            _CACHE_MAX_BYTES, lambda tag, content: len(content)
        )

    @property
    def cache_bytes(self) -> int:
        return self._cache.size_bytes

    def close(self) -> None:
        self._threads.shutdown()

    def is_worth(self, length: int) -> bool:
        return _FILE_MIN_BYTES <= length <= _FILE_MAX_BYTES

    def get(self, tag: str) -> bytes | None:
        return self._cache.get(tag)

    def try_acquire_thread(self) -> bool:
        if not self._free:
            return False
        self._free -= 1
        return True

    def release_thread(self) -> None:
        self._free += 1

    async def compress(self, tag: str, content: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        compressed = await loop.run_in_executor(
            self._threads, lambda: gzip.compress(content, _LEVEL, mtime=0)
        )
        self._cache.put(tag, compressed)
        return compressed

    async def compress_pieces(self, blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        state = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        async for block in blocks:
            compressed = await loop.run_in_executor(self._threads, state.compress, block)
            if compressed:
                yield compressed
        yield await loop.run_in_executor(self._threads, state.flush)


_SMALL_BYTES: Final = 256 << 10
_WITH_304: Final = frozenset({"cache-control", "etag", "expires", "last-modified", "vary"})


@dataclass(frozen=True, slots=True)
class File:
    key: str
    length: int
    tag: str
    modified_s: float
    # Names are lower-case.
    headers: Mapping[str, str]
    is_in_parts: bool = False


class FileResponses:
    def __init__(self, objects: Objects, compressor: GzipCache) -> None:
        self._objects = objects
        self._compressor = compressor

    async def answer(
        self, file: File, request_headers: Mapping[bytes, bytes], *, is_head: bool = False
    ) -> Response:
        """Returns the response with a file. For HEAD, the caller drops the body."""
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
        modified_s = last_modified_time(file.modified_s, time.time())
        if modified_s is not None:
            headers["last-modified"] = http_date(modified_s)
        if is_packable:
            headers["vary"] = "accept-encoding"
        if is_unchanged(request_headers, file.tag, modified_s):
            headers_304 = {name: value for name, value in headers.items() if name in _WITH_304}
            if f'"{file.tag}{GZIPPED}"'.encode() in request_headers.get(b"if-none-match", b""):
                headers_304["etag"] = f'"{file.tag}{GZIPPED}"'
            return Response(304, headers_304)
        try:
            # Ranges apply only to GET (RFC 9110, 14.2).
            byte_range = None if is_head else wanted_range(request_headers, file.length, file.tag)
        except Unsatisfiable:
            return error_page(416, {"content-range": f"bytes */{file.length}"})
        if byte_range is not None:
            start, end = byte_range
            headers["content-range"] = f"bytes {start}-{end - 1}/{file.length}"
            headers["content-length"] = str(end - start)
            return await self._file_response(206, headers, file, start, end)
        if is_packable and accepts_gzip(request_headers.get(b"accept-encoding")):
            response = await self._gzip_response(file, headers)
            if response is not None:
                return response
        headers["content-length"] = str(file.length)
        return await self._file_response(200, headers, file, 0, file.length)

    async def _file_response(
        self, status: int, headers: dict[str, str], file: File, start: int, end: int
    ) -> Response:
        pieces = self._pieces(file, start, end)
        if end - start <= _SMALL_BYTES:
            return Response(status, headers, b"".join([piece async for piece in pieces]))
        first_piece = await anext(pieces, b"")
        return Response(status, headers, pieces, first_piece=first_piece)

    def _pieces(self, file: File, start: int, end: int) -> AsyncIterator[bytes]:
        if file.is_in_parts:
            return self._objects.read(file.key, start, end)
        return self._objects.read_whole(file.key, start, end)

    async def _gzip_response(self, file: File, headers: Mapping[str, str]) -> Response | None:
        gzip_headers = {**headers, "etag": f'"{file.tag}{GZIPPED}"', "content-encoding": "gzip"}
        gzip_headers["accept-ranges"] = "none"
        content = self._compressor.get(file.tag)
        if content is not None:
            return Response(200, gzip_headers, content)
        if not self._compressor.try_acquire_thread():
            return None
        if file.length > WHOLE_MAX_BYTES:
            pieces = self._compressor.compress_pieces(self._pieces(file, 0, file.length))
            return Response(200, gzip_headers, pieces, on_end=self._compressor.release_thread)
        try:
            whole = b"".join([piece async for piece in self._pieces(file, 0, file.length)])
            return Response(200, gzip_headers, await self._compressor.compress(file.tag, whole))
        finally:
            self._compressor.release_thread()
