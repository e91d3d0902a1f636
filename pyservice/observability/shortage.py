"""Something of the machine that can run short: looked at again and again, told when little is left and when there is
enough again. What it is, is the measure's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from pyservice.observability.logging import get_logger

_log = get_logger("upkeep")


class Measure(Protocol):
    """What is measured."""

    @property
    def is_low(self) -> bool:
        """Whether little is left, when it was last looked at."""

    def look(self) -> None:
        """Measures now."""

    def figures(self) -> Mapping[str, int]:
        """What goes to the log."""


async def tell_shortage(measure: Measure, every_s: float, low: str, enough: str) -> None:
    """Until cancelled; `low` and `enough` are what the log says."""
    was_low = False
    while True:
        measure.look()
        if measure.is_low != was_low:
            was_low = measure.is_low
            say = _log.error if was_low else _log.info
            say(low if was_low else enough, **measure.figures())
        await asyncio.sleep(every_s)
