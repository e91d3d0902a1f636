"""Minimal uvicorn server for `connected`: parses the body, reads the token and returns `{}`.

Uses the event loop, HTTP parser and JSON library of the service.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import orjson
import uvicorn

_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"2")]


async def application(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    event = await receive()
    body = event["body"]
    while event.get("more_body"):
        event = await receive()
        body += event["body"]
    player_token = orjson.loads(body)["player_token"]
    is_right = scope["path"] == "/matchmaker/players/connected" and isinstance(player_token, str)
    status = 200 if is_right else 400
    await send({"type": "http.response.start", "status": status, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": orjson.dumps({})})


def main() -> None:
    """Runs `bare_uvicorn READY_FILE`: listens on a free port and writes the address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    host, port = listener.getsockname()
    config = uvicorn.Config(
        application, loop="uvloop", http="httptools", lifespan="off", access_log=False,
        log_level="warning",
    )  # fmt: skip
    Path(sys.argv[1]).write_text(f"{host}:{port}")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
