"""Times in answers (decisions 1.6): RFC 3339, UTC, milliseconds, `Z`."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def rfc3339(milliseconds: int) -> str:
    """Milliseconds since the Unix epoch as text."""
    seconds, rest = divmod(milliseconds, 1000)
    # A tenth of what formatting with a pattern takes: lists are full of times.
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:03}Z"


def milliseconds(text: str) -> int:
    """What `rfc3339` made. Raises ValueError for a date that does not exist."""
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
