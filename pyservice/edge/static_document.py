"""A public JSON document at a fixed path, such as the OpenAPI document. Clients revalidate it by
ETag.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from pyservice.edge.http_messages import JSON, Headers, HttpResponse, Request
from pyservice.errors import ServiceError

_METHODS: Final = "GET, HEAD, OPTIONS"
_FOR_ANY: Final[Headers] = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"x-ray-id, etag"),
]
_PREFLIGHT: Final[Headers] = [
    *_FOR_ANY,
    (b"access-control-allow-methods", b"GET, HEAD"),
    (b"access-control-allow-headers", b"authorization, if-none-match, traceparent"),
    (b"access-control-max-age", b"7200"),
]


class _NotModified(HttpResponse):
    __slots__ = ()

    def header_list(self) -> Headers:
        return [(b"x-ray-id", self.ray_id.encode()), *(self.headers or ())]


class StaticDocument:
    def __init__(self, path: bytes, body: bytes) -> None:
        self.path = path
        self.body = body
        self.etag = f'"{sha256(body).hexdigest()[:32]}"'.encode()
        self._headers = [*_FOR_ANY, (b"etag", self.etag), (b"cache-control", b"no-cache")]

    def answer(self, request: Request, ray_id: str) -> HttpResponse:
        if request.failure is not None:
            raise request.failure
        if request.method == b"OPTIONS":
            return HttpResponse(204, b"", ray_id, b"", list(_PREFLIGHT))
        if request.method not in (b"GET", b"HEAD"):
            raise ServiceError("METHOD_NOT_ALLOWED", headers={"allow": _METHODS})
        if self._is_known(request.headers.get(b"if-none-match", b"")):
            return _NotModified(304, b"", ray_id, b"", list(self._headers))
        return HttpResponse(200, self.body, ray_id, JSON, list(self._headers))

    def _is_known(self, tags: bytes) -> bool:
        etags = {tag.strip().removeprefix(b"W/") for tag in tags.split(b",")}
        return self.etag in etags or b"*" in etags
