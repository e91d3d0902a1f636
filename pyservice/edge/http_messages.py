"""An HTTP request and response, independent of the server that reads and writes them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import httptools
import orjson

from pyservice.errors import ServiceError
from pyservice.transport.client_address import Address, packed_client

JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"
PROBLEM: Final = b"application/problem+json"

STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_COMMON_HEAD: Final = STATUS_LINES[200] + b"content-type: " + JSON + b"\r\nx-ray-id: "

Headers = list[tuple[bytes, bytes]]

_PARTS_HEAD: Final = STATUS_LINES[200] + b"transfer-encoding: chunked\r\n\r\n"

_OF_BODIES: Final = frozenset({"BODY_TOO_LARGE", "OVERLOADED", "TOKEN_MISSING", "TOKEN_INVALID"})
"""Errors that a server finds before it has the body."""


class Request:
    """A received HTTP request. Header names are lower-case, and repeated headers are joined by
    commas.

    `failure` is the error of a request that was not received completely. It is reported if no
    earlier check fails, and then the connection closes. `source` is the address `peer` in packed
    form. `is_fronted` means that the peer is a proxy in front of edge-guard, which sets
    `x-forwarded-for`. `is_game_server` means that the peer is a game server of this machine, which
    may not set it.
    """

    __slots__ = (
        "body",
        "failure",
        "headers",
        "is_fronted",
        "is_game_server",
        "keep_alive",
        "match",
        "method",
        "path",
        "peer",
        "query",
        "source",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: dict[bytes, bytes],
        peer: Address,
        source: bytes | None = None,
    ) -> None:
        self.method = method
        self.headers = headers
        self.peer = peer
        self.source = packed_client(peer) if source is None else source
        self.path, _, self.query = target.partition(b"?")
        self.body = b""
        self.failure: ServiceError | None = None
        self.match: Any = None
        self.keep_alive = True
        self.is_fronted = False
        self.is_game_server = False

    @property
    def is_routable(self) -> bool:
        return self.failure is None or self.failure.code in _OF_BODIES


def target_of(url: bytes) -> bytes:
    if url.startswith(b"/"):
        return url.partition(b"#")[0] if b"#" in url else url
    try:
        url_parts = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        return url
    return (url_parts.path or b"/") + (b"?" + url_parts.query if url_parts.query else b"")


class HttpResponse:
    """A response. `headers` contains neither content type, nor length, nor ray id."""

    __slots__ = ("body", "content_type", "headers", "ray_id", "status")

    def __init__(
        self,
        status: int,
        body: bytes,
        ray_id: str,
        content_type: bytes = JSON,
        headers: Headers | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.ray_id = ray_id
        self.content_type = content_type
        self.headers = headers

    def header_list(self) -> Headers:
        fields = [(b"x-ray-id", self.ray_id.encode())]
        if self.status != 204:
            fields.append((b"content-type", self.content_type))
            fields.append((b"content-length", b"%d" % len(self.body)))
        return fields + self.headers if self.headers else fields

    def to_bytes(self, *, keep_alive: bool, with_body: bool) -> bytes:
        body = self.body
        is_plain = self.headers is None and self.content_type == JSON
        if self.status == 200 and keep_alive and is_plain and with_body:
            return b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (
                _COMMON_HEAD,
                self.ray_id.encode(),
                len(body),
                body,
            )
        lines = [b"%b: %b\r\n" % field for field in self.header_list()]
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        if not with_body:
            body = b""
        return b"".join((STATUS_LINES[self.status], *lines, b"\r\n", body))


def part_to_bytes(part: bytes, *, is_first: bool) -> bytes:
    return b"%b%x\r\n%b\r\n" % (_PARTS_HEAD if is_first else b"", len(part), part)


def problem(error: ServiceError, ray_id: str, headers: Headers | None = None) -> HttpResponse:
    fields = list(headers or ())
    if error.http == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    if error.retry_after_s is not None:
        fields.append((b"retry-after", b"%d" % error.retry_after_s))
    fields.extend((name.encode(), value.encode()) for name, value in error.headers.items())
    return HttpResponse(error.http, orjson.dumps(error.problem(ray_id)), ray_id, PROBLEM, fields)
