"""What a run wrote, as its keeper kept it (decisions 6.4). Reads folders; blocks for as long as that takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.runtime.keeper import Folder, Line, Stream

LINES_MAX: Final = 1_000


class Lines(NamedTuple):
    """Of one stream, old to new, and the position behind them."""

    lines: Sequence[Line]
    position: int


def newest(path: Path, stream: Stream, count: int = LINES_MAX) -> Lines:
    """The last ones; of a folder that is gone there are none."""
    folder = Folder(path)
    end = folder.end()
    found: deque[Line] = deque(maxlen=count)
    starts = [start for start, _ in folder.segments()]
    # From the last segment back, until there are enough.
    for start, stop in zip(reversed(starts), [end, *reversed(starts)], strict=False):
        segment = [
            line
            for line in folder.lines(start)
            if start < line.position <= stop and line.stream == stream
        ]
        found.extendleft(reversed(segment[-(count - len(found)) :] if segment else []))
        if len(found) >= count:
            break
    return Lines(list(found), end)


def after(path: Path, stream: Stream, position: int, count: int = LINES_MAX) -> Lines:
    """The first ones behind a position; who goes on from the answer's misses none."""
    folder = Folder(path)
    found: list[Line] = []
    last = position
    for line in folder.lines(position):
        last = line.position
        if line.stream == stream:
            found.append(line)
            if len(found) >= count:
                break
    return Lines(found, last)


def is_within(path: Path, position: int) -> bool:
    """Whether the log has come so far."""
    return position <= Folder(path).end()
