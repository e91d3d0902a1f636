"""HTTP forward proxy between a command and a service. It calls a function at named moments of each request.

A command uses the proxy through the variable `http_proxy`. So the proxy sees each request of the
command: to the API, to the presigned URLs of uploads, and to the site.
"""

from __future__ import annotations

import enum
import http.client
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HOP_BY_HOP: Final = {"connection", "keep-alive", "proxy-connection", "transfer-encoding"}


class Moment(enum.Enum):
    """Moment of a request."""

    ARRIVED = "the service has nothing of it"
    HALF_SENT = "the service has half of its body"
    ANSWERED = "the service has answered, and the command has no answer"


class RequestLost(Exception):
    """The proxy drops a request: the command gets no answer."""


When = Callable[[str, Moment], None]
"""Gets the name of a request, such as `POST /cloud/uploads/ID/complete`. May raise RequestLost."""


class ForwardProxy:
    def __init__(self) -> None:
        self.when: When = lambda _name, _moment: None
        self.url = ""

    def environment(self) -> dict[str, str]:
        return {"http_proxy": self.url, "no_proxy": "", "HTTP_PROXY": "", "NO_PROXY": ""}


@contextmanager
def forward_proxy() -> Iterator[ForwardProxy]:
    proxy = ForwardProxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return lambda: _serve(self, proxy)
            raise AttributeError(name)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _serve(handler: BaseHTTPRequestHandler, proxy: ForwardProxy) -> None:
    handler.close_connection = True
    try:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        status, headers, content = _forward(handler, proxy.when, body)
        handler.send_response_only(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.wfile.write(content)
    except ConnectionRefusedError:
        # A proxy answers for a service that does not run.
        handler.send_error(502)
    except (RequestLost, OSError, http.client.HTTPException):
        # The command sees a connection that ends without an answer.
        return


def _forward(
    handler: BaseHTTPRequestHandler, when: When, body: bytes
) -> tuple[int, list[tuple[str, str]], bytes]:
    url = urlsplit(handler.path)
    name = f"{handler.command} {_ID.sub('ID', url.path)}"
    when(name, Moment.ARRIVED)
    upstream = http.client.HTTPConnection(url.netloc, timeout=120)
    try:
        target = f"{url.path}?{url.query}" if url.query else url.path
        upstream.putrequest(handler.command, target, skip_host=True, skip_accept_encoding=True)
        for header, value in handler.headers.items():
            if header.lower() not in _HOP_BY_HOP:
                upstream.putheader(header, value)
        upstream.putheader("connection", "close")
        upstream.endheaders()
        if body:
            upstream.send(body[: len(body) // 2])
            when(name, Moment.HALF_SENT)
            upstream.send(body[len(body) // 2 :])
        response = upstream.getresponse()
        content = response.read()
        headers = [one for one in response.getheaders() if one[0].lower() not in _HOP_BY_HOP]
        when(name, Moment.ANSWERED)
        return response.status, headers, content
    finally:
        upstream.close()
