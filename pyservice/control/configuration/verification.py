"""What is wrong with the address and headers of a verification (decisions 4 and 7), as far as that is
seen without asking anybody: what a name resolves to is checked when it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

from pyservice.control.configuration.context import Context
from pyservice.control.configuration.site import (
    HEADER_VALUE_MAX_BYTES,
    findings_in_header_name,
    findings_in_header_value,
)
from pyservice.doors.addresses import Address
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.schema.problems import Finding

URL_MAX_BYTES: Final = 2048
HEADERS_MAX: Final = 32

_VISIBLE = re.compile(r"[\x21-\x7e]+")
_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")
# Resolvers take such names for IPv4 addresses in other spellings, such as 0x7f.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOOPBACK: Final = IPv4Address("127.0.0.1")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Relays and documentation that `ipaddress` takes for public."""

_SET_BY_SERVICE: Final = frozenset(
    {
        "accept-encoding",
        "content-encoding",
        "content-type",
        "expect",
        "host",
        "traceparent",
        "tracestate",
    }
)
"""Headers, in lower case, that are the request's own, besides those of a connection."""

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
        yield from findings_in_header_name(name, (*path, name))
        yield from findings_in_header_value(headers[name], (*path, name), HEADER_VALUE_MAX_BYTES)
        known = name.lower()
        if known in _SET_BY_SERVICE:
            yield Finding((*path, name), "not-allowed", "is a header that the service sets itself")
        elif known in seen:
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
    address = _address_of(host)
    if address is not None and not _is_allowed(address, context):
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
    if _literal(host) is not None:
        return host
    is_name = len(host) <= 253 and _HOST_NAME.fullmatch(host) is not None
    return host if is_name and not _NUMBER.fullmatch(_last_label(host)) else None


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _last_label(host: str) -> str:
    return host.rstrip(".").rpartition(".")[2]


def _address_of(host: str) -> Address | None:
    """The address that a host is known to be without asking: a literal's, or that of localhost."""
    return _LOOPBACK if _last_label(host) == "localhost" else _literal(host)


def _is_allowed(address: Address, context: Context) -> bool:
    meant = _meant(address)
    return _is_public(meant) or any(
        one in network
        for network in context.verification_allowed_networks
        for one in (address, meant)
    )


def _meant(address: Address) -> Address:
    """Where packets to this address end: some IPv6 addresses stand for an IPv4 address."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(address.packed[-4:])
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address.is_site_local:
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _NOT_PUBLIC)
    )
