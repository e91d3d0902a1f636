"""One pass over a part of a log, forward or back: blocks, each read once, in which the lines of a stream are found.

A pass reads no more than it was given, and tells where it began and ended, which are ends of lines. Segments that go
meanwhile had nothing. Blocks: a pass blocks for as long as that takes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.runtime.keeper import Folder, Line, Stream, end_of

_BLOCK_BYTES: Final = 64 << 10
"""Longer than any line."""

_LINES: Final[Mapping[Stream, re.Pattern[bytes]]] = {
    "std_out": re.compile(rb"\n(\d+) ([oO]) ([^\n]*)"),
    "std_err": re.compile(rb"\n(\d+) ([eE]) ([^\n]*)"),
}
"""With the end of the line before: whatever is not of the stream is passed over without a look into it."""


class Span(NamedTuple):
    """Part of a log, from the end of one line to that of another."""

    start: int
    stop: int


NOWHERE: Final = Span(0, 0)


class Pass(NamedTuple):
    """What was found between two positions, old to new."""

    lines: list[Line]
    start: int
    stop: int
    looked_bytes: int
    is_last: bool
    """There is nothing beyond it, as of then."""


def look_on(
    path: Path, stream: Stream, at: int, count: int, silent: Span, bytes_max: int
) -> Pass | None:
    """From a position on; None: the log has not come so far. Nothing of the stream is in `silent`: it is not read."""
    found: list[Line] = []
    looked = 0
    segments = Folder(path).segments()
    if at > end_of(segments):
        return None
    start = at
    for number, (begin, file) in enumerate(segments):
        is_growing = number + 1 == len(segments)
        end = None if is_growing else segments[number + 1][0]
        if end is not None and end <= at:
            continue
        at = max(at, begin)
        with _opened(file) as descriptor:
            while descriptor is not None:
                if silent.start <= at < silent.stop:
                    at = silent.stop
                if end is not None and at >= end:
                    break
                block = os.pread(descriptor, _BLOCK_BYTES, at - begin)
                looked += len(block)
                whole = block.rfind(b"\n") + 1
                if not whole:
                    break
                for line in _lines(stream, block[:whole], at):
                    found.append(line)
                    if len(found) >= count:
                        return Pass(found, start, line.position, looked, is_last=False)
                at += whole
                if looked >= bytes_max:
                    return Pass(found, start, at, looked, is_last=False)
        # What has no end of line there never gets one.
        at = at if end is None else max(at, end)
    return Pass(found, start, at, looked, is_last=True)


def look_back(
    path: Path, stream: Stream, at: int | None, count: int, silent: Span, bytes_max: int
) -> Pass:
    """From a position back, None: from the end. Nothing of the stream is in `silent`: it is not read."""
    found: deque[Line] = deque()
    looked = 0
    stop = at
    for begin, file in reversed(Folder(path).segments()):
        if at is not None and at <= begin:
            continue
        with _opened(file) as descriptor:
            end = begin if descriptor is None else begin + os.fstat(descriptor).st_size
            at = end if at is None else min(at, end)
            while descriptor is not None and at > begin:
                if silent.start < at <= silent.stop:
                    stop = at if stop is None else stop
                    at = max(begin, silent.start)
                    continue
                low = max(begin, at - _BLOCK_BYTES)
                block = os.pread(descriptor, at - low, low - begin)
                looked += len(block)
                # Whose begin is not here is found with the block before.
                first = 0 if low == begin else block.find(b"\n") + 1
                whole = block.rfind(b"\n") + 1
                stop = low + whole if stop is None else stop
                lines = [*_lines(stream, block[first:whole], low + first)]
                found.extendleft(reversed(lines[-(count - len(found)) :]))
                at = low + first if first < whole else low
                if len(found) >= count:
                    return Pass([*found], found[0].position, stop, looked, is_last=False)
                if looked >= bytes_max:
                    return Pass([*found], at, stop, looked, is_last=False)
        stop = at if stop is None else stop
    return Pass([*found], at or 0, stop or 0, looked, is_last=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """None: it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lines(stream: Stream, block: bytes, at: int) -> Iterator[Line]:
    """Whole lines at a position."""
    # Before the first line stands the end of another, too.
    for match in _LINES[stream].finditer(b"\n" + block):
        time_us, letter, text = match.groups()
        yield Line(
            at + match.end(),
            int(time_us),
            stream,
            letter.isupper(),
            text.decode(errors="replace"),
        )
