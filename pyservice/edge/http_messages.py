"""An HTTP request and response, independent of the server that reads and writes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from pyservice.errors import ServiceError
from pyservice.observability.metrics import OK
from pyservice.transport.client_address import Address
from pyservice.transport.native import problem_json

JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"
PROBLEM: Final = b"application/problem+json"

_WITHOUT_CONTENT: Final = frozenset({204, 304})

Headers = list[tuple[bytes, bytes]]

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class Request:
    """A received HTTP request. Header names are lower-case, and repeated headers are joined by
    commas.

    `path` is not decoded.
    """

    __slots__ = ("body", "headers", "method", "path", "peer", "query")

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        peer: Address,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers: dict[bytes, bytes] = {}
        fields = self.headers
        for name, value in headers:
            fields[name] = fields[name] + b", " + value if name in fields else value
        self.peer = peer
        self.body = b""

    def text(self, name: bytes) -> str | None:
        """Returns the value of a header, or None if the request lacks it."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class HttpResponse:
    """A response. `headers` contains neither content type, nor length, nor ray id.

    `code` is `OK` or the code of the error.
    """

    __slots__ = ("body", "code", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: Headers | None = None,
        code: str = OK,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.code = code

    def header_list(self, ray_id: str) -> Headers:
        fields = [(b"x-ray-id", ray_id.encode())]
        if self.status not in _WITHOUT_CONTENT:
            fields.append((b"content-type", self.content_type))
            fields.append((b"content-length", b"%d" % len(self.body)))
        return fields + self.headers if self.headers else fields


def problem(error: ServiceError, ray_id: str) -> HttpResponse:
    """Returns the response of an error."""
    fields: Headers = []
    if error.http == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    if error.retry_after_s is not None:
        fields.append((b"retry-after", b"%d" % error.retry_after_s))
    fields.extend((name.encode(), value.encode()) for name, value in error.headers.items())
    body = problem_json(error, ray_id)
    return HttpResponse(error.http, body, PROBLEM, fields, error.code)
