from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from pyservice.runtime.archive_rules import BadArchive

COMPRESSIONS: Final = ("gzip", "zstd", "lz4")
_MAGIC_BYTES: Final = 4
_LAYERS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_OUTPUT_BYTES: Final = 1 << 20
_ZSTD_INPUT_BYTES: Final = 512
"""Input bytes of one step. The zstd reader has no output bound, and 4 bytes can expand to 128 KiB.
"""
_ZSTD_WINDOW_MAX_BYTES: Final = 128 << 20


def decompress(blocks: Iterable[bytes], compression: str) -> Iterator[bytes]:
    """Decompresses a stream of one or more frames. Raises BadArchive."""
    if compression == "none":
        yield from blocks
        return
    new_frame = _FRAMES[compression]
    frame = new_frame()
    is_begun = False
    for block in blocks:
        while block:
            if frame.is_ended:
                block = block.lstrip(b"\0")
                if not block:
                    break
                frame = new_frame()
            is_begun = True
            try:
                yield from frame.pieces(block)
            except frame.error:
                reason = f"cannot be decompressed as {compression}"
                raise BadArchive("", "invalid", reason) from None
            block = frame.trailing
    if not is_begun or not frame.is_ended:
        raise BadArchive("", "invalid", f"is truncated: its {compression} stream has no end")


def decompress_layer(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the decompressed content of an image layer. Raises BadArchive.

    The first bytes of the layer show its compression.
    """
    source, begin = iter(blocks), b""
    while len(begin) < _MAGIC_BYTES and (block := next(source, None)) is not None:
        begin += block
    names = (name for magic, name in _LAYERS.items() if begin.startswith(magic))

    def all_blocks() -> Iterator[bytes]:
        yield begin
        yield from source

    yield from decompress(all_blocks(), next(names, "none"))


class _Frame(Protocol):
    error: type[Exception]
    """The exception of broken content."""
    trailing: bytes

    @property
    def is_ended(self) -> bool: ...
    def pieces(self, content: bytes) -> Iterator[bytes]: ...


class _GzipFrame:
    def __init__(self) -> None:
        self.error: type[Exception] = zlib.error
        self._reader = zlib.decompressobj(wbits=31)
        self.trailing = b""

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
        self.trailing = self._reader.unused_data


class _ZstdFrame:
    def __init__(self) -> None:
        # Each start of a Pod waits for the imports of this module, so it loads one library only.
        import zstandard

        self.error: type[Exception] = zstandard.ZstdError
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX_BYTES)
        self._reader = reader.decompressobj()
        self.trailing = b""

    @property
    def is_ended(self) -> bool:
        return bool(self._reader.eof)

    def pieces(self, content: bytes) -> Iterator[bytes]:
        self.trailing = b""
        for start in range(0, len(content), _ZSTD_INPUT_BYTES):
            end = start + _ZSTD_INPUT_BYTES
            piece = self._reader.decompress(content[start:end])
            if piece:
                yield piece
            if self._reader.eof:
                self.trailing = self._reader.unused_data + content[end:]
                return


class _Lz4Frame:
    def __init__(self) -> None:
        import lz4.frame

        self.error: type[Exception] = RuntimeError
        self._reader = lz4.frame.LZ4FrameDecompressor()
        self.trailing = b""

    @property
    def is_ended(self) -> bool:
        return bool(self._reader.eof)

    def pieces(self, content: bytes) -> Iterator[bytes]:
        self.trailing = b""
        piece = self._reader.decompress(content, max_length=_OUTPUT_BYTES)
        while True:
            if piece:
                yield piece
            if self._reader.eof:
                self.trailing = self._reader.unused_data or b""
                return
            if self._reader.needs_input:
                return
            piece = self._reader.decompress(b"", max_length=_OUTPUT_BYTES)


_FRAMES: Final[dict[str, Callable[[], _Frame]]] = {
    "gzip": _GzipFrame,
    "zstd": _ZstdFrame,
    "lz4": _Lz4Frame,
}
