"""A public document at a fixed path, such as the OpenAPI document. Clients revalidate it by ETag."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from pyservice.edge.http_messages import JSON, HttpResponse, Request
from pyservice.errors import ServiceError

_METHODS: Final = "GET, HEAD, OPTIONS"


class StaticDocument:
    def __init__(
        self,
        path: bytes,
        body: bytes,
        content_type: bytes = JSON,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.path = path
        self.body = body
        self.etag = f'"{sha256(body).hexdigest()[:32]}"'.encode()
        self._content_type = content_type
        self._headers = [(b"etag", self.etag), (b"cache-control", b"no-cache"), *headers]

    def answer(self, request: Request) -> HttpResponse:
        """Returns the document, or 304 if the client has it. Raises METHOD_NOT_ALLOWED."""
        if request.method == "OPTIONS":
            return HttpResponse(204, b"")
        if request.method not in ("GET", "HEAD"):
            raise ServiceError("METHOD_NOT_ALLOWED", headers={"allow": _METHODS})
        if self._is_known(request.headers.get(b"if-none-match", b"")):
            return HttpResponse(304, b"", headers=list(self._headers))
        return HttpResponse(200, self.body, self._content_type, list(self._headers))

    def _is_known(self, tags: bytes) -> bool:
        etags = {tag.strip().removeprefix(b"W/") for tag in tags.split(b",")}
        return self.etag in etags or b"*" in etags
