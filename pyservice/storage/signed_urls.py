"""Signed URLs of objects: creation and verification. Does no I/O."""

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
_ALLOWED_PARAMETERS: Final = {
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
        pairs = [] if self.expires_at_s is None else [("expires", str(self.expires_at_s))]
        if self.method == "PUT":
            return [*pairs, ("offset", str(self.offset)), ("length", str(self.length))]
        if self.filename is not None:
            pairs.append(("filename", self.filename))
        if self.content_type is not None:
            pairs.append(("type", self.content_type))
        return pairs


class RetiredKey(NamedTuple):
    """Key that no longer signs URLs. It still verifies URLs that expire by `until_s` (Unix time).

    A thief of the key therefore cannot sign URLs with a later expiry.
    """

    secret: bytes
    until_s: float


class UrlSigner:
    def __init__(
        self,
        key: bytes,
        retired: Sequence[RetiredKey] = (),
        is_lasting: Callable[[str], bool] = lambda key: False,
    ) -> None:
        self._is_lasting = is_lasting
        self.take(key, retired)

    def take(self, key: bytes, retired: Sequence[RetiredKey]) -> None:
        if any(
            len(secret) < 32 for secret in (key, *(retired_key.secret for retired_key in retired))
        ):
            raise ValueError("a signing key has at least 32 bytes")
        self._key = key
        self._retired = tuple(retired)

    def target(self, grant: UrlGrant) -> str:
        parameters = grant.parameters()
        signature = _signature(self._key, grant, parameters)
        query = "".join([f"{name}={_quoted(value)}&" for name, value in parameters])
        return f"{PREFIX}{grant.key}?{query}signature={signature}"

    def verify(self, method: str, path: str, query: bytes, now_s: float) -> UrlGrant:
        """Returns the permission that a signed URL grants. Raises InvalidSignature.

        `path` is the path as the client sent it.
        """
        grant, signature = _read("GET" if method == "HEAD" else method, path, query)
        parameters = grant.parameters()
        is_good = hmac.compare_digest(_signature(self._key, grant, parameters), signature)
        for retired in self._retired:
            is_it = hmac.compare_digest(_signature(retired.secret, grant, parameters), signature)
            is_good |= is_it and self._outlives_key(grant, retired)
        if not is_good or (grant.expires_at_s is not None and now_s >= grant.expires_at_s):
            raise InvalidSignature
        return grant

    def _outlives_key(self, grant: UrlGrant, retired: RetiredKey) -> bool:
        if grant.expires_at_s is None:
            return self._is_lasting(grant.key)
        return grant.expires_at_s <= retired.until_s


# Lists of URLs repeat few values.
@lru_cache(1_000)
def _quoted(value: str) -> str:
    return quote(value, safe="")


def _signature(key: bytes, grant: UrlGrant, parameters: Sequence[tuple[str, str]]) -> str:
    pieces = [_LABEL]
    for word in (grant.method, grant.key, *map("=".join, parameters)):
        # Length prefixes make the encoding injective.
        encoded = word.encode()
        pieces += (len(encoded).to_bytes(4, "big"), encoded)
    digest = hmac.digest(key, b"".join(pieces), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _read(method: str, path: str, query: bytes) -> tuple[UrlGrant, str]:
    allowed = _ALLOWED_PARAMETERS.get(method)
    if allowed is None or not path.startswith(PREFIX) or len(query) > 4096:
        raise InvalidSignature
    values: dict[str, str] = {}
    for pair in query.decode("latin-1").split("&"):
        match = _PARAMETER.fullmatch(pair)
        if match is None or match[1] in values:
            raise InvalidSignature
        try:
            values[match[1]] = unquote_to_bytes(match[2]).decode()
        except UnicodeDecodeError:
            raise InvalidSignature from None
    signature = values.pop("signature", "")
    if not signature.isascii() or not allowed.issuperset(values):
        raise InvalidSignature
    key = path.removeprefix(PREFIX)
    if method == "PUT":
        numbers = {name: _number(values.get(name)) for name in ("expires", "offset", "length")}
        grant = UrlGrant("PUT", key, numbers["expires"], numbers["length"], numbers["offset"])
    else:
        expires_at_s = _number(values["expires"]) if "expires" in values else None
        grant = UrlGrant(
            "GET",
            key,
            expires_at_s,
            filename=values.get("filename"),
            content_type=values.get("type"),
        )
    return grant, signature


def _number(text: str | None) -> int:
    if text is None or not _NUMBER.fullmatch(text):
        raise InvalidSignature
    return int(text)
