"""What a site is to the listener, where it comes from, and which request means which site."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from pyservice.cdn.site_routes import Routes

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
    """A file: the key of its object, bytes, when it was completed (seconds since the epoch).

    `content_type` as uploaded, None for the one of its extension. Objects never change, so the key
    tells one content from another.
    """

    key: str
    length: int
    modified_s: float
    content_type: str | None = None

    @property
    def tag(self) -> str:
        """Its entity tag, without quotes; tells nothing of the key."""
        return hashlib.blake2b(self.key.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Site:
    """What a namespace shows now: files by their path without a leading slash.

    `users`: user to bcrypt hash where a password is asked for, None where it is not. A namespace
    whose version has no site still has its users: without them, nobody learns that. `namespace_id`: its 16 bytes.
    `group_id`: whose game it is of.
    """

    files: Mapping[str, SiteFile]
    routes: Routes = field(default_factory=Routes)
    users: Mapping[str, bytes] | None = None
    namespace_id: bytes = b""
    group_id: str = ""


class SiteSource(Protocol):
    """Who knows the sites. Asked at every request: it keeps what it has looked up."""

    async def find(self, game: str, namespace: str) -> Site | None:
        """The site of the running version, by name_id of game and namespace; at most 1 s old.

        None: there is no such namespace.
        """


class Address(NamedTuple):
    """Which site a request means; `prefix` stands before the path in the URL (local mode)."""

    game: str
    namespace: str
    prefix: str
    path: str


class BadPath(Exception):
    """A path that nobody writes by accident: 400."""


def is_of_sites(host: str, domain: str | None) -> bool:
    """Whether a host is the domain of sites or below it: what is there is of their owners, and none of it ours."""
    return domain is not None and f".{_name_of(host)}".endswith(f".{domain}")


def address(host: str, raw_path: str, domain: str | None) -> Address | None:
    """The site of a request: by Host below `domain`, or by path without one. None: there is none.

    `path` of the answer is decoded, once, and begins with a slash. Raises BadPath.
    """
    path = decoded(raw_path)
    if domain is None:
        match = _LOCAL.fullmatch(path)
        if match is None:
            return None
        return Address(match[1], match[2], f"/{match[1]}/{match[2]}", match[3] or "")
    label, _, rest = _name_of(host).partition(".")
    match = _LABEL.fullmatch(label)
    if match is None or rest != domain:
        return None
    return Address(match[1], match[2] or PRODUCTION, "", path)


def _name_of(host: str) -> str:
    name = host.rpartition(":")[0] if _PORT.search(host) else host
    return name.lower().removesuffix(".")


def decoded(raw_path: str) -> str:
    """The path without percent-encoding. Raises BadPath for slashes, backslashes and zeros in
    disguise, for dot segments, control characters, and what is not UTF-8.
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
