"""Headers between the front (`native/front`) and the Python servers behind it."""

from __future__ import annotations

from typing import Final

from pyservice.calls import WaitForChange

# Headers of the front to the servers behind it. The front drops these headers of clients.
INTERNAL_CLIENT: Final = "x-hosting-client"
INTERNAL_RAY: Final = "x-hosting-ray"
"""Ray id that the front chose, because the request has no valid `traceparent`."""
INTERNAL_REPEAT: Final = "x-hosting-repeat"
"""Marks a repeated long poll with the reason: `changed`, or `EXPIRED` at the end of its wait."""
EXPIRED: Final = "expired"
INTERNAL_ADMITTED: Final = "x-hosting-admitted"
"""Marks a request that has paid its rate limits in the front."""
# Headers of these servers to the front, which removes them.
INTERNAL_CODE: Final = "x-hosting-code"
"""Code of an error response."""
INTERNAL_WAIT: Final = "x-hosting-park"
"""Wait of a long poll in place of a response, as `<run>.<sequence> <topic>,<topic>`."""

INTERNAL_SHARE: Final = "x-hosting-share"
"""Key of callers that share a response: `<key> <topic>,<topic>` with the topics of the caller's
rights in the response of a waiting request, and otherwise `<key> <run>.<sequence>`."""


def wait_text(wait: WaitForChange) -> str:
    return f"{wait.run}.{wait.sequence} {','.join(wait.topics)}"
