"""Serves the files of the game's page over HTTP, on the port of the WebSocket."""

from http import HTTPStatus
from pathlib import Path

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

SOCKET_PATH = "/play"

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
# connect-src is *, because the API and game servers can have any address.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src *; "
    "base-uri 'none'"
)


class Pages:
    def __init__(self, folder: Path) -> None:
        self._contents = {
            f"/{file.name}": (file.read_bytes(), _CONTENT_TYPES[file.suffix])
            for file in sorted(folder.iterdir())
            if file.suffix in _CONTENT_TYPES
        }
        self._contents["/"] = self._contents.pop("/index.html")

    def answer(self, request: Request) -> Response | None:
        """Returns the response to a page request, or None for a WebSocket request."""
        path = request.path.partition("?")[0]
        if path == SOCKET_PATH:
            return None
        if path not in self._contents:
            return _text(HTTPStatus.NOT_FOUND, "There is no such page.\n")
        if request.method != "GET":
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET.\n")
            response.headers["Allow"] = "GET"
            return response
        body, content_type = self._contents[path]
        return _response(HTTPStatus.OK, content_type, body)


def _text(status: HTTPStatus, text: str) -> Response:
    return _response(status, "text/plain; charset=utf-8", text.encode())


def _response(status: HTTPStatus, content_type: str, body: bytes) -> Response:
    headers = Headers(
        {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
            "Connection": "close",
        }
    )
    return Response(status.value, status.phrase, headers, body)
