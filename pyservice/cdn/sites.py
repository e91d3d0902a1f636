"""Sites: files, passwords, and the mapping from a request to a site."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from pyservice.cdn.site_routes import SiteRoutes

_NAME: Final = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_LABEL: Final = re.compile(rf"({_NAME})(?:--({_NAME}))?")
_LOCAL: Final = re.compile(rf"/({_NAME})/({_NAME})(/.*)?", re.DOTALL)
_TRICKS: Final = re.compile(r"%2f|%5c|%00|\\", re.IGNORECASE)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PORT: Final = re.compile(r":\d*$")
_PATH_MAX_BYTES: Final = 8192
PRODUCTION: Final = "prod"


@dataclass(frozen=True, slots=True)
class SiteFile:
    """File of a site: object key, size in bytes, modification time (Unix seconds) and content type.

    Objects never change, so the key identifies the content.
    """

    key: str
    length: int
    modified_s: float
    content_type: str | None = None

    @property
    def tag(self) -> str:
        """Entity tag. A hash, so that clients do not learn the object key."""
        return hashlib.blake2b(self.key.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Site:
    """Current site of a namespace. `files` maps paths without a leading slash to files.

    `users` maps user names to bcrypt hashes. It is None if the site needs no password. A namespace
    without a site can have users, so that the password prompt does not reveal the missing site.
    """

    files: Mapping[str, SiteFile]
    routes: SiteRoutes = field(default_factory=SiteRoutes)
    users: Mapping[str, bytes] | None = None
    namespace_id: bytes = b""
    group_id: str = ""


class SiteSource(Protocol):
    """Lookup of sites. Implementations cache, because each request calls `find`."""

    @property
    def cache_bytes(self) -> int: ...

    async def find(self, game: str, namespace: str) -> Site | None:
        """Returns the site for the names of a game and a namespace, or None for an unknown
        namespace.

        The site is at most 1 s old.
        """


class Address(NamedTuple):
    """Site and path of a request.

    Without a domain for sites, `prefix` is the start of the URL path, which names the site. With a
    domain, `prefix` is empty.
    """

    game: str
    namespace: str
    prefix: str
    path: str


class BadPath(Exception):
    """The path of a request is invalid. The response has status 400."""


def is_of_sites(host: str, domain: str | None) -> bool:
    return domain is not None and f".{_name_of(host)}".endswith(f".{domain}")


def address(host: str, raw_path: str, domain: str | None) -> Address | None:
    """Returns the site and path of a request, or None if the request names no site.

    The subdomain of `domain` in the Host header names the site. If `domain` is None, the first two
    parts of the path name the site. The returned path is decoded once. Raises BadPath.
    """
    path = decode_path(raw_path)
    if domain is None:
        match = _LOCAL.fullmatch(path)
        if match is None:
            return None
        return Address(match[1], match[2], f"/{match[1]}/{match[2]}", match[3] or "")
    label, _, parent = _name_of(host).partition(".")
    match = _LABEL.fullmatch(label)
    if match is None or parent != domain:
        return None
    return Address(match[1], match[2] or PRODUCTION, "", path)


def _name_of(host: str) -> str:
    name = host.rpartition(":")[0] if _PORT.search(host) else host
    return name.lower().removesuffix(".")


def decode_path(raw_path: str) -> str:
    """Decodes the percent-escapes of a URL path once.

    Raises BadPath for encoded slashes, NUL, backslashes, dot segments, control characters or
    invalid UTF-8. Also raises BadPath if the path is too long.
    """
    if len(raw_path) > _PATH_MAX_BYTES or _TRICKS.search(raw_path) or _BAD_ESCAPE.search(raw_path):
        raise BadPath
    try:
        path = unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        raise BadPath from None
    if _CONTROL.search(path) or not {".", ".."}.isdisjoint(path.split("/")):
        raise BadPath
    return path
