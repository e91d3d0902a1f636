"""Reading of run logs for many concurrent readers.

Dedicated threads read a few MiB for each reader in turn. A part of a log without lines of the
requested stream is not read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from pyservice.runtime.run_folder import (
    STREAMS,
    LogLine,
    LogSelection,
    LogStream,
    RunFolder,
    log_end,
)

_BLOCK_BYTES: Final = 64 << 10

_LINE_PATTERNS: Final[Mapping[LogSelection, re.Pattern[bytes]]] = {
    "std_out": re.compile(rb"\n(\d+) ([oO]) ([^\n]*)"),
    "std_err": re.compile(rb"\n(\d+) ([eE]) ([^\n]*)"),
    "service": re.compile(rb"\n(\d+) (s) ([^\n]*)"),
    "all": re.compile(rb"\n(\d+) ([oOeEs]) ([^\n]*)"),
}
"""Patterns of log lines. The leading newline lets a pattern skip lines of other streams."""


class LogSpan(NamedTuple):
    start: int
    stop: int


EMPTY_SPAN: Final = LogSpan(0, 0)


class LogScan(NamedTuple):
    lines: list[LogLine]
    start: int
    stop: int
    read_bytes: int
    is_last: bool


def read_forward(
    path: Path, stream: LogSelection, at: int, count: int, silent: LogSpan, bytes_max: int
) -> LogScan | None:
    """Reads the lines of one stream from a position on. Returns None if the log is shorter.

    Skips the part `silent` of the log, which has no line of the stream.
    """
    log_lines: list[LogLine] = []
    read_bytes = 0
    segments = RunFolder(path).segments()
    if at > log_end(segments):
        return None
    start = at
    for number, (begin, file) in enumerate(segments):
        is_growing = number + 1 == len(segments)
        end = None if is_growing else segments[number + 1][0]
        if end is not None and end <= at:
            continue
        at = max(at, begin)
        with _open_segment(file) as descriptor:
            while descriptor is not None:
                if silent.start <= at < silent.stop:
                    at = silent.stop
                if end is not None and at >= end:
                    break
                block = os.pread(descriptor, _BLOCK_BYTES, at - begin)
                read_bytes += len(block)
                whole_bytes = block.rfind(b"\n") + 1
                if not whole_bytes:
                    break
                for line in _lines_in(stream, block[:whole_bytes], at):
                    log_lines.append(line)
                    if len(log_lines) >= count:
                        return LogScan(log_lines, start, line.position, read_bytes, is_last=False)
                at += whole_bytes
                if read_bytes >= bytes_max:
                    return LogScan(log_lines, start, at, read_bytes, is_last=False)
        at = at if end is None else max(at, end)
    return LogScan(log_lines, start, at, read_bytes, is_last=True)


def read_backward(
    path: Path, stream: LogSelection, at: int | None, count: int, silent: LogSpan, bytes_max: int
) -> LogScan:
    log_lines: deque[LogLine] = deque()
    read_bytes = 0
    stop = at
    for begin, file in reversed(RunFolder(path).segments()):
        if at is not None and at <= begin:
            continue
        with _open_segment(file) as descriptor:
            end = begin if descriptor is None else begin + os.fstat(descriptor).st_size
            at = end if at is None else min(at, end)
            while descriptor is not None and at > begin:
                if silent.start < at <= silent.stop:
                    stop = at if stop is None else stop
                    at = max(begin, silent.start)
                    continue
                low = max(begin, at - _BLOCK_BYTES)
                block = os.pread(descriptor, at - low, low - begin)
                read_bytes += len(block)
                first = 0 if low == begin else block.find(b"\n") + 1
                whole_bytes = block.rfind(b"\n") + 1
                stop = low + whole_bytes if stop is None else stop
                lines = [*_lines_in(stream, block[first:whole_bytes], low + first)]
                log_lines.extendleft(reversed(lines[-(count - len(log_lines)) :]))
                at = low + first if first < whole_bytes else low
                if len(log_lines) >= count:
                    return LogScan(
                        [*log_lines], log_lines[0].position, stop, read_bytes, is_last=False
                    )
                if read_bytes >= bytes_max:
                    return LogScan([*log_lines], at, stop, read_bytes, is_last=False)
        stop = at if stop is None else stop
    return LogScan([*log_lines], at or 0, stop or 0, read_bytes, is_last=True)


def newest_line(path: Path, stream: LogStream) -> str | None:
    """Returns the newest line of a stream if it is near the end of the log. Raises OSError."""
    scan = read_backward(path, stream, None, 1, EMPTY_SPAN, _BLOCK_BYTES)
    return scan.lines[-1].text if scan.lines else None


@contextlib.contextmanager
def _open_segment(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lines_in(stream: LogSelection, block: bytes, at: int) -> Iterator[LogLine]:
    for match in _LINE_PATTERNS[stream].finditer(b"\n" + block):
        time_us, letter, text = match.groups()
        yield LogLine(
            at + match.end(),
            int(time_us),
            STREAMS[letter.decode()],
            letter.isupper(),
            text.decode(errors="replace"),
        )


LINES_MAX: Final = 1_000

READ_BYTES_MAX: Final = 64 << 20
"""Equal to the default size of a whole log."""

_SCAN_BYTES: Final = 4 << 20
"""After this many bytes, the next reader has its turn."""

_THREADS: Final = 2
_SPANS_MAX: Final = 10_000
_Result = TypeVar("_Result")


class LogLines(NamedTuple):
    lines: Sequence[LogLine]
    position: int
    is_all: bool = True
    """False if the read limit was reached before the last line."""


class LogReader:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="logs")
        self._silent: dict[tuple[str, LogSelection], LogSpan] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def newest(self, path: Path, stream: LogSelection, count: int = LINES_MAX) -> LogLines:
        silent = self._silent.get((path.name, stream), EMPTY_SPAN)
        lines: deque[LogLine] = deque()
        at: int | None = None
        end, left_bytes, is_all = 0, READ_BYTES_MAX, False
        while not is_all and left_bytes > 0:
            missing = count - len(lines)
            scan = await self._in_thread(
                partial(read_backward, path, stream, at, missing, silent, _SCAN_BYTES)
            )
            end = scan.stop if at is None else end
            lines.extendleft(reversed(scan.lines))
            at, left_bytes = scan.start, left_bytes - scan.read_bytes
            is_all = scan.is_last or len(lines) >= count
        self._remember_silent(path, stream, LogSpan(lines[-1].position if lines else at or 0, end))
        return LogLines(list(lines), end, is_all)

    async def after(
        self, path: Path, stream: LogSelection, position: int, count: int = LINES_MAX
    ) -> LogLines | None:
        """Returns at most `count` lines after a position, or None if the log is shorter."""
        lines: list[LogLine] = []
        at, left_bytes, is_all = position, READ_BYTES_MAX, False
        while not is_all and left_bytes > 0:
            silent = self._silent.get((path.name, stream), EMPTY_SPAN)
            missing = count - len(lines)
            scan = await self._in_thread(
                partial(read_forward, path, stream, at, missing, silent, _SCAN_BYTES)
            )
            if scan is None:
                return None
            lines += scan.lines
            self._remember_silent(
                path, stream, LogSpan(lines[-1].position if lines else position, scan.stop)
            )
            at, left_bytes = scan.stop, left_bytes - scan.read_bytes
            is_all = scan.is_last or len(lines) >= count
        return LogLines(lines, at, is_all)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _remember_silent(self, path: Path, stream: LogSelection, span: LogSpan) -> None:
        key = (path.name, stream)
        previous = self._silent.pop(key, EMPTY_SPAN)
        if span.start <= previous.stop <= span.stop:
            span = LogSpan(min(previous.start, span.start), span.stop)
        elif previous.stop > span.stop:
            span = previous
        self._silent[key] = span
        if len(self._silent) > _SPANS_MAX:
            del self._silent[next(iter(self._silent))]
