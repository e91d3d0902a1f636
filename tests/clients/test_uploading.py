"""Requests and uploads of the command line while a service restarts, or is slow."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from pyservice_cli import api, uploading
from pyservice_cli.api import Api
from pyservice_cli.connections import Connection
from pyservice_cli.failures import CommandFailed, ReadTimedOut, Refused, Unreachable
from pyservice_cli.uploading import _complete, _send_part

PART = {"url": "http://upload", "byte_offset": 2, "content_length": 3}


class Attempts:
    """Stands for the service, and for the clock. Each attempt takes a minute, and has a result."""

    def __init__(self, *results: CommandFailed | None) -> None:
        self._results = list(results)
        self.received: list[bytes] = []
        self.paths: list[str] = []
        self.progress = 0
        self.now_s = 0.0

    def upload(self, _url: str, content: BinaryIO, size: int, progress: Any) -> None:
        self.received.append(content.read(size))
        progress(size)
        self._end_attempt()

    def post(self, path: str) -> None:
        self.paths.append(path)
        self._end_attempt()

    def _end_attempt(self) -> None:
        self.now_s += 60.0
        result = self._results.pop(0)
        if result is not None:
            raise result

    def count(self, size: int) -> None:
        self.progress += size

    def clock(self) -> Any:
        return SimpleNamespace(monotonic=lambda: self.now_s, sleep=lambda _: None)

    def send(self) -> None:
        _send_part(self, PART, io.BytesIO(b"abcdefg"), self.count)  # type: ignore[arg-type]


BROKEN = Unreachable("The connection ended.")
RESTARTING = Refused(503, "SHUTTING_DOWN", "The service is stopping.", "")
FULL = Refused(503, "STORAGE_FULL", "The disk is full.", "")
WRONG = Refused(400, "UPLOAD_LENGTH_MISMATCH", "The length is another one.", "")


@pytest.mark.parametrize("failure", [BROKEN, RESTARTING])
def test_part_is_sent_again_however_long_it_took(
    monkeypatch: pytest.MonkeyPatch, failure: CommandFailed
) -> None:
    service = Attempts(failure, None)
    monkeypatch.setattr(uploading, "time", service.clock())
    service.send()
    assert service.received == [b"cde", b"cde"]
    assert service.progress == 3


@pytest.mark.parametrize(
    ("failures", "count"),
    [((BROKEN, RESTARTING), 2), ((FULL,), 1), ((WRONG,), 1)],
)
def test_part_that_cannot_be_sent_fails(
    monkeypatch: pytest.MonkeyPatch, failures: tuple[CommandFailed, ...], count: int
) -> None:
    service = Attempts(*failures)
    monkeypatch.setattr(uploading, "time", service.clock())
    with pytest.raises(type(failures[-1])):
        service.send()
    assert len(service.received) == count


def test_slow_check_of_an_upload_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Refused(504, "DEADLINE_EXCEEDED", "The operation took too long.", "")
    lost = ReadTimedOut("The service did not answer in time.")
    service = Attempts(late, lost, None)
    monkeypatch.setattr(uploading, "time", service.clock())
    _complete(service, "upload")  # type: ignore[arg-type]
    assert service.paths == ["/cloud/uploads/upload/complete"] * 3


def test_check_that_never_ends_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Refused(504, "DEADLINE_EXCEEDED", "The operation took too long.", "")
    service = Attempts(*[late] * 100)
    monkeypatch.setattr(uploading, "time", service.clock())
    with pytest.raises(Refused):
        _complete(service, "upload")  # type: ignore[arg-type]
    assert len(service.paths) == 30


@contextmanager
def answering(*statuses: int) -> Iterator[str]:
    """Runs a server that answers each request with the next status, and yields its address."""
    remaining = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            status = remaining.pop(0)
            self.send_response(status)
            if status == 200:
                self.send_header("x-ray-id", "1")
            self.end_headers()
            self.wfile.write(b"{}" if status == 200 else b"<html>Bad gateway</html>")

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
    assert remaining == []


def test_answer_of_a_proxy_is_not_one_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_PAUSE_S", 0.0)
    with answering(200, 502, 502, 200) as url:
        service = Api(Connection(url, None, "test"))
        assert service.get("/cloud/bootstrap") == {}
        assert service.get("/cloud/bootstrap") == {}
    with answering(502) as url, pytest.raises(Unreachable, match="does not reach the service"):
        Api(Connection(url, None, "test")).get("/cloud/bootstrap")
