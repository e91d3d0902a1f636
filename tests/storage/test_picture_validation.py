from __future__ import annotations

import struct
import time
import zlib

import pytest

from pyservice.storage.picture_validation import MAX_SIDE, check_picture, kind_of_name


def chunk(name: bytes, content: bytes) -> bytes:
    crc = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc)


def header(width: int = 3, height: int = 2, depth: int = 8, color: int = 2) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))


SIGNATURE = b"\x89PNG\r\n\x1a\n"
PIXELS = chunk(b"IDAT", zlib.compress(b"\0" * 20))
PALETTE = chunk(b"PLTE", b"abc")
END = chunk(b"IEND", b"")


def png(width: int = 3, height: int = 2, depth: int = 8, color: int = 2) -> bytes:
    return SIGNATURE + header(width, height, depth, color) + PIXELS + END


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content


def frame(width: int = 3, height: int = 2, marker: int = 0xC0) -> bytes:
    return segment(marker, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00")


SCAN = segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")
TABLE = segment(0xDB, b"\0" + b"\x01" * 64)


def jpeg(width: int = 3, height: int = 2, marker: int = 0xC0, coded: bytes = b"pixels") -> bytes:
    return b"\xff\xd8" + TABLE + frame(width, height, marker) + SCAN + coded + b"\xff\xd9"


def test_png_is_accepted() -> None:
    picture = check_picture(png(300, 200))
    assert picture is not None
    assert (picture.kind, picture.width, picture.height) == ("png", 300, 200)
    assert picture.content_type == "image/png"


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(b"gAMA", b"\0\0\xb1\x8f"), PIXELS, chunk(b"tEXt", b"Title\0Knight"), END],
        [chunk(b"IDAT", b""), PIXELS, chunk(b"IDAT", b""), END],
        [PALETTE, chunk(b"tRNS", b"\0" * 6), PIXELS, END],
        [chunk(b"tEXt", b"a\0b"), chunk(b"tEXt", b"c\0d"), PIXELS, END],
    ],
)
def test_png_with_extra_chunks_and_split_pixels_is_accepted(
    chunks: list[bytes],
) -> None:
    assert check_picture(SIGNATURE + header() + b"".join(chunks)) is not None


def test_png_with_palette_is_accepted() -> None:
    start = SIGNATURE + header(color=3)
    assert check_picture(start + PALETTE + PIXELS + END) is not None


@pytest.mark.parametrize("marker", [0xC0, 0xC1, 0xC2])
def test_jpeg_is_accepted(marker: int) -> None:
    picture = check_picture(jpeg(640, 480, marker))
    assert picture is not None
    assert (picture.kind, picture.width, picture.height) == ("jpeg", 640, 480)


@pytest.mark.parametrize(
    "coded",
    [
        b"a\xff\x00b",
        b"a\xff\xd0b\xff\xd7c",
        b"a" + SCAN + b"b",
        b"a" + segment(0xC4, b"table") + SCAN + b"b",
        b"a\xff\xff" + SCAN + b"b",
        b"\xff\x00" * 40_000,
        *(b"a" * (16_384 + more) + SCAN + b"b" for more in (-2, -1, 0, 1)),
    ],
)
def test_jpeg_with_stuffed_bytes_and_several_scans_is_accepted(coded: bytes) -> None:
    assert check_picture(jpeg(coded=coded)) is not None


def test_jpeg_metadata_of_cameras_and_programs_is_accepted() -> None:
    segments = (
        segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
        + segment(0xE1, b"Exif\xff\xd9" * 99)
        + segment(0xFE, b"")
    )
    assert check_picture(b"\xff\xd8" + segments + b"\xff\xff" + jpeg()[2:]) is not None
    assert check_picture(jpeg() + jpeg()) is not None


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
        b"\xff\xd8" + SCAN + b"pixels\xff\xd9",
        b"\xff\xd8\xff\xff\xff\xd9",
    ],
)
def test_other_content_is_rejected(content: bytes) -> None:
    assert check_picture(content) is None


@pytest.mark.parametrize(
    "rest",
    [
        header() + b"<script>IDAT</script>" + END,
        header() + chunk(b"tEXt", b"IDAT") + END,
        header() + PIXELS + b"garbage" + END,
        header() + END + PIXELS + END,
        header() + PIXELS[:-1] + b"\0" + END,
        header() + b"\xff\xff\xff\xff" + PIXELS[4:] + END,
        header() + b"\x7f" + PIXELS[1:] + END,
        header() + PIXELS,
        header() + PIXELS + chunk(b"IEND", b"more"),
        PIXELS + END,
        b"",
    ],
)
def test_png_with_a_misplaced_or_malformed_chunk_is_rejected(rest: bytes) -> None:
    assert check_picture(SIGNATURE + rest) is None


@pytest.mark.parametrize(
    "rest",
    [
        frame() + b"<script>alert(1)</script>\xff\xd9",
        frame() + b"\xff\xda<script>alert(1)</script>\xff\xd9",
        frame() + SCAN + b"pixels",
        frame() + SCAN + b"pixels\xff",
        frame() + SCAN + b"pixels" + segment(0xFE, b"\xff\xd9")[:-2],
        frame() + b"\xff\xd9",
        frame()[:-1] + SCAN + b"pixels\xff\xd9",
        SCAN + b"pixels" + frame() + b"\xff\xd9",
        b"",
    ],
)
def test_jpeg_with_a_misplaced_or_malformed_segment_is_rejected(rest: bytes) -> None:
    assert check_picture(b"\xff\xd8" + rest) is None


MIB = 1 << 20
HOSTILE = {
    "chunks of nothing": SIGNATURE + header() + chunk(b"teXt", b"") * (2 * MIB // 12) + PIXELS,
    "fill bytes": b"\xff\xd8" + b"\xff" * (2 * MIB),
    "comments of nothing": b"\xff\xd8" + segment(0xFE, b"") * (MIB // 2),
    "scans of a byte": b"\xff\xd8" + frame() + (SCAN + b"a") * (2 * MIB // 11),
    "fill bytes in a scan": b"\xff\xd8" + frame() + SCAN + b"\xff" * (2 * MIB),
    "stuffed bytes": jpeg(coded=b"\xff\x00" * MIB)[:-2],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_largest_expensive_image_takes_little_time(name: str) -> None:
    start = time.process_time()
    assert check_picture(HOSTILE[name]) is None
    assert time.process_time() - start < 5


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
def test_extension_claims_the_format(name: str, kind: str | None) -> None:
    assert kind_of_name(name) == kind
