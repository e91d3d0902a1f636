"""Which picture a file is, told by its content: every chunk of a PNG and every segment of a JPEG is gone through, no
pixel is. Pure; what may be uploaded is the caller's matter.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

MAX_SIDE: Final = 16_384
"""Pixels. A larger picture is refused: small files can stand for gigabytes of pixels."""

MAX_PIXELS: Final = 64 << 20

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTHS: Final = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_INDEXED: Final = 3
_PNG_CRITICAL: Final = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})
_PNG_NAME: Final = re.compile(rb"[A-Za-z]{4}")

_JPEG: Final = b"\xff\xd8"
# Start of frame, without the markers between them that are tables (DHT, JPG, DAC).
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Tables (DHT, DAC, DQT), number of lines, restart interval, applications' own, comments.
_JPEG_TABLES: Final = frozenset({0xC4, 0xCC, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)})
_JPEG_SCAN: Final = 0xDA
_JPEG_END: Final = 0xD9
# In what a scan is coded in, FF is stuffed with 00; markers RST0 to RST7 are part of it, and fill bytes may be.
_JPEG_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_WINDOW_BYTES: Final = 16 << 10
"""As much as is searched at once: who searches keeps Python's lock."""

_EXTENSIONS: Final = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg"}


@dataclass(frozen=True, slots=True)
class Picture:
    """What a picture says about itself; sides in pixels."""

    kind: Literal["png", "jpeg"]
    width: int
    height: int

    @property
    def content_type(self) -> str:
        """Its MIME type."""
        return f"image/{self.kind}"


def check_image(content: bytes) -> Picture | None:
    """The picture that a file is from its first byte on; None when it is none, is cut off or is too large. Takes time
    in proportion to the file.
    """
    try:
        picture = _png(content) if content.startswith(_PNG) else _jpeg(content)
    except _NoPicture:
        return None
    if not 0 < picture.width <= MAX_SIDE or not 0 < picture.height <= MAX_SIDE:
        return None
    return picture if picture.width * picture.height <= MAX_PIXELS else None


def kind_of_name(path: str) -> Literal["png", "jpeg"] | None:
    """The kind that a file name claims by its extension."""
    _, dot, extension = path.lower().rpartition(".")
    kind = _EXTENSIONS.get(extension) if dot else None
    return "png" if kind == "png" else "jpeg" if kind == "jpeg" else None


class _NoPicture(Exception):
    """The content is not a whole picture of its kind."""


def _require(condition: bool) -> None:
    if not condition:
        raise _NoPicture


# PNG ----------------------------------------------------------------------------------------------


def _png(content: bytes) -> Picture:
    """IHDR first, the IDATs in a row, IEND last; where pixels are indexes a palette before them. Raises _NoPicture."""
    chunks = _chunks(content)
    before, header = next(chunks, (b"", b""))
    _require(before == b"IHDR" and len(header) == 13)
    depth, color, compression, filtering, interlace = header[8:]
    _require(depth in _PNG_DEPTHS.get(color, ()) and interlace <= 1)
    _require(not compression and not filtering)
    seen = {before}
    for name, body in chunks:
        # Who does not know a critical chunk, told by its capital letter, cannot show the picture.
        _require(name in _PNG_CRITICAL or name[:1].islower())
        _require(name not in seen or name not in _PNG_CRITICAL or name == before == b"IDAT")
        _require(before != b"IEND")
        match name:
            case b"PLTE":
                _require(b"IDAT" not in seen and 0 < len(body) <= 768 and len(body) % 3 == 0)
            case b"IDAT":
                _require(color != _PNG_INDEXED or b"PLTE" in seen)
            case b"IEND":
                _require(b"IDAT" in seen and len(body) == 0)
        seen.add(name)
        before = name
    _require(before == b"IEND")
    return Picture("png", int.from_bytes(header[:4]), int.from_bytes(header[4:8]))


def _chunks(content: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Names and contents of the chunks, which fill the file. Raises _NoPicture."""
    view, at = memoryview(content), len(_PNG)
    while at < len(content):
        end = at + 12 + int.from_bytes(view[at : at + 4])
        _require(at + 12 <= end <= len(content))
        name = content[at + 4 : at + 8]
        _require(_PNG_NAME.fullmatch(name) is not None)
        _require(zlib.crc32(view[at + 4 : end - 4]) == int.from_bytes(view[end - 4 : end]))
        yield name, view[at + 8 : end - 4]
        at = end


# JPEG ---------------------------------------------------------------------------------------------


class _Frame(NamedTuple):
    width: int
    height: int
    components: frozenset[int]


def _jpeg(content: bytes) -> Picture:
    """One frame before its scans, and after them the end of the picture. Raises _NoPicture."""
    _require(content.startswith(_JPEG))
    frame: _Frame | None = None
    scans = 0
    at = len(_JPEG)
    while True:
        marker, at = _marker(content, at)
        if marker == _JPEG_END:
            # Phones put more pictures behind it: previews, maps of brightness.
            _require(scans > 0)
            assert frame is not None  # scans come after it
            return Picture("jpeg", frame.width, frame.height)
        body = _segment(content, at)
        at += 2 + len(body)
        if marker in _JPEG_FRAMES:
            _require(frame is None)
            frame = _frame(body)
        elif marker == _JPEG_SCAN:
            _require(frame is not None and _is_scan(body, frame.components))
            end = _end_of_scan(content, at)
            _require(end > at)
            at = end
            scans += 1
        else:
            _require(marker in _JPEG_TABLES)


def _marker(content: bytes, at: int) -> tuple[int, int]:
    """The marker that begins here, after fill bytes, and where what follows it begins. Raises _NoPicture."""
    begin = at
    while content[at : at + 1] == b"\xff":
        at += 1
    _require(begin < at < len(content))
    return content[at], at + 1


def _segment(content: bytes, at: int) -> bytes:
    """What a segment has behind its length, which counts its own two bytes. Raises _NoPicture."""
    end = at + int.from_bytes(content[at : at + 2])
    _require(at + 2 <= end <= len(content))
    return content[at + 2 : end]


def _frame(body: bytes) -> _Frame:
    """Bits, height, width, and three bytes for each component. Raises _NoPicture."""
    _require(len(body) > 6 and len(body) == 6 + 3 * body[5])
    components = frozenset(body[6::3])
    _require(2 <= body[0] <= 16 and len(components) == body[5] <= 4)
    return _Frame(int.from_bytes(body[3:5]), int.from_bytes(body[1:3]), components)


def _is_scan(body: bytes, components: frozenset[int]) -> bool:
    """Whether it is the header of a scan of some components: their number, two bytes for each, three for all."""
    if len(body) < 6 or len(body) != 4 + 2 * body[0]:
        return False
    return components.issuperset(body[1:-3:2])


def _end_of_scan(content: bytes, at: int) -> int:
    """Where the marker is that ends the scan which begins here; the end of the file when there is none."""
    for start in range(at, len(content), _WINDOW_BYTES):
        # One more: a marker may lie across.
        found = _JPEG_MARKER.search(content, start, start + _WINDOW_BYTES + 1)
        if found is not None:
            return found.start()
    return len(content)
