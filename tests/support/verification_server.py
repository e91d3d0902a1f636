"""Verification server of a game, and game modes with verification."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.data_plane_service import MODES

LOOPBACK = {"verification_allowed_networks": ["127.0.0.0/8"]}


class Game(ThreadingHTTPServer):
    """Verification server of the game. It responds with `status` after `go` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.go = threading.Event()
        self.go.set()
        self.bodies: list[dict[str, Any]] = []
        self.traces: list[str | None] = []
        self.disconnected = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/may"


class _Handler(BaseHTTPRequestHandler):
    server: Game
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        self.server.traces.append(self.headers["traceparent"])
        if not self.server.go.is_set():
            if not self.connection.recv(1):
                self.server.disconnected.set()
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_game() -> Iterator[Game]:
    with Game() as game:
        thread = threading.Thread(target=game.serve_forever, daemon=True)
        thread.start()
        yield game
        game.shutdown()
        thread.join()


def verified_modes(url: str) -> dict[str, Any]:
    action = {"enabled": True, "verification": {"url": url, "headers": {"X-Key": "never-shown"}}}
    return {**MODES, "duel": {**MODES["duel"], "actions": {"find": action, "join": action}}}
