"""CORS headers and preflight responses (docs/reference/wire.md#cors)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyservice.edge.http_messages import Answer, Headers

_OPEN_PREFIXES: Final = ("/matchmaker/", "/events/")
_OPEN_PATHS: Final = frozenset({"/cloud/bootstrap"})
_ANY: Final = "*"

_EXPOSED: Final = (b"access-control-expose-headers", b"x-ray-id, retry-after")
_REQUEST_HEADERS: Final = (
    b"access-control-allow-headers",
    b"authorization, content-type, idempotency-key, traceparent",
)
_MAX_AGE: Final = (b"access-control-max-age", b"7200")
_VARY: Final = (b"vary", b"origin")
_FOR_ANY: Final = (b"access-control-allow-origin", b"*")


class Cors:
    """Rules with the operator's origins. Credentials are never allowed, because the API has no cookies."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._is_any = _ANY.encode() in self._origins

    def headers(self, path: str, origin: bytes) -> Headers:
        if self._is_any or path.startswith(_OPEN_PREFIXES) or path in _OPEN_PATHS:
            return [_FOR_ANY, _EXPOSED]
        if origin in self._origins:
            return [(b"access-control-allow-origin", origin), _EXPOSED, _VARY]
        return [_VARY]

    def preflight(self, headers: Headers, methods: Iterable[str], ray_id: str) -> Answer:
        fields = list(headers)
        if len(headers) > 1:
            allowed = (b"access-control-allow-methods", ", ".join(methods).encode())
            fields += [allowed, _REQUEST_HEADERS, _MAX_AGE]
        return Answer(204, b"", ray_id, b"", fields)
