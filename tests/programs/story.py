"""Game server of the stories about placements: `python3 -S story.py`.

It is `server.py` with more words in PLAY, which it obeys before it listens. A player sends `do` and
words to have them obeyed later, and gets the message back. With `unaware`, the server makes no
calls, and prints `ready by itself` when it listens. With `deaf`, it does not listen. A GET gets the
number of players in JSON, which is 0 until `players:<number>` sets it. `out:<text>` and `err:<text>` print a
line, `count:<number>` prints numbers, and `long:<length>` a long line. `exit:<code>` exits,
`signal:<number>` dies by a signal, and `import:<name>` imports a module. `allocate:<MiB>` takes
memory, and `fill:<MiB>` writes a file into the scratch folder. With `sigterm-exits:<code>`, SIGTERM
ends the program with this code. With `catch-sigterm`, SIGTERM is only noted, and `await-sigterm`
waits for it.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import server  # type: ignore[import-not-found]

PLAYERS = ["0"]
HELD: list[bytes] = []
TERMINATED = threading.Event()
_BLOCK = bytes(1 << 20)
_COMMAND = b"do "


def obey(word: str) -> None:
    name, _, value = word.partition(":")
    match name:
        case "unaware":
            server.is_ready = lambda: "by itself"
        case "deaf":
            server.ports = dict
        case "players":
            PLAYERS[:] = [value]
        case "out":
            print(value, flush=True)
        case "err":
            print(value, file=sys.stderr, flush=True)
        case "count":
            print(*range(int(value)), sep="\n", flush=True)
        case "long":
            print("x" * int(value), flush=True)
        case "exit":
            sys.exit(int(value))
        case "signal":
            os.kill(os.getpid(), int(value))
        case "import":
            __import__(value)
        case "allocate":
            # Zeros would take no memory.
            HELD.append(b"x" * (int(value) << 20))
        case "fill":
            with Path(os.environ["HOME"], "filled").open("wb", buffering=0) as file:
                for _ in range(int(value)):
                    file.write(_BLOCK)
        case "sigterm-exits":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(value)))
        case "catch-sigterm":
            signal.signal(signal.SIGTERM, lambda *_: TERMINATED.set())
        case "await-sigterm":
            TERMINATED.wait()


def is_request(content: bytes) -> bool:
    return content.startswith(b"GET ")


def answer_to(content: bytes) -> bytes:
    if content.startswith(_COMMAND):
        for word in content.decode().split():
            obey(word)
    if is_request(content):
        body = f'{{"players": {PLAYERS[0]}}}'
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close"
        return f"{head}\r\n\r\n{body}".encode()
    return content


def main() -> int:
    for word in server.PLAY:
        obey(word)
    server.answer_to, server.is_last = answer_to, is_request
    return int(server.main())


if __name__ == "__main__":
    sys.exit(main())
