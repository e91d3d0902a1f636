"""Pictures are told by their content."""

from __future__ import annotations

import struct
import zlib

import pytest

from pyservice.storage.images import MAX_SIDE, check_image, kind_of_name


def chunk(name: bytes, content: bytes) -> bytes:
    crc = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc)


def png(width: int = 3, height: int = 2, depth: int = 8, color: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 20)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def jpeg(width: int = 3, height: int = 2, marker: int = 0xC0) -> bytes:
    table = b"\xff\xdb\x00\x04ab"
    frame = struct.pack(">BBHBHHB", 0xFF, marker, 8, 8, height, width, 1)
    return b"\xff\xd8" + table + b"\xff" + frame + b"\xff\xda\x00\x02pixels\xff\xd9"


def test_a_png_is_one() -> None:
    picture = check_image(png(300, 200))
    assert picture is not None
    assert (picture.kind, picture.width, picture.height) == ("png", 300, 200)
    assert picture.content_type == "image/png"


@pytest.mark.parametrize("marker", [0xC0, 0xC1, 0xC2])
def test_a_jpeg_is_one(marker: int) -> None:
    picture = check_image(jpeg(640, 480, marker))
    assert picture is not None
    assert (picture.kind, picture.width, picture.height) == ("jpeg", 640, 480)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GIF89a",
        b"<svg onload=alert(1)>",
        b"<html>" + png(),
        png()[:-12],
        png()[:20],
        png() + b"<script>",
        png().replace(b"IHDR", b"IHDX"),
        png().replace(b"IDAT", b"IDAX"),
        png(0, 2),
        png(MAX_SIDE + 1, 1),
        png(MAX_SIDE, MAX_SIDE),
        png(depth=3),
        png(color=5),
        jpeg(0, 2),
        jpeg(2, 0),
        jpeg(MAX_SIDE + 1, 1),
        jpeg(marker=0xC4),
        jpeg()[:-2],
        jpeg()[:8],
        b"\xff\xd8\xff\xda\x00\x02pixels\xff\xd9",
        b"\xff\xd8\xff\xdb\x00\x00" + jpeg()[2:],
        b"\xff\xd8\xff\xff\xff\xd9",
    ],
)
def test_what_is_none_is_none(content: bytes) -> None:
    assert check_image(content) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.png", "png"),
        ("a.JPG", "jpeg"),
        ("x/y.jpeg", "jpeg"),
        ("a.png.exe", None),
        ("png", None),
        ("a.gif", None),
        (".png", "png"),
    ],
)
def test_a_name_claims_a_kind_by_its_extension(name: str, kind: str | None) -> None:
    assert kind_of_name(name) == kind
