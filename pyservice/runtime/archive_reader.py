"""Reader of tar archives: validates and yields the entries of a stream.

The caller's rules decide which entries are allowed. The reader always refuses sparse files and
oversized archives. It also refuses ambiguous headers, so that other tools read the same entries.
"""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pyservice.runtime.archive_rules import (
    FILES,
    FOLDER,
    BadArchive,
    ImplicitFolders,
    Rules,
    SizeAllowance,
)
from pyservice.runtime.decompression import decompress

_META_MAX_BYTES: Final = 64 << 10
_BLOCK: Final = 512
_USTAR: Final = b"ustar\0"

_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK = b"x"[0], b"g"[0], b"L"[0], b"K"[0]
_META: Final = frozenset((_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK))
_OF_ENTRY: Final = frozenset(("path", "linkpath", "size"))
_OWNERS: Final = frozenset(("uid", "gid"))


def _bad_archive(reason: str) -> BadArchive:
    return BadArchive("", "invalid", reason)


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    kind: int
    name: str
    link: str
    mode: int
    uid: int
    gid: int
    content: Iterator[bytes]
    """Content of a file. It ends when the next entry is read."""


def read_archive(
    blocks: Iterable[bytes], compression: str, allowance: SizeAllowance, rules: Rules
) -> Iterator[ArchiveEntry]:
    """Yields the entries of a tar stream, and reads the stream to its end.

    Raises BadArchive for an invalid entry.
    """
    source = _Source(decompress(blocks, compression), allowance)
    folders, has_entries, zero_blocks = ImplicitFolders(), False, 0
    of_all: dict[str, bytes] = {}
    of_next: dict[str, bytes] = {}
    while zero_blocks < 2 and (block := source.header()):
        if not any(block):
            zero_blocks += 1
            continue
        zero_blocks = 0
        if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 32:
            raise _bad_archive("is not a tar: a header has the wrong checksum")
        kind, size = _kind(block), _number(block[124:136])
        if kind in _META:
            _read_meta(kind, source.meta(size), of_all, of_next)
            continue
        attributes, of_next = of_all | of_next, {}
        if "size" in attributes:
            size = _decimal(attributes["size"])
        name = attributes["path"] if "path" in attributes else _name(block)
        link = attributes.get("linkpath", _text(block[157:257]))
        if kind not in FILES:
            size = 0
        has_entries = True
        rules.entry(kind, name, link)
        allowance.take_entry(folders.add_parents(kind, name), size)
        source.refuse_announced(size)
        content = source.content(size)
        yield ArchiveEntry(
            kind,
            os.fsdecode(name),
            os.fsdecode(link),
            _number(block[100:108]),
            _owner(attributes.get("uid"), block[108:116]),
            _owner(attributes.get("gid"), block[116:124]),
            content,
        )
        collections.deque(content, maxlen=0)
        source.skip_padding(size)
    if not has_entries and zero_blocks < 2:
        raise _bad_archive("is not a tar: it has no entries and no end marker")
    source.skip_rest()
    rules.finish()


