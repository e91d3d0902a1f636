"""Archives and pictures for uploads."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import lz4.frame
import zstandard

MANIFEST = {"server.json": b'{"command": ["sh"]}'}


def tar(files: Mapping[str, bytes] | None = None, entries: Iterable[tarfile.TarInfo] = ()) -> bytes:
    """Returns a tar archive. Without arguments, the archive is a valid build."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (MANIFEST if files is None else files).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for entry in entries:
            archive.addfile(entry)
    return buffer.getvalue()


def entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def packed(content: bytes, compression: str) -> bytes:
    match compression:
        case "gzip":
            return gzipped(content)
        case "zstd":
            return zstandard.ZstdCompressor().compress(content)
    return bytes(lz4.frame.compress(content))


def bomb(compression: str, unpacked_bytes: int = 3 << 30, name: str = "zeros") -> bytes:
    """Returns a small archive that expands to `unpacked_bytes`. All its entries have one name, to need little disk
    space.
    """
    each_bytes = 16 << 20
    info = tarfile.TarInfo(name)
    info.size = each_bytes
    frame = packed(info.tobuf() + bytes(each_bytes), compression)
    return packed(tar()[:1024], compression) + frame * (unpacked_bytes // each_bytes)


def png(side: int = 2) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        sum_ = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + sum_

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff" * 3 * side) * side
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def jpeg() -> bytes:
    frame = b"\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00"
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x00"
    return b"\xff\xd8" + frame + scan + b"\xff\xd9"


async def put(request: Mapping[str, Any], content: bytes) -> httpx.Response:
    start = request["byte_offset"]
    part = content[start : start + request["content_length"]]
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.put(request["url"], content=part)


async def put_all(requests: Iterable[Mapping[str, Any]], contents: Mapping[str, bytes]) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        for request in requests:
            start = request["byte_offset"]
            part = contents[request["path"]][start : start + request["content_length"]]
            answer = await client.put(request["url"], content=part)
            assert answer.status_code == 200, answer.text


def without_addresses(answer: Any) -> Any:
    """Returns a response without its presigned URLs, which change with each signature."""
    if isinstance(answer, dict):
        return {name: without_addresses(one) for name, one in answer.items() if name != "url"}
    return [without_addresses(one) for one in answer] if isinstance(answer, list) else answer
