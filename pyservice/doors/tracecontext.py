"""Ray ids: the trace id of a request (decisions 1.7), from W3C `traceparent` or made here.

Owns their form and their making; who shows or stores them is elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

RAY_ID_DIGITS: Final = 32
_BATCH: Final = 512
_NO_TRACE: Final = "0" * RAY_ID_DIGITS
# version-traceid-parentid-flags; a later version may append fields, version ff is forbidden.
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?P<rest>-.*)?"
)


def _random_ids() -> Iterator[str]:
    """128 random bits each, drawn from the kernel in batches: one system call per id would show."""
    while True:
        digits = os.urandom(RAY_ID_DIGITS // 2 * _BATCH).hex()
        for start in range(0, len(digits), RAY_ID_DIGITS):
            yield digits[start : start + RAY_ID_DIGITS]


# Only the thread of the event loop may call it: a generator cannot be entered twice.
new_ray_id = _random_ids().__next__


def continued(traceparent: str) -> str | None:
    """The trace id of a valid `traceparent`, None when it has to be ignored."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or match["trace"] == _NO_TRACE:
        return None
    if match["version"] == "00" and match["rest"] is not None:
        return None
    return match["trace"]


def read(traceparent: str | None) -> tuple[str, str | None]:
    """The ray id of a request that came with this `traceparent`, and that again where it is continued."""
    trace_id = continued(traceparent) if traceparent else None
    return (new_ray_id(), None) if trace_id is None else (trace_id, traceparent)
