"""How fast an upload has to come: never nearly still, and as a whole fast enough to end with its URL.

Pure: knows bytes and seconds of one clock, no socket. What becomes of a slow one is `receiving`'s.
"""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 30.0
WINDOW_BYTES: Final = 64 << 10
"""At least so many, or all the rest, come in each window."""

LEAST_S: Final = 600.0
"""So long any upload may take, also when its URL ends sooner."""
_FREE_PART: Final = 4
"""The first part of its time has no pace: a slow start is made up for."""


class Pace:
    """Of one upload, from its beginning at `now_s`; its URL is good for `good_s` then."""

    def __init__(self, length: int, now_s: float, good_s: float) -> None:
        self._length = length
        lasts_s = max(good_s, LEAST_S)
        self._looked_s = now_s
        self._starts_s = now_s + lasts_s / _FREE_PART
        self._ends_s = now_s + lasts_s
        self._window_ends_s = now_s + WINDOW_S
        self._window_missing = length

    def wait(self, now_s: float) -> None:
        """It is not the client's turn: the time since the last look does not count, and a window begins."""
        late_s, self._looked_s = now_s - self._looked_s, now_s
        self._starts_s += late_s
        self._ends_s += late_s
        self._window_ends_s = now_s + WINDOW_S

    def is_kept(self, now_s: float, missing: int) -> bool:
        """Whether enough has come, of which so many bytes are missing; looks."""
        self._looked_s = now_s
        is_moving = True
        if now_s >= self._window_ends_s:
            is_moving = self._window_missing - missing >= min(WINDOW_BYTES, missing)
            self._window_ends_s, self._window_missing = now_s + WINDOW_S, missing
        part = (now_s - self._starts_s) / (self._ends_s - self._starts_s)
        return is_moving and self._length - missing >= self._length * part
