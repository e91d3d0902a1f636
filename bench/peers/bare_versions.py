"""Minimal uvicorn server for `getVersion`: returns the text of a version from SQLite, without a token check.

Uses the event loop, HTTP parser and database of the service.
"""

from __future__ import annotations

import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any

import uvicorn

_FIND = "SELECT config_json FROM versions WHERE version_id = ?"


class Application:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        version_id = scope["path"].rpartition("/")[2]
        (text,) = self._connection.execute(_FIND, (version_id,)).fetchone()
        body = b'{"version":{"version_id":"%b","config":%b}}' % (version_id.encode(), text)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Runs `bare_versions READY_FILE DATABASE`: listens on a free port and writes the address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    host, port = listener.getsockname()
    config = uvicorn.Config(
        Application(sys.argv[2]), loop="uvloop", http="httptools", lifespan="off",
        access_log=False, log_level="warning",
    )  # fmt: skip
    Path(sys.argv[1]).write_text(f"{host}:{port}")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
