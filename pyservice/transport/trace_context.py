"""Ray ids, and the header `traceparent` of W3C Trace Context."""

from __future__ import annotations

from typing import Final

from pyservice.ids import random_hex
from pyservice.transport.native import read_trace

RAY_ID_DIGITS: Final = 32


# Call it only on the event loop's thread.
new_ray_id = random_hex(RAY_ID_DIGITS).__next__


def read_traceparent(traceparent: str | None) -> tuple[str, str | None]:
    """Returns the ray ID of a request, which is its trace ID, and the span ID of the client.

    If `traceparent` is valid, the ray continues that trace. Otherwise the ID is new, without span.
    """
    trace = None if traceparent is None else read_trace(traceparent)
    return (new_ray_id(), None) if trace is None else trace
