"""What a door tells the door behind it, and hears back: names in headers and metadata, and their texts.

Pure, and the same for HTTP and gRPC. The public door passes none of these names on from outside.
"""

from __future__ import annotations

from typing import Final

from pyservice.calls import Park
from pyservice.doors import tracecontext

CLIENT: Final = "x-hosting-client"
"""To the door behind: the client's address."""
HELD: Final = "x-hosting-held"
"""To the door behind: a parked request comes again, for the reason `WOKEN` or `OVER`."""
WOKEN: Final = "woken"
"""Something changed."""
OVER: Final = "over"
"""It was held for as long as any is."""
PARK: Final = "x-hosting-park"
"""From the door behind, in place of an answer: `<run>.<sequence> <topic>,<topic>`."""


def park_text(park: Park) -> str:
    """The value of `PARK`."""
    return f"{park.run}.{park.sequence} {','.join(park.topics)}"


def read_park(text: str) -> Park:
    """Reads a value of `PARK`. Raises ValueError."""
    index, _, topics = text.partition(" ")
    run, _, sequence = index.partition(".")
    return Park(tuple(topics.split(",")), int(sequence), run)


def traceparent(ray_id: str, given: str | None = None) -> str:
    """The trace of a request that goes on: the client's own word when the ray id is from there."""
    if given is not None and tracecontext.continued(given) == ray_id:
        return given
    # A parent of zeros is none; the last digits of a random id are zeros once in 2^64.
    return f"00-{ray_id}-{ray_id[16:]}-00"
