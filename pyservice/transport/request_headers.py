from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from pyservice.calls import WaitForChange
from pyservice.errors import ServiceError, field_problem

TWO_HOSTS_DETAIL: Final = "Send one Host header: a request with several is ambiguous."
NO_HOST_DETAIL: Final = "Send a Host header: HTTP/1.1 requires one."

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

_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")

RAY_ID_DIGITS: Final = 32
_BATCH: Final = 512
_NO_TRACE: Final = "0" * RAY_ID_DIGITS
# The format is version-traceid-parentid-flags. Later versions may append fields. Version ff is
# forbidden.
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-[0-9a-f]{2}"
    r"(?P<rest>-.*)?"
)


def check_idempotency_key(key: str | None) -> None:
    """Raises HEADER_INVALID for an invalid idempotency key. None means that there is no key."""
    if key is not None and _IDEMPOTENCY_KEY.fullmatch(key) is None:
        problem = field_problem(
            ("idempotency-key",), "invalid", "must be 1 to 255 visible ASCII characters"
        )
        raise ServiceError("HEADER_INVALID", errors=(problem,))


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
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match is None or match["trace"] == _NO_TRACE:
        return new_ray_id(), None
    if match["version"] == "00" and match["rest"] is not None:
        return new_ray_id(), None
    return match["trace"], match["span"]


def wait_text(wait: WaitForChange) -> str:
    return f"{wait.run}.{wait.sequence} {','.join(wait.topics)}"
