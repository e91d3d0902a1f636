"""Captcha providers and a verification server of a game, on loopback."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from examples.captcha_provider import PASSING, Provider

HUMAN: Final = {"captcha_a": {"client_response": PASSING}}
ROBOT: Final = {"captcha_a": {"client_response": "robot"}}
UNJUDGED: Final = {"captcha_b": {"client_response": PASSING}}
"""Captcha responses: accepted, rejected, and one for the second provider, which is broken."""
_LOOPBACK: Final = "127.0.0.0/8"


class GameServer(ThreadingHTTPServer):
    """Answers with the status in the last part of the path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _StatusHandler)
        self.paths: list[str] = []

    def url(self, status: int) -> str:
        return f"http://127.0.0.1:{self.server_port}/{status}"


class _StatusHandler(BaseHTTPRequestHandler):
    server: GameServer
    timeout = 10

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.send_response(int(self.path.rpartition("/")[2]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class AdmissionServers:
    def __init__(self, provider: Provider, game_server: GameServer) -> None:
        self._provider = provider
        self.game_server = game_server

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the operator. The second captcha provider returns invalid responses."""
        return {
            "captcha": {
                "captcha_a_url": self._provider.url,
                "captcha_b_url": self.game_server.url(500),
            },
            "verification_allowed_networks": [_LOOPBACK],
        }

    @property
    def captcha(self) -> dict[str, Any]:
        return {
            "captcha_a": {"secret_key": "secret-a", "site_key": "site-a"},
            "captcha_b": {"secret_key": "secret-b", "site_key": "site-b"},
            "requests_before_reverify": 0,
            "verification_ttl": 60_000,
        }

    def actions(self, status: int) -> dict[str, Any]:
        verification = {"url": self.game_server.url(status), "headers": {}}
        requested = {"enabled": True, "verification": verification}
        return {"find": requested, "join": requested, "create": requested}


@contextlib.contextmanager
def open_admission_servers() -> Iterator[AdmissionServers]:
    with Provider() as provider, GameServer() as game_server:
        threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            for server in (provider, game_server)
        ]
        for thread in threads:
            thread.start()
        try:
            yield AdmissionServers(provider, game_server)
        finally:
            for server in (provider, game_server):
                server.shutdown()
            for thread in threads:
                thread.join()
