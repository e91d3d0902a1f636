"""Transactions that lost to another writer are run again: what is there by then decides anew.

Owns how often, and the pauses between. Whether there was a conflict is `failures`' matter.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage.failures import Conflict

Made = TypeVar("Made")

_PAUSES_S: Final = (0.0, *(min(0.005 * 2**number, 0.2) for number in range(11)))
"""Before each further attempt, at the most: who lost to others draws from it, so that they do not meet again."""

_log = get_logger("storage")


async def again_on_conflict(attempt: Callable[[], Awaitable[Made]]) -> Made:
    """What `attempt` gives, a transaction of its own each time. Raises what it raises, and OVERLOADED when others are
    faster again and again.
    """
    for longest_s in _PAUSES_S:
        try:
            return await attempt()
        except Conflict:
            await asyncio.sleep(random.uniform(0.0, longest_s))
    try:
        return await attempt()
    except Conflict:
        _log.exception("change given up")
        raise ServiceError("OVERLOADED") from None
