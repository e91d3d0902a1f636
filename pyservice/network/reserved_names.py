"""What developers name and what the service keeps for itself (decisions 4, 7, 8.9): headers, names in the
environment of a lobby. Pure, and the same for both planes.

What else is asked of a header or an environment is for who judges a configuration.
"""

from __future__ import annotations

import re
from typing import Final

HEADER_NAME_MAX: Final = 128
"""Characters; the name of a header is ASCII."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADERS_OF_A_CONNECTION: Final = frozenset(
    {
        *("connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding"),
        "upgrade",
    }
)
"""They speak of one connection, or frame a message on it: whoever sends the message sets them. So do
those that begin with `proxy-`."""
HEADERS_OF_REQUESTS: Final = frozenset(
    {
        *("accept-encoding", "content-encoding", "content-type", "expect", "host"),
        *("traceparent", "tracestate"),
    }
)
"""They are the request's own: of a webhook, which the service makes."""
HEADERS_OF_ANSWERS: Final = frozenset(
    {
        # What the server answers conditions and ranges by.
        *("accept-ranges", "content-range", "date", "etag", "last-modified", "vary"),
        # A cookie in an answer that caches share is everybody's, and in local mode, or by its
        # Domain, it is every other site's too. What runs in a page can set its own.
        "set-cookie",
        # Never taken back.
        "x-content-type-options",
        # Of the request that is answered (decisions 1.7).
        "x-ray-id",
    }
)
"""No route of a site can set them."""
_ENV_NAME = re.compile(r"(?s)HOSTING_.*|PORT|PORT_.*")


def is_header_name(name: str) -> bool:
    """Whether it can be the name of an HTTP header, whatever its length."""
    return _HEADER_NAME.fullmatch(name) is not None


def is_header_of_connection(name: str) -> bool:
    """Whether it is of a connection, in any case."""
    known = name.lower()
    return known in HEADERS_OF_A_CONNECTION or known.startswith("proxy-")


def is_header_of_requests(name: str) -> bool:
    """Whether the service sets it in each request that it makes; those of a connection are not here."""
    return name.lower() in HEADERS_OF_REQUESTS


def is_header_of_answers(name: str) -> bool:
    """Whether only the service sets it in the answers of a site; those of a connection are not here."""
    return name.lower() in HEADERS_OF_ANSWERS


def is_environment_name(name: str) -> bool:
    """Whether the service sets this name in the environment of a lobby."""
    return _ENV_NAME.fullmatch(name) is not None
