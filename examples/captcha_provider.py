"""Captcha provider for development and tests. It accepts the response `human`.

It accepts each response `human-<anything>` once. Set `captcha.captcha_a_url` to the printed URL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs

PASSING: Final = "human"
ONCE: Final = "human-"
_BODY_MAX: Final = 64 << 10


class Provider(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self._used: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/verify"

    def judge(self, form: dict[str, str]) -> dict[str, object]:
        missing = [f"missing-input-{name}" for name in ("secret", "response") if not form.get(name)]
        if missing:
            return {"success": False, "error-codes": missing}
        response = form["response"]
        if response in self._used:
            return {"success": False, "error-codes": ["already-seen-response"]}
        if response.startswith(ONCE):
            self._used.add(response)
        elif response != PASSING:
            return {"success": False, "error-codes": ["invalid-input-response"]}
        return {"success": True}


class _Handler(BaseHTTPRequestHandler):
    server: Provider
    protocol_version = "HTTP/1.1"
    timeout = 10

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _BODY_MAX:
            self.send_error(400)
            return
        text = self.rfile.read(int(length)).decode("utf-8", "replace")
        form = {name: values[0] for name, values in parse_qs(text).items()}
        answer = json.dumps(self.server.judge(form)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, because forms contain secrets."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8099, help="0: the system picks")
    with Provider(parser.parse_args().port) as provider:
        print(provider.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            provider.serve_forever()


if __name__ == "__main__":
    main()