class _Source:
    """Decompressed bytes of a tar. Raises BadArchive if they exceed `allowance`."""

    def __init__(self, blocks: Iterator[bytes], allowance: SizeAllowance) -> None:
        self._blocks = blocks
        self._allowance = allowance
        self._buffer = memoryview(b"")

    def header(self) -> bytes:
        """Returns the next 512 bytes: a tar header or zeros. Returns no bytes at the end."""
        block = self._exactly(_BLOCK)
        return self._require_length(block, _BLOCK) if block else b""

    def meta(self, size: int) -> bytes:
        if size > _META_MAX_BYTES:
            raise _bad_archive(
                f"has an extended header that is longer than {_META_MAX_BYTES} bytes"
            )
        padded_size = size + _padding(size)
        content = self._require_length(self._exactly(padded_size), padded_size)
        if any(content[size:]):
            raise _bad_archive("has an extended header with data after its end")
        return content[:size]

    def refuse_announced(self, size: int) -> None:
        self._allowance.refuse_beyond(size - len(self._buffer))

    def content(self, size: int) -> Iterator[bytes]:
        while size:
            piece = bytes(self._take(size))
            size -= len(self._require_length(piece, 1))
            yield piece

    def skip_padding(self, size: int) -> None:
        padding = _padding(size)
        self._require_length(self._exactly(padding), padding)

    def skip_rest(self) -> None:
        while self._take(sys.maxsize):
            pass

    def _take(self, max_bytes: int) -> memoryview:
        while not self._buffer and (block := next(self._blocks, None)) is not None:
            self._allowance.take(len(block))
            self._buffer = memoryview(block)
        piece, self._buffer = self._buffer[:max_bytes], self._buffer[max_bytes:]
        return piece

    def _exactly(self, size: int) -> bytes:
        content = bytes(self._take(size))
        while len(content) < size and (more := self._take(size - len(content))):
            content += more
        return content

    @staticmethod
    def _require_length(content: bytes, size: int) -> bytes:
        if len(content) < size:
            raise _bad_archive("is truncated: its last entry is incomplete")
        return content


def _padding(size: int) -> int:
    return -size % _BLOCK


def _read_meta(
    kind: int, content: bytes, of_all: dict[str, bytes], of_next: dict[str, bytes]
) -> None:
    if kind == _LONG_NAME:
        _add(of_next, {"path": _text(content)})
    elif kind == _LONG_LINK:
        _add(of_next, {"linkpath": _text(content)})
    else:
        records = dict(_pax(content))
        if any(name.startswith("GNU.sparse") for name in records):
            raise _bad_archive("has a sparse file: create the archive without sparse files")
        if kind == _PAX:
            names = (_OF_ENTRY | _OWNERS) & records.keys()
            _add(of_next, {name: records[name] for name in names})
        elif not _OF_ENTRY.isdisjoint(records):
            raise _bad_archive("has a global header that sets the path or size of all entries")
        else:
            of_all |= {name: records[name] for name in _OWNERS & records.keys()}


def _add(attributes: dict[str, bytes], more: dict[str, bytes]) -> None:
    if not _OF_ENTRY.isdisjoint(attributes.keys() & more.keys()):
        # Readers disagree on the value that counts.
        raise _bad_archive("has an entry with two paths or two sizes")
    attributes |= more


def _text(field: bytes) -> bytes:
    return field.split(b"\0")[0]


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        number = int.from_bytes(field) & ((1 << (8 * len(field) - 1)) - 1)
        if field[0] == 0xFF or number >> 62:
            raise _bad_archive("has a header with a number out of range")
        return number
    text = _text(field).strip(b" ")
    if not text:
        return 0
    if text.strip(b"01234567"):
        raise _bad_archive("is not a tar: a numeric header field is not a number")
    return int(text, 8)


def _owner(attribute: bytes | None, field: bytes) -> int:
    if attribute is not None:
        return int(attribute) if attribute.isdigit() and len(attribute) <= 18 else 0
    return 0 if field[0] == 0xFF else _number(field)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise _bad_archive("has an extended header with an invalid number")
    return int(text)


def _kind(block: bytes) -> int:
    kind = block[156]
    return FOLDER if not kind and _text(block[:100]).endswith(b"/") else kind


def _name(block: bytes) -> bytes:
    name, prefix = _text(block[:100]), _text(block[345:500])
    if prefix and block[257:263] != _USTAR:
        # Old GNU archives store times here, and some readers take them for a part of the name.
        raise _bad_archive("has headers of an old format: write it as ustar or pax")
    return prefix + b"/" + name if prefix else name


def _pax(content: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(content):
        digits = content[at : at + 12].split(b" ")[0]
        length = _decimal(digits)
        record = content[at + len(digits) + 1 : at + length]
        name, separator, value = record.partition(b"=")
        if length <= len(digits) or not separator or not record.endswith(b"\n"):
            raise _bad_archive("has a malformed extended header")
        yield name.decode("utf-8", "replace"), value[:-1]
        at += length
