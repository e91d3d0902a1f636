"""What runs wrote, as their keepers kept it (decisions 6.4), for many who read at the same time.

A log is looked through in passes, each as long as its bytes, by threads of its own: who starts and unpacks does not
wait for readers, and readers take turns. What is known to have no line of a stream is not read again: not for whoever
waits for one while the other stream grows, and not for whoever asks again and again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from pyservice.runtime.keeper import Line, Stream
from pyservice.runtime.log_passes import NOWHERE, Span, look_back, look_on

LINES_MAX: Final = 1_000

LOOKED_BYTES_MAX: Final = 64 << 20
"""So much of a log is looked through for one answer, which is all that there is of one by default."""

_PASS_BYTES: Final = 4 << 20
"""Then it is another reader's turn."""

_THREADS: Final = 2
_KNOWN_MAX: Final = 10_000
_Result = TypeVar("_Result")


class Lines(NamedTuple):
    """Of one stream, old to new, and the position behind them and all that was looked at."""

    lines: Sequence[Line]
    position: int
    is_all: bool = True
    """False: so much had to be looked through that the rest is left to the next answer."""


class Logs:
    """Readers of logs by the folders of their runs. `close` once."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="logs")
        self._silent: dict[tuple[str, Stream], Span] = {}
        """By run: a part, as late as is known, in which a stream has no line. Asked for last, last."""

    def close(self) -> None:
        """What is being read is read; nothing else is."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def newest(self, path: Path, stream: Stream, count: int = LINES_MAX) -> Lines:
        """The last ones; of a folder that is gone there are none."""
        silent = self._silent.get((path.name, stream), NOWHERE)
        found: deque[Line] = deque()
        at: int | None = None
        end, left, is_all = 0, LOOKED_BYTES_MAX, False
        while not is_all and left > 0:
            wanted = count - len(found)
            one = await self._in_thread(
                partial(look_back, path, stream, at, wanted, silent, _PASS_BYTES)
            )
            end = one.stop if at is None else end
            found.extendleft(reversed(one.lines))
            at, left = one.start, left - one.looked_bytes
            is_all = one.is_last or len(found) >= count
        self._know(path, stream, Span(found[-1].position if found else at or 0, end))
        return Lines(list(found), end, is_all)

    async def after(
        self, path: Path, stream: Stream, position: int, count: int = LINES_MAX
    ) -> Lines | None:
        """The first ones behind a position; who goes on from the answer's misses none. None: the log has not come so
        far, the position is of another one.
        """
        found: list[Line] = []
        at, left, is_all = position, LOOKED_BYTES_MAX, False
        while not is_all and left > 0:
            silent = self._silent.get((path.name, stream), NOWHERE)
            wanted = count - len(found)
            one = await self._in_thread(
                partial(look_on, path, stream, at, wanted, silent, _PASS_BYTES)
            )
            if one is None:
                return None
            found += one.lines
            self._know(path, stream, Span(found[-1].position if found else position, one.stop))
            at, left = one.stop, left - one.looked_bytes
            is_all = one.is_last or len(found) >= count
        return Lines(found, at, is_all)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _know(self, path: Path, stream: Stream, span: Span) -> None:
        """Of this stream nothing is in there. What is written never changes, it only goes."""
        key = (path.name, stream)
        known = self._silent.pop(key, NOWHERE)
        if span.start <= known.stop <= span.stop:
            span = Span(min(known.start, span.start), span.stop)
        elif known.stop > span.stop:
            span = known
        self._silent[key] = span
        if len(self._silent) > _KNOWN_MAX:
            del self._silent[next(iter(self._silent))]
