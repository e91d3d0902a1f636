"""Validation of PNG and JPEG files by their chunks and segments, without decoding pixels."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

MAX_SIDE: Final = 16_384
"""Pixels. Small files can stand for gigabytes of pixels."""

MAX_PIXELS: Final = 64 << 20

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTHS: Final = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_INDEXED: Final = 3
_PNG_CRITICAL: Final = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})
_PNG_NAME: Final = re.compile(rb"[A-Za-z]{4}")

_JPEG: Final = b"\xff\xd8"
# Start of frame. The gaps are tables: DHT, JPG, DAC.
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# DHT, DAC, DQT, DNL, DRI, application data, comments.
_JPEG_TABLES: Final = frozenset({0xC4, 0xCC, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)})
_JPEG_SCAN: Final = 0xDA
_JPEG_END: Final = 0xD9
# In entropy-coded data FF is stuffed with 00. RST0 to RST7 and fill bytes belong to it.
_JPEG_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_WINDOW_BYTES: Final = 16 << 10
"""A search holds the GIL."""

_EXTENSIONS: Final = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg"}


@dataclass(frozen=True, slots=True)
class Picture:
    """Kind and size in pixels that an image declares."""

    kind: Literal["png", "jpeg"]
    width: int
    height: int

    @property
    def content_type(self) -> str:
        return f"image/{self.kind}"


def check_image(content: bytes) -> Picture | None:
    """Returns the image, or None when the file is not a whole PNG or JPEG or is too large. Takes linear time."""
    try:
        picture = _png(content) if content.startswith(_PNG) else _jpeg(content)
    except _NoPicture:
        return None
    if not 0 < picture.width <= MAX_SIDE or not 0 < picture.height <= MAX_SIDE:
        return None
    return picture if picture.width * picture.height <= MAX_PIXELS else None


def kind_of_name(path: str) -> Literal["png", "jpeg"] | None:
    """Returns the kind that the file extension claims."""
    _, dot, extension = path.lower().rpartition(".")
    kind = _EXTENSIONS.get(extension) if dot else None
    return "png" if kind == "png" else "jpeg" if kind == "jpeg" else None


class _NoPicture(Exception):
    """The content is not a complete image of its kind."""


def _require(condition: bool) -> None:
    if not condition:
        raise _NoPicture


# PNG ----------------------------------------------------------------------------------------------


def _png(content: bytes) -> Picture:
    """Requires IHDR first, contiguous IDATs, IEND last, and a palette before indexed pixels."""
    chunks = _chunks(content)
    before, header = next(chunks, (b"", b""))
    _require(before == b"IHDR" and len(header) == 13)
    depth, color, compression, filtering, interlace = header[8:]
    _require(depth in _PNG_DEPTHS.get(color, ()) and interlace <= 1)
    _require(not compression and not filtering)
    seen = {before}
    for name, body in chunks:
        # A capital first letter marks a chunk without which no viewer can show the image.
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
    """Yields names and contents of chunks, which must fill the file."""
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
    """Requires one frame, then scans, then the end marker."""
    _require(content.startswith(_JPEG))
    frame: _Frame | None = None
    scans = 0
    at = len(_JPEG)
    while True:
        marker, at = _marker(content, at)
        if marker == _JPEG_END:
            # Phones append previews and brightness maps.
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
    """Returns the marker at a position, after fill bytes, and the position behind it."""
    begin = at
    while content[at : at + 1] == b"\xff":
        at += 1
    _require(begin < at < len(content))
    return content[at], at + 1


def _segment(content: bytes, at: int) -> bytes:
    """Returns the content of a segment. Its length field counts its own two bytes."""
    end = at + int.from_bytes(content[at : at + 2])
    _require(at + 2 <= end <= len(content))
    return content[at + 2 : end]


def _frame(body: bytes) -> _Frame:
    _require(len(body) > 6 and len(body) == 6 + 3 * body[5])
    components = frozenset(body[6::3])
    _require(2 <= body[0] <= 16 and len(components) == body[5] <= 4)
    return _Frame(int.from_bytes(body[3:5]), int.from_bytes(body[1:3]), components)


def _is_scan(body: bytes, components: frozenset[int]) -> bool:
    if len(body) < 6 or len(body) != 4 + 2 * body[0]:
        return False
    return components.issuperset(body[1:-3:2])


def _end_of_scan(content: bytes, at: int) -> int:
    """Returns the position of the marker after a scan, or the end of the file."""
    for start in range(at, len(content), _WINDOW_BYTES):
        # A marker can lie across two windows.
        found = _JPEG_MARKER.search(content, start, start + _WINDOW_BYTES + 1)
        if found is not None:
            return found.start()
    return len(content)
