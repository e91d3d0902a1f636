"""Downloads by signed URLs: GET, HEAD and preflight requests."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from time import perf_counter
from typing import Final
from urllib.parse import quote

from pyservice.cdn.content_types import DEFAULT
from pyservice.cdn.file_responses import File, FileResponses
from pyservice.cdn.responses import Response, error_response
from pyservice.errors import ServiceError
from pyservice.observability.rays import Trace
from pyservice.storage.objects import Objects, is_key
from pyservice.storage.signed_urls import InvalidSignature, UrlGrant

CORS: Final = {
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "x-ray-id, retry-after",
}
"""CORS headers for any origin, because a signed URL is the only right that a client needs."""

_PREFLIGHT: Final = {
    **CORS,
    "access-control-allow-methods": "GET, HEAD, PUT",
    "access-control-allow-headers": "content-type, traceparent",
    "access-control-max-age": "86400",
}
_CONTENT_TYPE: Final = re.compile(r"[a-z0-9.+-]+/[a-z0-9.+-]+(?:; ?[a-z0-9-]+=[A-Za-z0-9-]+)?")
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9._ -]")


class SignedObjects:
    def __init__(self, objects: Objects, files: FileResponses) -> None:
        self._objects = objects
        self._files = files

    async def answer(
        self, method: str, path: str, query: bytes, headers: Mapping[bytes, bytes], trace: Trace
    ) -> Response:
        try:
            if method == "OPTIONS":
                return Response(204, dict(_PREFLIGHT))
            if method not in ("GET", "HEAD"):
                raise ServiceError("METHOD_NOT_ALLOWED", headers={"allow": "GET, HEAD, PUT"})
            answer = await self._object(method, path, query, headers, trace)
        except ServiceError as error:
            self._objects.counts.count_failure(error.code)
            answer = error_response(error, trace.ray_id)
        answer.headers |= CORS
        return answer

    async def _object(
        self, method: str, path: str, query: bytes, headers: Mapping[bytes, bytes], trace: Trace
    ) -> Response:
        try:
            grant = self._objects.signer.verify(method, path, query, time.time())
        except InvalidSignature:
            raise ServiceError("UPLOAD_URL_INVALID") from None
        trace.upload_id = upload_of(grant)
        began = perf_counter()
        try:
            length = await self._objects.stat(grant.key) if is_key(grant.key) else None
            if length is None:
                raise ServiceError("NOT_FOUND")
            self._objects.counts.gets += 1
            if method == "GET":
                self._objects.counts.get_bytes += length
            # Objects never change, so any past date is valid. The tag decides.
            file = File(grant.key, length, grant.key.replace("/", "-"), 0, _headers(grant), True)
            return await self._files.answer(file, headers, is_head=method == "HEAD")
        finally:
            trace.note("file", began)


def upload_of(grant: UrlGrant) -> str:
    """Returns the upload id of a signed URL, which is the first part of its object key."""
    return grant.key.partition("/")[0]


def _headers(grant: UrlGrant) -> dict[str, str]:
    content_type = grant.content_type or DEFAULT
    lasts = "public, max-age=31536000, immutable"
    headers = {
        "content-type": content_type if _CONTENT_TYPE.fullmatch(content_type) else DEFAULT,
        "cache-control": "private, no-cache" if grant.expires_at_s is not None else lasts,
        "content-security-policy": "default-src 'none'; sandbox",
        "x-content-type-options": "nosniff",
    }
    if grant.filename is not None:
        headers["content-disposition"] = disposition(grant.filename)
    return headers


def disposition(filename: str) -> str:
    """Returns a Content-Disposition value with a file name in ASCII and in UTF-8 (RFC 6266)."""
    plain = _NOT_PLAIN.sub("_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"
