"""Ray ids, and the header `traceparent` of W3C Trace Context."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from pyservice.transport.native import read_trace

RAY_ID_DIGITS: Final = 32
_BATCH: Final = 512


def _random_ids() -> Iterator[str]:
    while True:
        digits = os.urandom(RAY_ID_DIGITS // 2 * _BATCH).hex()
        for start in range(0, len(digits), RAY_ID_DIGITS):
            yield digits[start : start + RAY_ID_DIGITS]


# Call it only on the event loop's thread: two threads cannot enter one generator.
new_ray_id = _random_ids().__next__


def read_traceparent(traceparent: str | None) -> tuple[str, str | None]:
    """Returns the ray ID of a request, which is its trace ID, and the span ID of the client.

    If `traceparent` is valid, the ray continues that trace. Otherwise the ID is new, without span.
    """
    trace = None if traceparent is None else read_trace(traceparent)
    return (new_ray_id(), None) if trace is None else trace
