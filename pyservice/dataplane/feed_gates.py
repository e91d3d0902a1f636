"""What a fed captcha or verification must keep beyond the rules in its proto (decisions 4, 7).

Whether an address is public is in `hosts`: a name is checked when it is asked, here only what
can be told from the URL. Who is asked and when is in `gates`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from pyservice.dataplane.gates import PROVIDERS
from pyservice.hosts import Address, is_absolute_name, is_number, known_address, literal
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.reserved import (
    HEADER_NAME_MAX,
    is_header_name,
    is_header_of_connection,
    is_header_of_requests,
)

Found = tuple[tuple[str, ...], str]
"""Where, and a sentence."""

_VALUE_MAX: Final = 1024
_HEADER_VALUE = re.compile(r"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")


def captcha_problems(
    captcha: pb.CaptchaConfig, path: tuple[str, ...], endpoints: Collection[str]
) -> Iterator[Found]:
    """`endpoints`: the providers that the operator has set the URL of."""
    is_any = False
    for name in PROVIDERS:
        if not captcha.HasField(name):
            continue
        is_any = True
        if name not in endpoints:
            yield (
                (*path, name),
                f"cannot be asked: the operator of this service has not set captcha.{name}_url",
            )
    if is_any:
        for field in ("requests_before_reverify", "verification_ttl"):
            if not captcha.HasField(field):
                yield (*path, field), "must be set"


def verification_problems(
    verification: pb.Verification, path: tuple[str, ...], is_allowed: Callable[[Address], bool]
) -> Iterator[Found]:
    """`is_allowed`: which addresses may be asked."""
    reason = _reason_against(verification.url, is_allowed)
    if reason:
        yield (*path, "url"), reason
    yield from _header_problems(verification.headers, (*path, "headers"))


def _reason_against(url: str, is_allowed: Callable[[Address], bool]) -> str | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not host or port == 0 or not url.isprintable():
        return "must be an http or https URL with a host"
    if parts.username is not None or parts.password is not None:
        return "must not have a user or password; send them in headers"
    if parts.fragment:
        return "must not have a fragment"
    address = literal(host)
    if address is None:
        host = host.lower()
        if not is_absolute_name(host):
            return "has a host that is no host name and no IP address"
        if is_number(host):
            return "has an IP address that is not in its usual form, such as 192.0.2.1"
        address = known_address(host)
        if address is None:
            return None
    if is_allowed(address):
        return None
    return (
        "must have a public host; the operator of this service may allow others with "
        "verification_allowed_networks"
    )


def _header_problems(headers: Mapping[str, str], path: tuple[str, ...]) -> Iterator[Found]:
    seen: set[str] = set()
    for name, value in sorted(headers.items()):
        known = name.lower()
        if not is_header_name(name) or len(name) > HEADER_NAME_MAX:
            yield (*path, name), "is no name of an HTTP header"
        elif is_header_of_connection(name) or is_header_of_requests(name):
            yield (*path, name), "is a header that the service sets itself"
        elif known in seen:
            yield (*path, name), "is there more than once, in other letters"
        seen.add(known)
        if value and (not _HEADER_VALUE.fullmatch(value) or len(value) > _VALUE_MAX):
            yield (
                (*path, name),
                f"must be at most {_VALUE_MAX} characters without control characters and without "
                "spaces at its ends",
            )
