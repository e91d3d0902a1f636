"""Log of a container in the files of its node: `<start>.log` in the folder of the container.

A line is `<time> <stdout|stderr> <tags> <text>`. The tag `P` marks a text that the next line of its
stream continues. The node renames a full file to `<start>.log.<time>`, compresses older ones, and
removes the oldest.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from pyservice.pb.hosting.internal.v1.node_logs_pb2 import LogCursor, OpenLine

LAST_BYTES: Final = 4 << 20
"""Limit of the output that is read after the end of a container. Older output is skipped."""
LINE_BYTES_MAX: Final = 128 << 10
"""Limit of a line in a file. A longer one is skipped."""
TEXT_MAX: Final = 4_096
"""Limit of a text in the log of a run. A longer one continues in the next line."""

_NAME: Final = re.compile(r"(\d{1,6})\.log(?:\.(\d{8}-\d{6})(?:\.gz)?)?")
_COMPRESSED: Final = ".gz"
_GROWING: Final = "~"
"""Follows all times of renamed files."""
_TIME_MAX: Final = 64
_OUT: Final = b"stdout"
_LETTERS: Final[Mapping[bytes, tuple[bytes, bytes]]] = {_OUT: (b"o", b"O"), b"stderr": (b"e", b"E")}
"""Letters of a stream in the log of a run: for the beginning of a line, and for the rest of it."""
_PARTIAL: Final = b"P"
_CHARACTER_MAX: Final = 4
_DAMAGED: Final = (OSError, EOFError, zlib.error)


class LogPiece(NamedTuple):
    lines: bytes
    """Lines in the form of the log of a run."""
    cursor: LogCursor
    """Position behind them."""
    has_gap: bool
    """Whether output between the earlier cursor and this one is missing."""
    is_all: bool
    """Whether this is the end of the log."""


class ContainerLog:
    """Reader of one log. It keeps a file open, and reads it to its end after it was removed.

    Blocks, so use it in threads, one at a time.
    """

    def __init__(self, folder: Path, pod_uid: str) -> None:
        self._folder = folder
        self._pod_uid = pod_uid
        self._file: BinaryIO | None = None
        self._opened = (0, "")
        """Key of the open file."""
        self._following = (0, "")
        """Key of the file after the open one, if an earlier call has seen it grow."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(
        self, after: LogCursor, bytes_max: int, *, correction_us: int = 0, has_ended: bool = False
    ) -> LogPiece:
        """Reads the lines behind a cursor, from at most `bytes_max` bytes of the files.

        `bytes_max` is at least `LINE_BYTES_MAX`. Adds `correction_us` to the time of each line.
        `has_ended`: the container writes nothing more. Raises OSError.
        """
        at = LogCursor()
        if after.pod_uid == self._pod_uid:
            at.CopyFrom(after)
        reading = _Reading(at, self._pod_uid, correction_us)
        self._seek(reading, has_ended=has_ended)
        if has_ended:
            self._skip_old(reading)
        left = bytes_max
        is_all = False
        while self._file is not None and left >= LINE_BYTES_MAX and not is_all:
            block = self._block(reading, left)
            left -= block.taken
            if block.is_end and not self._go_on(reading, has_ended=has_ended):
                is_all = True
        is_all = (is_all or self._file is None) and not self._following[1]
        if is_all and has_ended:
            reading.finish()
        return LogPiece(b"".join(reading.lines), at, reading.has_gap, is_all)

    def _block(self, reading: _Reading, length: int) -> _Block:
        file, at = self._file, reading.at
        assert file is not None
        try:
            file.seek(at.offset)
            content = file.read(length)
        except _DAMAGED:
            reading.skip()
            return _Block(0, is_end=True)
        whole = content.rfind(b"\n") + 1
        if not whole and len(content) >= LINE_BYTES_MAX:
            reading.skip()
            whole = len(content)
        else:
            reading.take(content[:whole])
        at.offset += whole
        return _Block(whole, is_end=len(content) < length)

    def _seek(self, reading: _Reading, *, has_ended: bool) -> None:
        """Opens the file of the position, or the oldest one if the file is gone."""
        at = reading.at
        key = (at.start, at.first_time)
        if self._file is not None and self._opened == key:
            return
        self.close()
        self._following = (0, "")
        files = self._files()
        if (file := next((one for one in files if one.key == key), None)) is not None:
            self._open(file)
            return
        if at.first_time or (has_ended and not files):
            reading.skip()
            reading.move(0, "", 0)
        if files:
            self._begin(files[0], reading)

    def _go_on(self, reading: _Reading, *, has_ended: bool) -> bool:
        """Opens the next file. Returns False if there is none, or if it has just appeared.

        The runtime may write to the earlier file for a moment after the next one has a line.
        """
        if self._is_newest():
            return False
        rest = self._rest()
        later = rest[1:] if rest else self._files()
        if not later:
            return False
        file = later[0]
        if file.order == _GROWING and file.key != self._following and not has_ended:
            self._following = file.key
            return False
        self._begin(file, reading)
        return True

    def _is_newest(self) -> bool:
        start, _ = self._opened
        assert self._file is not None
        with contextlib.suppress(OSError):
            newest = os.stat(self._folder / f"{start}.log", follow_symlinks=False)
            is_same = os.path.samestat(newest, os.fstat(self._file.fileno()))
            return is_same and not os.path.lexists(self._folder / f"{start + 1}.log")
        return False

    def _skip_old(self, reading: _Reading) -> None:
        """Skips the beginning of a long rest. The newest lines say how the container ended."""
        at, rest = reading.at, self._rest()
        lengths = [_length(file.path) for file in rest]
        surplus = sum(lengths) - at.offset - LAST_BYTES
        if surplus <= 0:
            return
        reading.skip()
        skipped = at.offset + surplus
        for file, length in zip(rest, lengths, strict=True):
            if skipped < length:
                if file.key != self._opened:
                    self._begin(file, reading)
                assert self._file is not None
                with contextlib.suppress(*_DAMAGED):
                    # A position at the beginning of a line stays there.
                    self._file.seek(max(0, skipped - 1))
                    at.offset = max(0, skipped - 1) + len(self._file.readline(LINE_BYTES_MAX))
                return
            skipped -= length

    def _begin(self, file: _File, reading: _Reading) -> None:
        self._open(file)
        reading.move(file.start, file.first_time, 0)

    def _open(self, file: _File) -> None:
        self.close()
        self._file = _opened(file.path)
        self._opened, self._following = file.key, (0, "")

    def _rest(self) -> list[_File]:
        """Returns the open file and all later ones. Empty if the open one was removed."""
        files = self._files()
        keys = [file.key for file in files]
        return files[keys.index(self._opened) :] if self._opened in keys else []

    def _files(self) -> list[_File]:
        """Returns the files of the log that have a line, oldest first."""
        files: list[_File] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            files = sorted(file for file in map(_file, entries) if file is not None)
        # For a moment there are a file and its compressed form.
        return [*{file.key: file for file in files}.values()]


