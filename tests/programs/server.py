"""Small game server: `python3 -S server.py`.

The server reads its settings from the environment, listens on every port that it gets, reports
that it is ready and echoes what it receives. The variable PLAY holds words that change this.
`mute` never reports ready. `exit:<code>` exits at once, and `leaves` exits with 0 after it is
ready. `ignore-sigterm` ignores SIGTERM. With `guests`, the first bytes of a TCP stream are a player token, and the
player is connected while the stream is open. With `only-players`, the stream ends unless the service accepts the token.
With `any-address`, the server listens on all addresses. With `sender-port`, each UDP reply starts with the sender's
port and a space. With `proxy-header`, a TCP stream and each datagram begin with a PROXY header. The stream and each
UDP reply then start with the player's address and port, and a space.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time

HEADER = 28
"""Bytes of a PROXY header with IPv4 addresses."""
PLAY = os.environ.get("PLAY", "").split()


def say(*words: object) -> None:
    print(*words, flush=True)


def ports() -> dict[str, int]:
    return {
        name.removeprefix("PORT_").lower(): int(value)
        for name, value in os.environ.items()
        if name.startswith("PORT_") and not name.startswith("PORT_RANGE")
    }


def call(operation: str, **fields: str) -> str:
    host, _, port = os.environ["HOSTING_API_URL"].removeprefix("http://").partition(":")
    body = json.dumps(fields)
    request = (
        f"POST /matchmaker/{operation} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        f"Authorization: Bearer {os.environ['HOSTING_LOBBY_TOKEN']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(request.encode())
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    return answer.split(b"\r\n", 1)[0].decode()


def is_ready() -> str:
    """Reports ready until the service accepts the report. The service may be killed before it
    responds.
    """
    while True:
        with contextlib.suppress(OSError):
            status = call("lobbies/ready")
            # The helpers call again too, for example if the lobby has no node yet.
            if status and " 503 " not in status:
                return status
        time.sleep(0.02)


def named_by(header: bytes) -> bytes:
    """Returns the address and port of the player in a PROXY header with IPv4 addresses."""
    assert header[:13] == b"\r\n\r\n\0\r\nQUIT\n\x21", header
    return b"%s:%d " % (
        socket.inet_ntoa(header[16:20]).encode(),
        int.from_bytes(header[24:26], "big"),
    )


def answer_to(content: bytes) -> bytes:
    """Returns what a player gets for bytes of a TCP stream. Other programs replace this function."""
    return content


def is_last(content: bytes) -> bool:
    """Returns whether a TCP stream ends with the answer. Other programs replace this function."""
    return False


def main() -> int:
    say("begins", *sys.argv[1:])
    for word in PLAY:
        if word.startswith("exit:"):
            return int(word.removeprefix("exit:"))
    if "ignore-sigterm" in PLAY:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    waiting = selectors.DefaultSelector()
    address = "0.0.0.0" if "any-address" in PLAY else "127.0.0.1"
    for number in ports().values():
        listener = socket.create_server((address, number))
        waiting.register(listener, selectors.EVENT_READ, "accept")
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind((address, number))
        waiting.register(datagrams, selectors.EVENT_READ, "datagram")
    if "HOSTING_LOBBY_TOKEN" in os.environ and "mute" not in PLAY:
        say("ready", is_ready())
    if "leaves" in PLAY:
        return 0
    guests: dict[socket.socket, str] = {}
    while True:
        for key, _ in waiting.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if key.data == "accept":
                connection, _ = ready.accept()
                if "proxy-header" in PLAY:
                    connection.sendall(named_by(connection.recv(HEADER, socket.MSG_WAITALL)))
                waiting.register(connection, selectors.EVENT_READ, "stream")
            elif key.data == "datagram":
                content, sender = ready.recvfrom(65_536)
                prefix = b"%d " % sender[1] if "sender-port" in PLAY else b""
                if "proxy-header" in PLAY:
                    prefix, content = named_by(content), content[HEADER:]
                ready.sendto(prefix + content, sender)
            elif content := ready.recv(65_536):
                if "guests" in PLAY and ready not in guests:
                    guests[ready] = content.decode()
                    status = call("players/connected", player_token=guests[ready])
                    say("comes", status)
                    if "only-players" in PLAY and " 200 " not in status:
                        del guests[ready]
                        waiting.unregister(ready)
                        ready.close()
                        continue
                ready.sendall(answer_to(content))
                if is_last(content):
                    waiting.unregister(ready)
                    ready.close()
            else:
                if ready in guests:
                    say("goes", call("players/disconnected", player_token=guests.pop(ready)))
                waiting.unregister(ready)
                ready.close()


if __name__ == "__main__":
    sys.exit(main())
