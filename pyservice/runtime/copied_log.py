"""Log of a run on another machine, which sends it in parts.

Each write ends with a cursor: a line with the position of the sender behind the lines. A crash loses
the end of the file, so lines and cursor are lost together, and the sender repeats them.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import re
import time
from pathlib import Path
from typing import Final

from pyservice.runtime.run_folder import CURSOR, RunFolder, log_end, log_text

SEGMENT_BYTES: Final = 1 << 20

_TAIL_BYTES: Final = 64 << 10
_CURSOR_LINE: Final = re.compile(rb"^\d+ %b ([A-Za-z0-9+/=]*)\n" % CURSOR.encode(), re.MULTILINE)
_OUTPUT_LINE: Final = re.compile(rb"^\d+ [oOeE] ", re.MULTILINE)


class CopiedLog:
    """Blocks, so use it in threads, one at a time. Its methods raise OSError.

    After an error, the next call removes the unfinished write.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        """`path` is the folder of the run. Above `bytes_max`, the oldest segments are removed."""
        self._folder = RunFolder(path)
        self._bytes_max = max(bytes_max, 2 * SEGMENT_BYTES)
        self._cursor: bytes | None = None
        """None: not read yet."""

    @property
    def known_cursor(self) -> bytes | None:
        """Returns the cursor if it is known without a read."""
        return self._cursor

    def cursor(self) -> bytes:
        """Returns the cursor behind the last complete write. Empty: there is none."""
        if self._cursor is None:
            self._cursor = self._recover()
        return self._cursor

    def append(self, lines: bytes, cursor: bytes, *, is_synced: bool = False) -> None:
        """Appends whole lines and their cursor. Waits for the disk if `is_synced` is true."""
        self.cursor()
        self._cursor = None
        self._write(lines + _cursor_line(cursor), is_synced=is_synced)
        self._cursor = cursor

    def add_line(self, text: str) -> None:
        """Appends a line to `service`."""
        cursor = self.cursor()
        self._cursor = None
        end = _cursor_line(cursor) if cursor else b""
        self._write(service_line(text) + end, is_synced=False)
        self._cursor = cursor

    def _write(self, content: bytes, *, is_synced: bool) -> None:
        segments = self._folder.segments()
        end = log_end(segments)
        if not segments:
            self._folder.path.mkdir(mode=0o711, exist_ok=True)
            (self._folder.path / "log").mkdir(mode=0o700, exist_ok=True)
        elif end - segments[-1][0] < SEGMENT_BYTES:
            end = segments[-1][0]
        else:
            # The last sync covers one segment only.
            _sync(segments[-1][1])
        path = self._folder.path / "log" / str(end)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.write(descriptor, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            if is_synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        segments = self._folder.segments()
        end = log_end(segments)
        while len(segments) > 1 and end - segments[0][0] > self._bytes_max:
            segments.pop(0)[1].unlink(missing_ok=True)

    def _recover(self) -> bytes:
        """Removes what follows the last cursor, and returns the cursor."""
        segments = self._folder.segments()
        if segments and (found := _last_cursor(segments[-1][1])) is not None:
            return found
        for number in reversed(range(len(segments))):
            content = segments[number][1].read_bytes()
            if cursors := [*_CURSOR_LINE.finditer(content)]:
                self._cut(number, cursors[-1].end())
                return base64.b64decode(cursors[-1][1])
        # Without a cursor, output is from an unfinished write.
        for number, (_, path) in enumerate(segments):
            content = path.read_bytes()
            output = _OUTPUT_LINE.search(content)
            whole = content.rfind(b"\n") + 1 if output is None else output.start()
            if whole < len(content):
                self._cut(number, whole)
                break
        return b""

    def _cut(self, number: int, length: int) -> None:
        segments = self._folder.segments()
        for _, path in reversed(segments[number + 1 :]):
            path.unlink()
        os.truncate(segments[number][1], length)


def service_line(text: str) -> bytes:
    """Returns a line to `service` as it is in a log."""
    return f"{_now_us()} s {log_text(text)}\n".encode(errors="replace")


def _last_cursor(path: Path) -> bytes | None:
    """Returns the cursor at the end of a file, or None if something else is there."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - _TAIL_BYTES))
        tail = file.read()
        found = _CURSOR_LINE.fullmatch(tail, tail.rfind(b"\n", 0, -1) + 1)
        return None if found is None else base64.b64decode(found[1])
    return None


def _cursor_line(cursor: bytes) -> bytes:
    return b"%d %b %b\n" % (_now_us(), CURSOR.encode(), base64.b64encode(cursor))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now_us() -> int:
    return time.time_ns() // 1_000
