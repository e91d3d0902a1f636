"""How long a client may stay when the last word is said to it: one rule for every listener that speaks HTTP.

Whoever was refused may still send. To close at once would take the answer from it: what comes to a closed connection is
answered with a reset, which many clients meet before they read. So what it sends is read away, for a time that has an
end. Who asks looks every LOOK_S and cuts off whoever may not stay.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pyservice.doors.reading import Reading, unread_bytes

LOOK_S: Final = 2.5
MOST_S: Final = 30.0
"""So long it may go on sending, counted from when all is written."""
_SILENT_LOOKS: Final = 2
"""After so many looks in a row at which nothing had come: at one alone it was perhaps us who were late."""


class Leaving:
    """Of one connection, on which nothing is written any more."""

    def __init__(self, transport: asyncio.Transport, now_s: float, read_timeout_s: float) -> None:
        """What is written and not read yet is looked at every `read_timeout_s`, as before the end."""
        self._transport = transport
        self._reading = Reading(transport, now_s)
        self._read_timeout_s = read_timeout_s
        self._reading_look_s = now_s + read_timeout_s
        self._ends_s = now_s + MOST_S
        self._silent_looks = 0

    def heard(self) -> None:
        """Something came."""
        self._silent_looks = 0

    def may_stay(self, now_s: float) -> bool:
        """Looks."""
        if unread_bytes(self._transport):
            self._silent_looks, self._ends_s = 0, now_s + MOST_S
            return self._goes_on_reading(now_s)
        self._silent_looks += 1
        return self._silent_looks < _SILENT_LOOKS and now_s < self._ends_s

    def _goes_on_reading(self, now_s: float) -> bool:
        if now_s < self._reading_look_s:
            return True
        self._reading_look_s = now_s + self._read_timeout_s
        return self._reading.goes_on(now_s)
