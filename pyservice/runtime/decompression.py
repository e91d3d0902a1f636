"""Streaming decompression with bounded memory: gzip, zstd, lz4."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, Protocol

import lz4.frame
import zstandard

COMPRESSIONS: Final = ("gzip", "zstd", "lz4")
MAGIC_BYTES: Final = 4
_LAYERS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_OUTPUT_BYTES: Final = 1 << 20
_ZSTD_INPUT_BYTES: Final = 512
"""Input bytes of one step. The zstd reader has no output bound, and 4 bytes can expand to 128 KiB.
"""
_ZSTD_WINDOW_MAX_BYTES: Final = 128 << 20


class BadCompression(Exception):
    """The compressed data is invalid. The message is the end of a sentence for the developer."""


class Decompressor(Protocol):
    def pieces(self, content: bytes) -> Iterator[bytes]: ...

    def finish(self) -> None: ...


def decompressor(compression: str) -> Decompressor:
    match compression:
        case "gzip":
            return _Frames(_GzipFrame, "gzip", zlib.error)
        case "zstd":
            return _Frames(_ZstdFrame, "zstd", zstandard.ZstdError)
        case "lz4":
            return _Frames(_Lz4Frame, "lz4", RuntimeError)
    raise ValueError(f"{compression} is no compression")


def detect_compression(begin: bytes) -> str:
    return next((name for magic, name in _LAYERS.items() if begin.startswith(magic)), "none")


class _Frame(Protocol):
    rest: bytes

    @property
    def is_ended(self) -> bool: ...
    def pieces(self, content: bytes) -> Iterator[bytes]: ...


class _Frames:
    def __init__(self, new_frame: type[Any], name: str, error: type[Exception]) -> None:
        self._new_frame = new_frame
        self._name = name
        self._error = error
        self._frame: _Frame = new_frame()
        self._is_begun = False

    def pieces(self, content: bytes) -> Iterator[bytes]:
        while content:
            if self._frame.is_ended:
                content = content.lstrip(b"\0")
                if not content:
                    return
                self._frame = self._new_frame()
            self._is_begun = True
            try:
                yield from self._frame.pieces(content)
            except self._error:
                raise BadCompression(
                    f"is not {self._name}, though its compression says so"
                ) from None
            content = self._frame.rest

    def finish(self) -> None:
        if not self._is_begun or not self._frame.is_ended:
            raise BadCompression(f"is cut off: its {self._name} has no end")


class _GzipFrame:
    def __init__(self) -> None:
        self._reader = zlib.decompressobj(wbits=31)
        self.rest = b""

    @property
    def is_ended(self) -> bool:
        return self._reader.eof

    def pieces(self, content: bytes) -> Iterator[bytes]:
        piece = self._reader.decompress(content, _OUTPUT_BYTES)
        while piece:
            yield piece
            if self._reader.eof:
                break  # another call would return the trailing data twice
            piece = self._reader.decompress(self._reader.unconsumed_tail, _OUTPUT_BYTES)
        self.rest = self._reader.unused_data


class _ZstdFrame:
    def __init__(self) -> None:
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX_BYTES)
        self._reader = reader.decompressobj()
        self.rest = b""

    @property
    def is_ended(self) -> bool:
        return bool(self._reader.eof)

    def pieces(self, content: bytes) -> Iterator[bytes]:
        self.rest = b""
        for start in range(0, len(content), _ZSTD_INPUT_BYTES):
            end = start + _ZSTD_INPUT_BYTES
            piece = self._reader.decompress(content[start:end])
            if piece:
                yield piece
            if self._reader.eof:
                self.rest = self._reader.unused_data + content[end:]
                return


class _Lz4Frame:
    def __init__(self) -> None:
        self._reader = lz4.frame.LZ4FrameDecompressor()
        self.rest = b""

    @property
    def is_ended(self) -> bool:
        return bool(self._reader.eof)

    def pieces(self, content: bytes) -> Iterator[bytes]:
        self.rest = b""
        piece = self._reader.decompress(content, max_length=_OUTPUT_BYTES)
        while True:
            if piece:
                yield piece
            if self._reader.eof:
                self.rest = self._reader.unused_data or b""
                return
            if self._reader.needs_input:
                return
            piece = self._reader.decompress(b"", max_length=_OUTPUT_BYTES)
