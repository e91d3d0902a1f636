"""Streaming validation of a build's tar, without unpacking. Pure.

Refuses entries outside of the target folder, devices, sparse files and oversized archives. Also
refuses ambiguous headers, because the unpacker could read them in another way.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Final

from pyservice.runtime.archive_rules import (
    FILES,
    FOLDER,
    BadArchive,
    FolderRules,
    ImplicitFolders,
    RootRules,
    Rules,
    SizeAllowance,
)
from pyservice.runtime.decompression import (
    MAGIC_BYTES,
    BadCompression,
    Decompressor,
    decompressor,
    detect_compression,
)

_META_MAX_BYTES: Final = 64 << 10
NAMES_MAX: Final = 10_000
_SMALL_FILES_MAX: Final = 64
_BLOCK: Final = 512
_USTAR: Final = b"ustar\0"
_PIECE_BYTES: Final = 64 << 10

_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK = b"x"[0], b"g"[0], b"L"[0], b"K"[0]
_OF_ENTRY: Final = frozenset(("path", "linkpath", "size"))
_META: Final = frozenset((_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK))


def _broken(reason: str) -> BadArchive:
    return BadArchive("", "invalid", reason)


class ArchiveValidator:
    """Validates a tar. Call `feed` with all of its bytes, then `finish`. Both raise BadArchive.

    Each iteration takes a few milliseconds, because a small file can unpack to a lot of work.
    """

    def __init__(
        self,
        compression: str,
        allowance: SizeAllowance,
        *,
        rules: Rules | None = None,
        small: SmallFiles | None = None,
        layers: PackedLayers | None = None,
    ) -> None:
        self._unpack = decompressor(compression) if compression != "none" else None
        self._walk = _Walk(allowance, rules or FolderRules(), small, layers)
        self._layers = layers
        if layers is not None:
            counted = layers.allowance
            layers.walk_with(lambda: _Walk(counted, RootRules(), None, None))

    def feed(self, content: bytes) -> Iterator[None]:
        try:
            for taken in _cut(content):
                for piece in (taken,) if self._unpack is None else self._unpack.pieces(taken):
                    for part in _cut(piece):
                        self._walk.feed(part)
                        yield
                        if self._layers is not None:
                            yield from self._layers.work()
                yield
        except BadCompression as error:
            raise _broken(str(error)) from None

    def finish(self) -> Iterator[None]:
        if self._unpack is not None:
            try:
                self._unpack.finish()
            except BadCompression as error:
                raise _broken(str(error)) from None
        yield from self._walk.finish()
        if self._layers is not None:
            self._layers.finish()


def _cut(content: bytes) -> Iterator[bytes]:
    return (content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES))


class SmallFiles:
    def __init__(self, name: str | None, max_bytes: int) -> None:
        """Stores the file `name`, or without `name` all files that begin like JSON objects or
        lists.

        Stores up to `max_bytes` + 1 bytes of a file. The extra byte shows that the file is too
        long.
        """
        self.files: dict[str, bytearray] = {}
        self.names: set[str] = set()
        self._name = name
        self._max_bytes = max_bytes
        self._at = ""
        self._left = 0

    def begins(self, kind: int, name: bytes, size: int) -> None:
        self._left = 0
        if kind == FOLDER:
            return
        self._at = normal_path(name.decode("utf-8", "replace"))
        self.files.pop(self._at, None)
        if self._name is None:
            self.names.add(self._at)
            if len(self.names) > NAMES_MAX:
                raise BadArchive("", "too-many", f"must have at most {NAMES_MAX} files")
        elif self._at != self._name:
            return
        if kind in FILES:
            self._left = min(size, self._max_bytes + 1)
            if self._name is not None:
                self.files[self._at] = bytearray()

    def take(self, content: bytes) -> None:
        if not self._left:
            return
        piece = content[: self._left]
        self._left -= len(piece)
        if self._at not in self.files:
            if not piece.startswith((b"{", b"[")):
                self._left = 0
                return
            if len(self.files) >= _SMALL_FILES_MAX:
                raise BadArchive("", "too-many", "has too many files that say what is in it")
            self.files[self._at] = bytearray()
        self.files[self._at] += piece


def normal_path(name: str) -> str:
    return "/".join(word for word in name.split("/") if word not in ("", "."))


class PackedLayers:
    """Counts the unpacked size of all files in an image's archive, and validates the files that are
    tars.
    """

    def __init__(self, allowance: SizeAllowance) -> None:
        self.allowance = allowance
        self._walk: _Walk | None = None
        self._new_walk: Callable[[], _Walk] | None = None
        self._waiting: collections.deque[bytes | None] = collections.deque()
        self._left = 0
        self._begin: bytes | None = b""
        self._unpack: Decompressor | None = None

    def walk_with(self, new_walk: Callable[[], _Walk]) -> None:
        self._new_walk = new_walk

    def begins(self, kind: int, size: int) -> None:
        self._left = size if kind in FILES else 0
        self._waiting.append(None)

    def take(self, content: bytes) -> None:
        piece = content[: self._left]
        self._left -= len(piece)
        if piece:
            self._waiting.append(piece)

    def work(self) -> Iterator[None]:
        while self._waiting:
            piece = self._waiting.popleft()
            if piece is None:
                self._ends()
                continue
            if self._begin is not None:
                self._begin += piece
                if len(self._begin) < MAGIC_BYTES:
                    continue
                piece, self._begin = self._begin, None
                compression = detect_compression(piece)
                self._unpack = None if compression == "none" else decompressor(compression)
                self._walk = None if self._new_walk is None else self._new_walk()
            yield from self._counted(piece)

    def finish(self) -> None:
        self._ends()

    def _ends(self) -> None:
        if self._begin:
            self.allowance.take(len(self._begin))
        self._begin, self._unpack, self._walk = b"", None, None

    def _counted(self, piece: bytes) -> Iterator[None]:
        if self._unpack is None:
            yield from self._walked(piece)
            return
        try:
            for part in self._unpack.pieces(piece):
                yield from self._walked(part)
        except BadCompression:
            self._unpack = self._walk = None

    def _walked(self, content: bytes) -> Iterator[None]:
        for at in range(0, len(content), _PIECE_BYTES):
            piece = content[at : at + _PIECE_BYTES]
            if self._walk is None:
                self.allowance.take(len(piece))
            else:
                try:
                    self._walk.feed(piece)
                except BadArchive as error:
                    if error.entry or error.word != "invalid":
                        raise
                    self._walk = None
            yield


class _Walk:
    def __init__(
        self,
        allowance: SizeAllowance,
        rules: Rules,
        small: SmallFiles | None,
        layers: PackedLayers | None,
    ) -> None:
        self._rules = rules
        self._small = small
        self._layers = layers
        self._allowance = allowance
        self._folders = ImplicitFolders()
        self._has_entries = False
        self._buffer = bytearray()
        self._skip = 0
        self._meta: tuple[int, int] | None = None
        self._override: dict[str, bytes] = {}
        self._zero_blocks = 0

    def feed(self, content: bytes) -> None:
        self._allowance.take(len(content))
        if self._zero_blocks >= 2:
            return
        at = min(self._skip, len(content))
        self._skip -= at
        if at:
            self._tell(content[:at])
        if at < len(content):
            self._buffer += content[at:] if at else content
            self._take()

    def _take(self) -> None:
        buffer, at = self._buffer, 0
        while self._zero_blocks < 2:
            if self._meta is not None:
                kind, size = self._meta
                padded = _padded(size)
                if len(buffer) - at < padded:
                    break
                if any(buffer[at + size : at + padded]):
                    raise _broken("has a name or attributes that go on behind their end")
                self._take_meta(kind, bytes(buffer[at : at + size]))
                self._meta = None
                at += padded
                continue
            if len(buffer) - at < _BLOCK:
                break
            content = self._header(bytes(buffer[at : at + _BLOCK]))
            at += _BLOCK
            jump = min(content, len(buffer) - at)
            if jump:
                self._tell(bytes(buffer[at : at + jump]))
            self._skip, at = content - jump, at + jump
            if self._skip:
                break
        del buffer[:at]

    def _tell(self, content: bytes) -> None:
        if self._small is not None:
            self._small.take(content)
        if self._layers is not None:
            self._layers.take(content)

    def finish(self) -> Iterator[None]:
        if not self._has_entries:
            raise _broken("is not a tar with something in it")
        if self._skip or self._meta is not None or (self._buffer and self._zero_blocks < 2):
            raise _broken("is cut off: its last entry is not whole")
        yield from self._rules.finish()

    def _header(self, block: bytes) -> int:
        if not any(block):
            self._zero_blocks += 1
            return 0
        self._zero_blocks = 0
        if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 32:
            raise _broken("is not a tar: a header has the wrong checksum")
        kind, size = _kind(block), _number(block[124:136])
        if kind in _META:
            if size > _META_MAX_BYTES:
                raise _broken("has a name or attributes that are too long")
            self._meta = (kind, size)
            return 0
        override, self._override = self._override, {}
        if "size" in override:
            size = _decimal(override["size"])
        name = override["path"] if "path" in override else _name(block)
        link = override.get("linkpath", block[157:257].split(b"\0")[0])
        if kind not in FILES:
            size = 0
        self._has_entries = True
        self._rules.entry(kind, name, link)
        self._allowance.take_entry(self._folders.made_by(kind, name), size)
        if self._small is not None:
            self._small.begins(kind, name, size)
        if self._layers is not None:
            self._layers.begins(kind, size)
        self._allowance.refuse_beyond(size - len(self._buffer))
        return _padded(size)

    def _take_meta(self, kind: int, content: bytes) -> None:
        if kind == _LONG_NAME:
            self._tell_more({"path": content.split(b"\0")[0]})
        elif kind == _LONG_LINK:
            self._tell_more({"linkpath": content.split(b"\0")[0]})
        else:
            records = dict(_pax(content))
            if any(name.startswith("GNU.sparse") for name in records):
                raise _broken("has a sparse file, which cannot be unpacked")
            if kind == _PAX:
                self._tell_more({name: records[name] for name in _OF_ENTRY & records.keys()})
            elif not _OF_ENTRY.isdisjoint(records):
                raise _broken("gives all entries one path or size")

    def _tell_more(self, told: dict[str, bytes]) -> None:
        if not self._override.keys().isdisjoint(told):
            # Readers disagree on the value that counts.
            raise _broken("gives an entry two paths or sizes")
        self._override |= told


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        number = int.from_bytes(field) & ((1 << (8 * len(field) - 1)) - 1)
        if field[0] == 0xFF or number >> 62:
            raise _broken("has a header with a number out of range")
        return number
    text = field.split(b"\0")[0].strip(b" ")
    if not text:
        return 0
    if text.strip(b"01234567"):
        raise _broken("is not a tar: a header has no number where one belongs")
    return int(text, 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise _broken("has attributes with a number out of range")
    return int(text)


def _kind(block: bytes) -> int:
    kind = block[156]
    return FOLDER if not kind and block[:100].split(b"\0")[0].endswith(b"/") else kind


def _name(block: bytes) -> bytes:
    name, prefix = block[:100].split(b"\0")[0], block[345:500].split(b"\0")[0]
    if prefix and block[257:263] != _USTAR:
        # Old GNU archives store times here, and some readers take them for a part of the name.
        raise _broken("has headers of an old format: write it as ustar or pax")
    return prefix + b"/" + name if prefix else name


def _pax(content: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(content):
        digits = content[at : at + 12].split(b" ")[0]
        length = _decimal(digits)
        record = content[at + len(digits) + 1 : at + length]
        name, separator, value = record.partition(b"=")
        if length <= len(digits) or not separator or not record.endswith(b"\n"):
            raise _broken("has attributes that are no attributes")
        yield name.decode("utf-8", "replace"), value[:-1]
        at += length
