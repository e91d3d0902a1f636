"""Commands against an address at which another server answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pyservice_cli.connections import TOKEN_VARIABLE, URL_VARIABLE
from pyservice_cli.failures import ExitStatus
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder


class OtherServer:
    """An HTTP server that gives the same answer to each request."""

    def __init__(self) -> None:
        self.answer: tuple[int, str, str] = (200, "application/json", "{}")
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = owner.answer
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def other_server() -> Iterator[OtherServer]:
    other = OtherServer()
    # Short, because the end waits for the next poll.
    threading.Thread(target=other.server.serve_forever, args=(0.01,)).start()
    yield other
    other.server.shutdown()
    other.server.server_close()


@pytest.mark.parametrize(
    "answer",
    [
        (200, "application/json", '{"status": "ok", "games": [{"id": 1}]}'),
        (200, "application/json", "[]"),
        (200, "text/html", "<html>Welcome to nginx!</html>"),
        (404, "application/json", '{"detail": "Not Found"}'),
        (404, "application/json", '{"code": 5, "detail": "no such object", "errors": 7}'),
    ],
    ids=["object", "list", "page", "error", "error with a code"],
)
@pytest.mark.parametrize(
    "words",
    ["status", "deploy", "play", "list games", "why", "logs", "versions", "rollback", "whoami"],
)
def test_another_server_at_the_address_is_named(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    other_server: OtherServer,
    answer: tuple[int, str, str],
    words: str,
) -> None:
    command("init")
    other_server.answer = answer
    monkeypatch.setenv(URL_VARIABLE, other_server.url)
    monkeypatch.setenv(TOKEN_VARIABLE, "cloud_x")
    ended = command(*words.split(), "--json")
    assert ended.status == ExitStatus.UNREACHABLE
    error = ended.result["error"]
    assert error["code"] == "SERVICE_NOT_FOUND"
    assert error["message"].startswith(f"{other_server.url} is not this service: ")
    assert "Check the address" in error["remedy"]
