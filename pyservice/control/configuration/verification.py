"""What is wrong with the address and headers of a verification (decisions 4 and 7), as far as that is
seen without asking anybody: what a name resolves to is checked when it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from pyservice.control.configuration.context import Context
from pyservice.control.configuration.site import (
    HEADER_VALUE_MAX_BYTES,
    findings_in_header_name,
    findings_in_header_value,
)
from pyservice.hosts import (
    AllowedAddresses,
    is_absolute_name,
    is_number,
    known_address,
    literal,
)
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.reserved import is_header_of_requests
from pyservice.schema.problems import Finding

URL_MAX_BYTES: Final = 2048
HEADERS_MAX: Final = 32

_VISIBLE = re.compile(r"[\x21-\x7e]+")

Path = tuple[str, ...]


def findings_in_verification(
    verification: pb.VersionVerification, path: Path, context: Context
) -> Iterator[Finding]:
    """Everything that is wrong with it."""
    url = verification.url
    if len(url.encode()) > URL_MAX_BYTES:
        yield Finding((*path, "url"), "too-long", f"must have at most {URL_MAX_BYTES} bytes")
    else:
        yield from _url(url, (*path, "url"), context)
    headers = verification.headers.entries
    path = (*path, "headers")
    if len(headers) > HEADERS_MAX:
        yield Finding(path, "too-many", f"must have at most {HEADERS_MAX} entries")
    seen: set[str] = set()
    for name in sorted(headers)[:HEADERS_MAX]:
        yield from findings_in_header_name(name, (*path, name), is_header_of_requests)
        yield from findings_in_header_value(headers[name], (*path, name), HEADER_VALUE_MAX_BYTES)
        known = name.lower()
        if known in seen and not is_header_of_requests(known):
            yield Finding((*path, name), "not-unique", "is there more than once, in other letters")
        seen.add(known)


def _url(url: str, path: Path, context: Context) -> Iterator[Finding]:
    host = _host_of(url)
    if host is None:
        yield Finding(
            path,
            "invalid",
            "must be http:// or https:// with a host, maybe a port and a path, in ASCII without "
            "spaces, and without user name, password and fragment",
        )
        return
    address = known_address(host)
    is_allowed = AllowedAddresses(tuple(context.verification_allowed_networks))
    if address is not None and not is_allowed(address):
        yield Finding(path, "not-allowed", f"must have a public host, which {host} is not")


def _host_of(url: str) -> str | None:
    """The host in lower case, None when it is no address that we ask."""
    if not url.startswith(("http://", "https://")) or not _VISIBLE.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or port == 0 or "@" in parts.netloc or parts.fragment:
        return None
    if literal(host) is not None:
        return host
    return host if is_absolute_name(host) and not is_number(host) else None
