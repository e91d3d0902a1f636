"""Which picture a file is, told by its content. Pure; what may be uploaded is the caller's matter."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final, Literal

MAX_SIDE: Final = 16_384
"""Pixels. A larger picture is refused: small files can stand for gigabytes of pixels."""

MAX_PIXELS: Final = 64 << 20

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTHS: Final = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_END: Final = b"\x00\x00\x00\x00IEND\xae\x42\x60\x82"
# Start of frame, without the markers between them that are tables (DHT, JPG, DAC).
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SCAN: Final = 0xDA
_JPEG_BARE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
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
    """The picture that the whole file is; None when it is none, is cut off or is too large."""
    picture = _png(content) if content.startswith(_PNG) else _jpeg(content)
    if picture is None or not 0 < picture.width <= MAX_SIDE or not 0 < picture.height <= MAX_SIDE:
        return None
    return picture if picture.width * picture.height <= MAX_PIXELS else None


def kind_of_name(path: str) -> Literal["png", "jpeg"] | None:
    """The kind that a file name claims by its extension."""
    _, dot, extension = path.lower().rpartition(".")
    kind = _EXTENSIONS.get(extension) if dot else None
    return "png" if kind == "png" else "jpeg" if kind == "jpeg" else None


def _png(content: bytes) -> Picture | None:
    header = content[8:33]
    if len(header) < 25 or header[:8] != b"\x00\x00\x00\rIHDR":
        return None
    if zlib.crc32(header[4:21]) != int.from_bytes(header[21:25], "big"):
        return None
    depth, color, compression, filtering, interlace = header[16:21]
    if depth not in _PNG_DEPTHS.get(color, ()) or compression or filtering or interlace > 1:
        return None
    if b"IDAT" not in content or not content.endswith(_PNG_END):
        return None
    return Picture("png", int.from_bytes(header[8:12], "big"), int.from_bytes(header[12:16], "big"))


def _jpeg(content: bytes) -> Picture | None:
    """Walks the segments up to the first scan: there has to be a frame before it."""
    if not content.startswith(b"\xff\xd8\xff") or b"\xff\xd9" not in content[-64:]:
        return None
    frame: Picture | None = None
    at = 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF:  # padding before a marker
            at += 1
            continue
        if marker in _JPEG_BARE:
            at += 2
            continue
        if marker == _JPEG_SCAN:
            return frame
        length = int.from_bytes(content[at + 2 : at + 4], "big")
        if marker in _JPEG_FRAMES and length >= 8 and at + 9 <= len(content):
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            width = int.from_bytes(content[at + 7 : at + 9], "big")
            frame = Picture("jpeg", width, height)
        if length < 2:
            return None
        at += 2 + length
    return None
