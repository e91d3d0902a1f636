from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final, Literal

MAX_SIDE: Final = 16_384
"""Longest side in pixels. A small file can contain gigabytes of pixels."""

MAX_PIXELS: Final = 64 << 20

_PNG_END: Final = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_JPEG_END: Final = b"\xff\xd9"
_EXTENSIONS: Final = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg"}


@dataclass(frozen=True, slots=True)
class Picture:
    kind: Literal["png", "jpeg"]
    width: int
    height: int

    @property
    def content_type(self) -> str:
        return f"image/{self.kind}"


def check_picture(content: bytes) -> Picture | None:
    """Returns format and size of a picture, or None for an invalid picture.

    A picture is invalid if it is damaged, incomplete, too large or of another format. The caller
    limits the size of `content`. Pixels are not decoded.
    """
    # Imported here, so that a start of the service does not load Pillow.
    from PIL import Image

    # Turns off Pillow's own limit, which warns on standard error. The limits below apply instead.
    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            width, height = image.size
            is_png = image.format == "PNG"
            # Pillow does not look for the end of a JPEG, which may have more pictures behind it.
            scan = 0 if is_png else image.fp.tell()  # type: ignore[union-attr]
            image.verify()
    except Exception:  # noqa: BLE001 — Pillow raises many types for hostile bytes
        return None
    if not (content.endswith(_PNG_END) if is_png else _JPEG_END in content[scan:]):
        return None
    if not 0 < width <= MAX_SIDE or not 0 < height <= MAX_SIDE or width * height > MAX_PIXELS:
        return None
    return Picture("png" if is_png else "jpeg", width, height)


def kind_of_name(path: str) -> Literal["png", "jpeg"] | None:
    _, dot, extension = path.lower().rpartition(".")
    kind = _EXTENSIONS.get(extension) if dot else None
    return "png" if kind == "png" else "jpeg" if kind == "jpeg" else None
