"""Reserved names: HTTP headers and environment variables that only the service sets."""

from __future__ import annotations

import re
from typing import Final

HEADER_NAME_MAX: Final = 128

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADERS_OF_A_CONNECTION: Final = frozenset(
    {
        *("connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding"),
        "upgrade",
    }
)
"""Headers that belong to one connection or to message framing. Names with the prefix `proxy-` count
too.
"""
HEADERS_OF_REQUESTS: Final = frozenset(
    {
        *("accept-encoding", "content-encoding", "content-type", "expect", "host"),
        *("traceparent", "tracestate"),
    }
)
"""Headers that the service sets in its webhook requests."""
HEADERS_OF_ANSWERS: Final = frozenset(
    {
        # Headers of conditional requests and ranges.
        *("accept-ranges", "content-range", "date", "etag", "last-modified", "vary"),
        # A cookie in a cached response would reach every client, and through its Domain other
        # sites.
        "set-cookie",
        "x-content-type-options",
        "x-ray-id",
    }
)
"""Headers that site routes cannot set."""
_ENV_NAME = re.compile(r"(?s)HOSTING_.*|PORT|PORT_.*")


def is_header_name(name: str) -> bool:
    return _HEADER_NAME.fullmatch(name) is not None


def is_header_of_connection(name: str) -> bool:
    lower_name = name.lower()
    return lower_name in HEADERS_OF_A_CONNECTION or lower_name.startswith("proxy-")


def is_header_of_requests(name: str) -> bool:
    """Returns whether only the service sets this header in its webhook requests.

    Returns False for headers of the connection, which `is_header_of_connection` checks.
    """
    return name.lower() in HEADERS_OF_REQUESTS


def is_header_of_answers(name: str) -> bool:
    """Returns whether the routes of a site must not set this response header.

    Returns False for headers of the connection, which `is_header_of_connection` checks.
    """
    return name.lower() in HEADERS_OF_ANSWERS


def is_environment_name(name: str) -> bool:
    return _ENV_NAME.fullmatch(name) is not None
