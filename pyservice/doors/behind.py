"""What a door tells the door behind it, and hears back: names in headers and metadata, and their texts.

Pure, and the same for HTTP and gRPC. The public door passes none of these names on from outside.
"""

from __future__ import annotations

from typing import Final

from pyservice.calls import WaitForChange

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


def park_text(park: WaitForChange) -> str:
    """The value of `PARK`."""
    return f"{park.run}.{park.sequence} {','.join(park.topics)}"


def read_park(text: str) -> WaitForChange:
    """Reads a value of `PARK`. Raises ValueError."""
    index, _, topics = text.partition(" ")
    run, _, sequence = index.partition(".")
    return WaitForChange(tuple(topics.split(",")), int(sequence), run)
