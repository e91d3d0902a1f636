from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from dataclasses import dataclass, field
from http import HTTPStatus
from time import perf_counter
from typing import Any, Final

from pyservice.errors import ServiceError
from pyservice.observability.metrics import CANCELLED, OK
from pyservice.observability.rays import Trace
from pyservice.transport import trace_context
from pyservice.transport.native import problem_json

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

RAY_ID: Final = "x-ray-id"
CDN_METRIC_LABEL: Final = "cdn"

_PIECE_BYTES: Final = 256 << 10
_WITHOUT_BODY: Final = (204, 304)
_DETAILS: Final = {
    400: "the path is not valid",
    401: "send a user name and a password",
    404: "no file has this address",
    405: "use GET or HEAD",
    416: "the range is outside the file",
    429: "too many wrong passwords from your address, try again later",
    503: "too many requests at once, try again in a few seconds",
}


@dataclass(slots=True)
class Response:
    """Status, headers (lower-case names), and a body as bytes or as an iterator of pieces."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterator[bytes] = b""
    on_end: Callable[[], None] | None = None
    first_piece: bytes = b""
    code: str = OK

    def to_bytes(self, *, is_last: bool) -> bytes:
        assert isinstance(self.body, bytes)
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines.append(f"content-length: {len(self.body)}")
        if is_last:
            lines.append("connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body

    async def send(self, receive: Receive, send: Send, *, with_body: bool) -> int:
        """Sends the response and returns the number of body bytes. Always closes the body iterator."""
        body = self.body
        if isinstance(body, bytes) and self.status not in _WITHOUT_BODY:
            self.headers.setdefault("content-length", str(len(body)))
        head = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        try:
            await send({"type": "http.response.start", "status": self.status, "headers": head})
            if not with_body or isinstance(body, bytes):
                body = body if with_body and isinstance(body, bytes) else b""
                # The pieces are small, so that a slow reader buffers only one of them.
                for start in range(0, len(body) or 1, _PIECE_BYTES):
                    end = start + _PIECE_BYTES
                    piece, more = body[start:end], end < len(body)
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
                return len(body)
            if self.first_piece:
                await send(
                    {"type": "http.response.body", "body": self.first_piece, "more_body": True}
                )
            sent_bytes, is_whole = await _send_pieces(body, receive, send)
            if not is_whole:
                self.code = CANCELLED
            return len(self.first_piece) + sent_bytes
        finally:
            if isinstance(self.body, AsyncGenerator):
                await self.body.aclose()
            if self.on_end is not None:
                self.on_end()


async def _send_pieces(
    pieces: AsyncIterator[bytes], receive: Receive, send: Send
) -> tuple[int, bool]:
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    sent_bytes = 0
    try:
        async for piece in pieces:
            if disconnect.done():
                return sent_bytes, False
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            sent_bytes += len(piece)
        await send({"type": "http.response.body", "body": b""})
    finally:
        disconnect.cancel()
    return sent_bytes, True


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def trace_of(headers: Mapping[bytes, bytes]) -> Trace:
    ray_id, parent_span = trace_context.read_traceparent(
        headers.get(b"traceparent", b"").decode("latin-1")
    )
    return Trace(ray_id, perf_counter(), parent_span)


def error_page(
    status: int, headers: Mapping[str, str] | None = None, *, detail: str | None = None
) -> Response:
    text = f"{status} {HTTPStatus(status).phrase}: {detail or _DETAILS[status]}\n"
    return Response(
        status,
        {
            "content-type": "text/plain; charset=utf-8",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            **(headers or {}),
        },
        text.encode(),
        code=HTTPStatus(status).name,
    )


def error_response(error: ServiceError, ray_id: str) -> Response:
    headers = {
        "content-type": "application/problem+json",
        "cache-control": "no-store",
        RAY_ID: ray_id,
        **error.headers,
    }
    if error.retry_after_s:
        headers["retry-after"] = str(error.retry_after_s)
    return Response(error.http, headers, problem_json(error, ray_id), code=error.code)
