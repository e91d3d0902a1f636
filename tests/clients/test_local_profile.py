"""The token of the service on this machine is sent only to the process that announced itself."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice_cli import api, local_services
from pyservice_cli.api import Api
from pyservice_cli.connections import find_connection
from pyservice_cli.failures import Unreachable
from pyservice_cli.local_services import Announcement, local_url

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Ray-Id: 1\r\n"
    b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"
)
SECRET = "cloud_secret"


class Listener:
    """A program that answers each connection, and keeps what it was sent."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    content = connection.recv(65_536)
                    self.received.append(content)
                    if content:
                        connection.sendall(ANSWER)

    def end(self) -> list[bytes]:
        """Returns what each connection has sent, after the last one has ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        return self.received


class LocalService:
    """A service that this test announces, as a process of this user."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = self._socket.getsockname()
        self.listener = Listener(self._socket)
        token_file = folder / "token"
        token_file.write_text(SECRET)
        host, port = self.address
        self._announcement = Announcement.publish(f"http://{host}:{port}", token_file)

    def end(self) -> list[bytes]:
        received = self.listener.end()
        self._socket.close()
        with contextlib.suppress(OSError):
            # The kernel does the same for a process that is killed. The file stays.
            os.close(self._announcement._descriptor)
        return received


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalService]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PYSERVICE_URL", raising=False)
    monkeypatch.delenv("PYSERVICE_TOKEN", raising=False)
    service = LocalService(tmp_path)
    yield service
    with contextlib.suppress(OSError):
        service.end()


def test_running_service_gets_the_token(service: LocalService) -> None:
    assert Api(find_connection()).get("/cloud/bootstrap") == {}
    (request,) = service.end()
    assert f"bearer {SECRET}".encode() in request.lower()


@pytest.mark.parametrize("has_answered", [False, True])
def test_listener_at_the_address_of_an_ended_service_gets_nothing(
    service: LocalService, monkeypatch: pytest.MonkeyPatch, has_answered: bool
) -> None:
    monkeypatch.setattr(api, "PATIENCE_S", 0.0)
    calls = Api(find_connection())
    if has_answered:
        calls.get("/cloud/bootstrap")
    service.end()
    with socket.create_server(service.address) as foreign:
        listener = Listener(foreign)
        with pytest.raises(Unreachable):
            calls.get("/cloud/bootstrap")
        assert b"".join(listener.end()) == b""


def test_address_that_moved_to_another_machine_gets_nothing(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "is_own_address", lambda _: False)
    with pytest.raises(Unreachable):
        Api(find_connection()).get("/cloud/bootstrap")
    assert b"".join(service.end()) == b""


@pytest.mark.parametrize(("address", "is_own"), [("127.0.0.1", True), ("192.0.2.1", False)])
def test_own_addresses_are_those_of_this_machine(address: str, is_own: bool) -> None:
    assert local_services.is_own_address(address) is is_own


@pytest.mark.parametrize(
    ("listener", "url"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("localhost:8080", "http://localhost:8080"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://[::1]:8080"),
        ("192.168.1.5:8080", "http://192.168.1.5:8080"),
        ("games.example.com:8080", None),
    ],
)
def test_announced_address_is_one_of_this_machine(listener: str, url: str | None) -> None:
    assert local_url(listener) == url
