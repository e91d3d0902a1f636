from __future__ import annotations

import time
from datetime import UTC, datetime

from pyservice.errors import ServiceError, field_problem


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rfc3339(milliseconds: int) -> str:
    seconds, fraction_ms = divmod(milliseconds, 1000)
    # This is ten times as fast as strftime.
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{fraction_ms:03}Z"


def milliseconds(text: str) -> int:
    """Converts a UTC date to Unix ms. Raises ValueError for a date that does not exist."""
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def query_milliseconds(text: str, field: str, reason: str) -> int:
    """Converts a UTC date to Unix ms. Raises QUERY_INVALID for a date that does not exist."""
    try:
        return milliseconds(text)
    except ValueError:
        problem = field_problem([field], "invalid", reason)
        raise ServiceError("QUERY_INVALID", errors=[problem]) from None