class _Block(NamedTuple):
    taken: int
    """Bytes of whole lines."""
    is_end: bool
    """Whether the file has no more."""


class _File(NamedTuple):
    start: int
    """Number of the container's start."""
    order: str
    """Order of the files of one start."""
    path: Path
    first_time: str
    """Time of the first line. It stays when the file is renamed or compressed."""

    @property
    def key(self) -> tuple[int, str]:
        return self.start, self.first_time


def _file(entry: os.DirEntry[str]) -> _File | None:
    """Returns None for a file of another kind, and for one without a line."""
    found = _NAME.fullmatch(entry.name)
    # Everything that a node writes there is a file. A link may lead anywhere.
    if found is None or not entry.is_file(follow_symlinks=False):
        return None
    path = Path(entry.path)
    with contextlib.suppress(*_DAMAGED), _opened(path) as file:
        time, space, _ = file.read(_TIME_MAX).partition(b" ")
        if space:
            first_time = time.decode(errors="replace")
            return _File(int(found[1]), found[2] or _GROWING, path, first_time)
    return None


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == _COMPRESSED else path.open("rb")


def _length(path: Path) -> int:
    """Returns the length of the content. Raises OSError."""
    if path.suffix != _COMPRESSED:
        return path.stat().st_size
    with path.open("rb") as file:
        # The format ends with the length of the content.
        file.seek(-4, io.SEEK_END)
        return int.from_bytes(file.read(4), "little")


class _Reading:
    """Lines that are read, and the position behind them."""

    def __init__(self, at: LogCursor, pod_uid: str, correction_us: int) -> None:
        self.at = at
        self.lines: list[bytes] = []
        self.has_gap = False
        self._pod_uid = pod_uid
        self._correction_us = correction_us

    def move(self, start: int, first_time: str, offset: int) -> None:
        self.at.pod_uid = self._pod_uid
        self.at.start, self.at.first_time, self.at.offset = start, first_time, offset

    def skip(self) -> None:
        """Notes that output is missing here."""
        self.has_gap = True
        self.at.ClearField("std_out")
        self.at.ClearField("std_err")

    def take(self, content: bytes) -> None:
        """Takes whole lines of a file. Skips those of another form."""
        for line in content.split(b"\n")[:-1]:
            try:
                time, stream, tags, text = line.split(b" ", 3)
                letters, time_us = _LETTERS[stream], self._corrected(time)
            except (ValueError, KeyError, OverflowError):
                self.has_gap = True
                continue
            open_line = self._open_line(stream)
            text = open_line.text + text if open_line.text else text
            while len(text) > TEXT_MAX:
                cut = _cut(text)
                self._write(letters, open_line, time_us, text[:cut])
                open_line.is_continuation = True
                text = text[cut:]
            if tags.split(b":", 1)[0] == _PARTIAL:
                open_line.text, open_line.time_us = text, time_us
            else:
                self._write(letters, open_line, time_us, text)
                open_line.Clear()

    def finish(self) -> None:
        """Takes the texts of unfinished lines, because the container has ended."""
        for stream, letters in _LETTERS.items():
            open_line = self._open_line(stream)
            if open_line.text:
                self._write(letters, open_line, open_line.time_us, open_line.text)
                open_line.Clear()

    def _open_line(self, stream: bytes) -> OpenLine:
        return self.at.std_out if stream == _OUT else self.at.std_err

    def _write(
        self, letters: tuple[bytes, bytes], open_line: OpenLine, time_us: int, text: bytes
    ) -> None:
        letter = letters[open_line.is_continuation]
        self.lines.append(b"%d %b %b\n" % (time_us, letter, text))

    def _corrected(self, time: bytes) -> int:
        moment = datetime.fromisoformat(time.decode("ascii"))
        return max(0, round(moment.timestamp() * 1_000_000) + self._correction_us)


def _cut(text: bytes) -> int:
    """Returns a length up to `TEXT_MAX` that divides no UTF-8 character."""
    for cut in range(TEXT_MAX, TEXT_MAX - _CHARACTER_MAX, -1):
        if text[cut] & 0b1100_0000 != 0b1000_0000:
            return cut
    return TEXT_MAX
