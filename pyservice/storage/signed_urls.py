"""Signed URLs of objects: creation and verification. Pure."""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote_to_bytes

PREFIX: Final = "/.objects/"

_LABEL: Final = b"hosting object url 1"
_PARAMETER: Final = re.compile(r"([a-z]+)=([A-Za-z0-9._~%-]*)")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]{0,18})")
_KNOWN: Final = {
    "PUT": frozenset({"offset", "length", "expires"}),
    "GET": frozenset({"expires", "filename", "type"}),
}


class InvalidSignature(Exception):
    """The URL was altered, has expired, or was never signed. The error does not show which."""


class UrlGrant(NamedTuple):
    """Permission that a signed URL grants: one method on one object key.

    `length` and `offset` are bytes, for PUT. `filename` and `content_type` are for GET.
    `expires_at_s` is Unix time. A GET without `expires_at_s` is permitted as long as the object
    exists.
    """

    method: Literal["GET", "PUT"]
    key: str
    expires_at_s: int | None
    length: int = 0
    offset: int = 0
    filename: str | None = None
    content_type: str | None = None

    def parameters(self) -> list[tuple[str, str]]:
        said = [] if self.expires_at_s is None else [("expires", str(self.expires_at_s))]
        if self.method == "PUT":
            return [*said, ("offset", str(self.offset)), ("length", str(self.length))]
        if self.filename is not None:
            said.append(("filename", self.filename))
        if self.content_type is not None:
            said.append(("type", self.content_type))
        return said


class RetiredKey(NamedTuple):
    """Key that no longer signs URLs. It still verifies URLs that expire by `until_s` (Unix time).

    A thief can therefore not use the key to sign URLs with a later expiry.
    """

    secret: bytes
    until_s: float


class UrlSigner:
    def __init__(
        self,
        key: bytes,
        ended: Sequence[RetiredKey] = (),
        is_lasting: Callable[[str], bool] = lambda key: False,
    ) -> None:
        self._is_lasting = is_lasting
        self.take(key, ended)

    def take(self, key: bytes, ended: Sequence[RetiredKey]) -> None:
        if any(len(secret) < 32 for secret in (key, *(one.secret for one in ended))):
            raise ValueError("a signing key has at least 32 bytes")
        self._key = key
        self._ended = tuple(ended)

    def target(self, grant: UrlGrant) -> str:
        parameters = grant.parameters()
        signature = _signature(self._key, grant, parameters)
        query = "".join([f"{name}={_quoted(value)}&" for name, value in parameters])
        return f"{PREFIX}{grant.key}?{query}signature={signature}"

    def verify(self, method: str, path: str, query: bytes, now_s: float) -> UrlGrant:
        """Returns the permission that a signed URL grants. Raises InvalidSignature.

        `path` is the path as the client sent it.
        """
        grant, given = _read("GET" if method == "HEAD" else method, path, query)
        parameters = grant.parameters()
        is_good = hmac.compare_digest(_signature(self._key, grant, parameters), given)
        for ended in self._ended:
            is_it = hmac.compare_digest(_signature(ended.secret, grant, parameters), given)
            is_good |= is_it and self._is_left(grant, ended)
        if not is_good or (grant.expires_at_s is not None and now_s >= grant.expires_at_s):
            raise InvalidSignature
        return grant

    def _is_left(self, grant: UrlGrant, ended: RetiredKey) -> bool:
        if grant.expires_at_s is None:
            return self._is_lasting(grant.key)
        return grant.expires_at_s <= ended.until_s


@lru_cache(1_000)
def _quoted(value: str) -> str:
    """Quotes a value for a URL. Results are cached, because lists of URLs repeat few values."""
    return quote(value, safe="")


def _signature(key: bytes, grant: UrlGrant, parameters: Sequence[tuple[str, str]]) -> str:
    said = [_LABEL]
    for word in (grant.method, grant.key, *map("=".join, parameters)):
        # Length prefixes make the encoding injective.
        encoded = word.encode()
        said += (len(encoded).to_bytes(4, "big"), encoded)
    digest = hmac.digest(key, b"".join(said), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _read(method: str, path: str, query: bytes) -> tuple[UrlGrant, str]:
    known = _KNOWN.get(method)
    if known is None or not path.startswith(PREFIX) or len(query) > 4096:
        raise InvalidSignature
    said: dict[str, str] = {}
    for pair in query.decode("latin-1").split("&"):
        match = _PARAMETER.fullmatch(pair)
        if match is None or match[1] in said:
            raise InvalidSignature
        try:
            said[match[1]] = unquote_to_bytes(match[2]).decode()
        except UnicodeDecodeError:
            raise InvalidSignature from None
    given = said.pop("signature", "")
    if not given.isascii() or not known.issuperset(said):
        raise InvalidSignature
    key = path.removeprefix(PREFIX)
    if method == "PUT":
        numbers = {name: _number(said.get(name)) for name in ("expires", "offset", "length")}
        grant = UrlGrant("PUT", key, numbers["expires"], numbers["length"], numbers["offset"])
    else:
        expires_at_s = _number(said["expires"]) if "expires" in said else None
        grant = UrlGrant(
            "GET", key, expires_at_s, filename=said.get("filename"), content_type=said.get("type")
        )
    return grant, given


def _number(text: str | None) -> int:
    if text is None or not _NUMBER.fullmatch(text):
        raise InvalidSignature
    return int(text)
